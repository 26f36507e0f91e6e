"""Microsoft's Philly traces: when jobs were submitted, how long they ran, on how many GPUs, for which virtual cluster.

Published with "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (USENIX ATC 2019) at
https://github.com/msr-fiddle/philly-traces, CC BY 4.0. Read here is the form into which others have filtered them,
``philly_<months>.csv`` (or ``.csv.gz``): timestamp (``2017-10-09 07:01:55``), duration in seconds, num_gpus, gpu_time,
cluster; and ``philly_vc.csv``: vc, node num. The publisher does not say which GPUs, and the copy not how many a node
has, so that a trace has no workers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.model.request import MAX_COUNT, DeviceRequest
from hetero_airflow.simulator.traces.folder import trace_folder
from hetero_airflow.simulator.traces.rows import Row, csv_rows
from hetero_airflow.simulator.workload import Job, Workload

_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_MONTH = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def load(name: str, traces: Path | None) -> Workload:
    """The jobs that were submitted in one month (``2017-10``), by time; 0 is when the first of them was.

    The files are in no order; jobs of the same second keep that of their lines. The id is the file's name
    and the line, since the data has none; two equal lines are two jobs.

    :raises TraceError: no such month, or a file that can't be right
    """
    if _MONTH.fullmatch(name) is None:
        raise TraceError(f"the trace philly/{shorten(name)}", found="no month", remedy='Write it as "philly/2017-10"')
    folder = trace_folder(traces) / "philly"
    paths = sorted(p for p in folder.glob("philly_2*") if p.name.endswith((".csv", ".csv.gz")) and p.is_file())
    rows = [(_submitted(row), row) for path in paths for row in csv_rows(path, _COLUMNS)]
    rows = sorted(((at, row) for at, row in rows if row.fields["timestamp"].startswith(name)), key=itemgetter(0))
    if not rows:
        raise TraceError(
            f"the trace philly/{name} in {', '.join(p.name for p in paths) or 'philly_<months>.csv'}",
            found="no job of that month" if paths else "no such file",
            remedy="Name a month of the files, or fetch the data set (the loader's docstring says where)",
        )
    return Workload(name=f"philly/{name}", jobs=tuple(_jobs(rows)))


def _submitted(row: Row) -> datetime:
    try:
        text = _TIMESTAMP.fullmatch(row.fields["timestamp"])
        return datetime.fromisoformat(text[0] if text else "").replace(tzinfo=UTC)
    except ValueError:
        raise row.wrong("timestamp", "no time", "Write it as 2017-10-09 07:01:55") from None


def _jobs(rows: list[tuple[datetime, Row]]) -> Iterator[Job]:
    request = cache(lambda gpus: DeviceRequest.parse(f"gpu:{gpus}"))
    start = rows[0][0]
    for at, row in rows:
        gpus = row.integer("num_gpus", 1, MAX_COUNT)
        yield Job(
            id=f"{row.file.partition('.')[0]}-{row.line}",
            arrival_s=(at - start).total_seconds(),
            request=request(gpus),
            work=row.number("duration", least=1e-3),
            task=f"x{gpus}",
            group=row.text("cluster"),
        )
