"""Our hand on the worker: binds devices before the DAG file is parsed, and lets no orphan live.

Airflow calls it for every engine when ``[sdk] queue_to_coordinator`` maps the queue of device tasks
to it. Without it the operator binds the devices, after the DAG file was parsed, a task whose
supervisor dies lives on until the executor finds it, and one that is preempted is not asked to save first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk.api.datamodels._generated import TaskStateStoreResponse
from airflow.sdk.execution_time.coordinator import BaseCoordinator
from airflow.sdk.execution_time.supervisor import ActivitySubprocess, _subprocess_main

from hetero_airflow.engines.processes import end_processes
from hetero_airflow.executor.carrier import unload_lease
from hetero_airflow.executor.task_watch import TaskWatch
from hetero_airflow.runtime.visible_devices import bound
from hetero_airflow.settings import CONTROL_VARIABLE

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
        with bound(lease) if lease else nullcontext(), _control_folder() as folder:
            process = DeviceSupervisor.start(
                what=what,
                dag_rel_path=dag_rel_path,
                bundle_info=bundle_info,
                client=client,
                logger=logger,
                sentry_integration=sentry_integration,
                subprocess_logs_to_stdout=subprocess_logs_to_stdout,
                target=functools.partial(_run_until_parent_dies, os.getpid()),
            )
            if lease:
                process.look_after(lease.id, folder)
            exit_code = process.wait()
        left = end_processes(lease.id, (process.pid, None), _GRACE_S) if lease else []
        if left and logger:
            logger.warning("Processes outlived the task and were stopped, to free its devices", pids=left)
        return self.ExecutionResult(exit_code, process.final_state)


class DeviceSupervisor(ActivitySubprocess):
    """Airflow's supervisor of one task, which with each heartbeat also looks for a notice."""

    _watch: TaskWatch | None = None

    def look_after(self, lease_id: str, folder: Path) -> None:
        """From the next heartbeat on."""
        stop = functools.partial(self._signal_subprocess, signal.SIGTERM)
        self._watch = TaskWatch(lease_id, folder, _States(self.client, self.id), stop, self.process_log)

    def _send_heartbeat_if_needed(self) -> None:
        before = self._last_heartbeat_attempt
        super()._send_heartbeat_if_needed()  # type: ignore[no-untyped-call]
        if self._watch is not None and self._last_heartbeat_attempt != before:
            self._watch.beat(datetime.now(UTC))


class _States:
    """The task state store through the Execution API."""

    def __init__(self, client: Any, task_instance_id: Any) -> None:
        self._client = client
        self._id = task_instance_id

    def get(self, key: str) -> Any:
        """The JSON value of a key, None where there is none."""
        answer = self._client.task_state_store.get(self._id, key)
        return answer.value if isinstance(answer, TaskStateStoreResponse) else None

    def set(self, key: str, value: Any) -> None:
        """Write the JSON value of a key."""
        self._client.task_state_store.set(self._id, key, value, None)


@contextmanager
def _control_folder() -> Iterator[Path]:
    """A folder for the task and its supervisor, named in the environment while the task runs."""
    folder = Path(tempfile.mkdtemp(prefix="hetero-task-"))
    os.environ[CONTROL_VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        del os.environ[CONTROL_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def _run_until_parent_dies(parent: int) -> None:
    """The task's process: dies with its supervisor, so that no orphan keeps a device."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    _subprocess_main()
