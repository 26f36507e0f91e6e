"""Loaders of public traces, one a file. To add one: write ``traces/<name>.py`` and add a row to `TRACES`.

A name is ``<data set>/<trace>``; what the second part may be is said in the loader. Nothing of the data
sets comes with this package: put each into a folder of its name, and set HETERO_AIRFLOW_TRACES. The
streams of `generated` are made, not read.
"""

from __future__ import annotations

import re
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.registry import load
from hetero_airflow.simulator.workload import Workload

TRACES: dict[str, str] = {
    "generated": "hetero_airflow.simulator.traces.generated:load",
    "gavel": "hetero_airflow.simulator.traces.gavel:load",
    "muri": "hetero_airflow.simulator.traces.muri:load",
    "openb": "hetero_airflow.simulator.traces.openb:load",
    "philly": "hetero_airflow.simulator.traces.philly:load",
}
"""Data set → loader, a function of the trace's name and of the folder that was given, see `folder.trace_folder`."""

_NAME = re.compile(r"([a-z][a-z0-9_]{0,40})/([A-Za-z0-9][A-Za-z0-9._-]{0,80})")


def load_trace(name: str, folder: Path | None = None) -> Workload:
    """The workload that a name such as ``gavel/h300_seed0`` stands for.

    :param folder: with a folder for each data set in it; None is the one that HETERO_AIRFLOW_TRACES names
    :raises TraceError: the folder or file is missing, or the file can't be right
    :raises RegistryError: no such data set
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise TraceError(
            f"the trace {shorten(name)}", found="no name of a trace", remedy='Write it as "gavel/h300_seed0"'
        )
    loader = load("hetero_airflow.traces", TRACES, match[1])
    workload: Workload = loader(match[2], folder)
    return workload
