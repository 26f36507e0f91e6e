"""The engine for one machine: Airflow's LocalExecutor, wrapped.

All knowledge of LocalExecutor's queues and keys sits here, since Airflow 3.4 changes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecuteTask
from airflow.utils.net import get_hostname
from sqlalchemy.orm import Session

from hetero_airflow.engines.processes import lease_processes, signal_processes


class LocalEngine:
    """Runs what it is given on this host."""

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        self.executor = LocalExecutor(parallelism, team_name)
        self._host = get_hostname()

    def start(self, job_id: Any, callback_sink: Any, name: Any) -> None:
        """Start LocalExecutor's worker processes."""
        self.executor.job_id = job_id
        self.executor.callback_sink = callback_sink
        self.executor.name = name
        self.executor.start()

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device, exactly as LocalExecutor alone would."""
        self.executor.queue_workload(workload, session)

    def hand_over(self, workload: ExecuteTask) -> None:
        """Take a device task that was placed; it starts at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task that was not yet given to a worker process; whether it was still there."""
        return self.executor.queued_tasks.pop(key, None) is not None

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call."""
        self.executor.sync()
        return dict(self.executor.get_event_buffer())

    def heartbeat(self) -> None:
        """Give what was taken to the worker processes."""
        self.executor.heartbeat()

    def has_task(self, task_instance: Any) -> bool:
        """Whether LocalExecutor still holds the task."""
        return bool(self.executor.has_task(task_instance))

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Those of another scheduler's tasks that LocalExecutor can't take over: all."""
        return self.executor.try_adopt_task_instances(task_instances)

    @property
    def occupied(self) -> int:
        """Workloads that LocalExecutor counts as its own."""
        return int(self.executor.slots_occupied)

    def processes(self, leases: Mapping[str, tuple[int | None, datetime | None]]) -> dict[str, list[int]]:
        """Lease id → pids of its processes on this host, for leases given as id → (pid of the task, its start)."""
        return lease_processes(leases)

    def signal(self, lease_id: str, pid: int | None, started_at: datetime | None, number: int) -> None:
        """Send a signal to the processes of a lease on this host."""
        signal_processes(lease_id, (pid, started_at), number)

    def is_local(self, hostname: str) -> bool:
        """Whether a task that ran on this host name is within reach."""
        return bool(hostname == self._host)

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Wait for the running tasks, then stop the worker processes; what ended meanwhile."""
        self.executor.end()
        return dict(self.executor.get_event_buffer())

    def terminate(self) -> None:
        """Stop without waiting."""
        self.executor.terminate()
