"""Microsoft's Philly traces: submission, duration, number of GPUs and virtual cluster of each job.

Published with "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (USENIX ATC 2019) at
https://github.com/msr-fiddle/philly-traces, CC BY 4.0. This loader reads the form into which others have filtered them,
``philly_<months>.csv`` (or ``.csv.gz``): timestamp (``2017-10-09 07:01:55``), duration in seconds, num_gpus, gpu_time,
cluster. The publisher does not name the GPUs, and the filtered files do not tell how many a node has, so a trace has no
workers.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.model.devices.names import MAX_COUNT
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.traces.files import Row, csv_rows, trace_folder
from hetero_airflow.simulator.workload import Job, Workload

_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_MONTH = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def load(name: str, traces: Path | None) -> Workload:
    """The jobs that were submitted in one month (``2017-10``), sorted by time, from second 0 on.

    The files are not sorted; jobs of the same second keep the order of their lines. The data has no ids, so the id is
    the name of the file and the line; two equal lines are two jobs.

    :raises TraceError: there is no such month, or a file is wrong
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
