"""The engine for one machine: Airflow's LocalExecutor, wrapped.

All knowledge of LocalExecutor's queues and keys sits here, since Airflow 3.4 changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecuteTask
from airflow.utils.net import get_hostname

from hetero_airflow.engines.engine import EngineTraits, LeasedProcess, Liveness
from hetero_airflow.engines.processes import GroupLeader, lease_processes, signal_processes
from hetero_airflow.engines.wrapped_executor import WrappedExecutor
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

NAME = "local"


class LocalEngine(WrappedExecutor):
    """Runs what it is given on this host."""

    traits = EngineTraits(is_local=True, serve_logs=True, supports_callbacks=True, supports_connection_test=True)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(LocalExecutor(parallelism, team_name))
        self._host = get_hostname()
        self._leaders: dict[str, psutil.Process] = {}
        """Lease id → its task's process, once that was found: from then on no clock that is set forward hides it."""

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed here; it starts at the next `heartbeat`."""
        self.hand_over_unplaced(workload)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that was held; it starts at the next `heartbeat`."""
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

    def open_slots(self) -> int:
        """How many workloads would start at once: LocalExecutor itself would take any number into its pipe."""
        executor = self.executor
        busy = sum(not title.endswith(b"<idle>") for title in self._titles())
        waiting = executor._unread_messages.value + len(executor.queued_tasks) + len(executor.queued_callbacks)
        return max(0, int(executor.parallelism) - busy - int(waiting))

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker is this host: LocalExecutor runs what it gets here and nowhere else."""
        return worker.engine == NAME and worker.id == self._host

    def look(self, uses: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, by one scan of this host's processes."""
        alive = self.processes({use.lease.id: (use.pid, use.seen_at) for use in uses})
        return {use.lease.id: Liveness.ALIVE if use.lease.id in alive else self._absent(use) for use in uses}

    def _absent(self, use: LeasedProcess) -> Liveness:
        """Of a lease that no process here has.

        Our LocalExecutor tells of ours; of a scheduler that died, worker processes may live on and begin what they had.
        """
        is_far = bool(use.hostname) and use.hostname != self._host
        may_start = use.state == "queued" and (not use.is_ours or self.has_in_hand(use.lease.request_id))
        return Liveness.UNKNOWN if is_far or may_start else Liveness.GONE

    def has_in_hand(self, task_instance_id: str) -> bool:
        """Whether a workload may still start: it waits in the pipe, or a worker process says that it has it."""
        if self.executor._unread_messages.value > 0 or self.executor.queued_tasks:
            return True
        return any(task_instance_id.encode() in title for title in self._titles())

    def _titles(self) -> Iterator[bytes]:
        """What LocalExecutor's worker processes say they do; one that is just starting says nothing of it yet."""
        for pid in list(self.executor.workers):
            with suppress(OSError):
                yield Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")

    @property
    def occupied_slots(self) -> int:
        """Workloads that LocalExecutor counts as its own."""
        return int(self.executor.slots_occupied)

    def processes(self, leases: Mapping[str, tuple[int | None, datetime | None]]) -> dict[str, list[int]]:
        """Lease id → pids of its processes on this host, for leases given as id → (pid of the task, when last seen)."""
        found = lease_processes({id_: self._leader(id_, *leader) for id_, leader in leases.items()})
        self._leaders = {id_: process for id_, process in self._leaders.items() if process.is_running()}
        for id_, pids in found.items():
            pid = leases[id_][0]
            if pid in pids and (id_ not in self._leaders or self._leaders[id_].pid != pid):
                with suppress(psutil.Error):
                    self._leaders[id_] = psutil.Process(pid)
        return found

    def signal(self, use: LeasedProcess, number: int) -> None:
        """Send a signal to the processes of a lease on this host."""
        signal_processes(use.lease.id, self._leader(use.lease.id, use.pid, use.seen_at), number)

    def _leader(self, lease_id: str, pid: int | None, seen_at: datetime | None) -> GroupLeader:
        known = self._leaders.get(lease_id)
        is_it = known is not None and known.pid == pid and known.is_running()
        return pid, None if is_it else seen_at

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Wait for the running tasks, then stop the worker processes; what ended meanwhile."""
        self.executor.end()
        return dict(self.executor.get_event_buffer())
