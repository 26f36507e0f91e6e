"""Local runs: `dag.test()`, ``airflow dags test``, ``airflow tasks test`` and a DAG file that a debugger runs.

Airflow then runs the tasks one after the other, in the process that calls it, without a scheduler. A device task takes
a lease of this machine (`runtime/local_leases.py`).
"""

import os
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from airflow.configuration import get_airflow_home
from airflow.sdk import Context

from hetero_airflow.contract.envelope import unpack_request
from hetero_airflow.contract.rendering import render_arguments, run_context
from hetero_airflow.model.request import DeviceRequest

LOCAL_RUNS = "local_runs"
"""The folder in Airflow's home for the checkpoints of local runs."""


class LocalRunComms:
    """Base of what stands in for Airflow's connection to the supervisor in the child process of a local run."""


def is_local_run() -> bool:
    """Whether this process runs tasks in a local run, or is the process of one of its tasks."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    supervisor: Any = sys.modules.get("airflow.sdk.execution_time.supervisor")
    if runner is None or supervisor is None:
        return False
    connection = getattr(runner, "SUPERVISOR_COMMS", None)
    return isinstance(connection, (supervisor.InProcessSupervisorComms, LocalRunComms))


def requested(task: Any, context: Context) -> DeviceRequest:
    """The request of a device task, with its templates rendered as the scheduler does it.

    :raises RequestError: a template can't be rendered, or the rendered request is not valid
    """
    ti: Any = context["ti"]
    request = unpack_request(task.executor_config, -1 if ti.map_index is None else ti.map_index)
    if request is None or isinstance(request, DeviceRequest):
        assert request is not None, "a device operator has a request"
        return request
    run: Any = context["dag_run"]
    logical_date = run.logical_date and run.logical_date.astimezone(UTC)
    date = logical_date or run.run_after.astimezone(UTC)
    params: Any = context.get("params") or {}
    return render_arguments(
        request, run_context(ti.dag_id, ti.run_id, logical_date, date, dict(params), run.conf or {})
    )


@cache
def local_checkpoint_url() -> str:
    """The folder for the checkpoints of this local run. Its processes inherit it, so call it first where they start."""
    name = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{os.getpid()}"
    return (Path(get_airflow_home()).resolve() / LOCAL_RUNS / name).as_uri()
