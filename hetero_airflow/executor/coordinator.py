"""Our hand on the worker: binds devices before the DAG file is parsed, and lets no orphan live.

Airflow calls it for every engine when ``[sdk] queue_to_coordinator`` maps the queue of device tasks
to it. Without it the operator binds the devices, after the DAG file was parsed, and a task whose
supervisor dies lives on until the executor finds it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from contextlib import nullcontext
from typing import Any

from airflow.sdk.execution_time.coordinator import BaseCoordinator
from airflow.sdk.execution_time.supervisor import ActivitySubprocess, _subprocess_main

from hetero_airflow.engines.processes import end_processes
from hetero_airflow.executor.carrier import unload_lease
from hetero_airflow.runtime.visible_devices import bound

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_GRACE_S = 5.0
"""What processes that outlive their task get between SIGTERM and SIGKILL."""


class DeviceCoordinator(BaseCoordinator):
    """Runs a task as Airflow does, within its lease."""

    def execute_task(
        self,
        *,
        what: Any,
        dag_rel_path: Any,
        bundle_info: Any,
        client: Any,
        logger: Any = None,
        sentry_integration: str = "",
        subprocess_logs_to_stdout: bool,
        **kwargs: Any,
    ) -> BaseCoordinator.ExecutionResult:
        """Fork the task's process with its devices bound, wait for it, and end what it left behind."""
        lease = unload_lease(what.context_carrier)
        with bound(lease) if lease else nullcontext():
            process = ActivitySubprocess.start(
                what=what,
                dag_rel_path=dag_rel_path,
                bundle_info=bundle_info,
                client=client,
                logger=logger,
                sentry_integration=sentry_integration,
                subprocess_logs_to_stdout=subprocess_logs_to_stdout,
                target=functools.partial(_run_until_parent_dies, os.getpid()),
            )
            exit_code = process.wait()
        left = end_processes(lease.id, (process.pid, None), _GRACE_S) if lease else []
        if left and logger:
            logger.warning("Processes outlived the task and were stopped, to free its devices", pids=left)
        return self.ExecutionResult(exit_code, process.final_state)


def _run_until_parent_dies(parent: int) -> None:
    """The task's process: dies with its supervisor, so that no orphan keeps a device."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    _subprocess_main()
