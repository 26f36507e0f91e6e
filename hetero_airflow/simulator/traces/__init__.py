"""Loaders of public traces, one in each file. To add one: write ``traces/<name>.py`` and add a row to `TRACES`.

A trace is named ``<data set>/<trace>``; the docstring of the loader describes the second part. This package contains no
data: put each data set into a folder of its name, and set HETERO_AIRFLOW_TRACES to the folder that holds them. The
streams of `generated` need no files.
"""

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
"""Data set → loader: a function of the trace's name and the given folder, see `files.trace_folder`."""

_NAME = re.compile(r"([a-z][a-z0-9_]{0,40})/([A-Za-z0-9][A-Za-z0-9._-]{0,80})")


def load_trace(name: str, folder: Path | None = None) -> Workload:
    """The workload of a name such as ``gavel/h300_seed0``.

    :param folder: holds a folder for each data set; None: the folder that HETERO_AIRFLOW_TRACES names
    :raises TraceError: the folder or file is missing, or the file is wrong
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
