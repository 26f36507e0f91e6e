"""The engine for one host: Airflow's LocalExecutor.

Only this module, `host_executor` and `preloaded_executor` know LocalExecutor's queues and keys, because Airflow 3.4
changes them.
"""

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from airflow.configuration import conf
from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecuteTask
from airflow.utils.net import get_hostname
from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.notice import Notice, give_notice
from hetero_airflow.contract.progress import Progress, read_progress
from hetero_airflow.engines.engine import AirflowEngine, EngineContext, EngineTraits, LeasedProcess, Liveness
from hetero_airflow.engines.host.lease_files import LeaseFile, recorded_run, recorded_runs
from hetero_airflow.engines.host.processes import (
    LeaseRoot,
    descendants,
    is_zombie,
    lease_processes,
    signal_pids,
    signal_processes,
)
from hetero_airflow.engines.host_executor import HostExecutor
from hetero_airflow.engines.preload import preload_setting
from hetero_airflow.engines.preloaded_executor import PreloadedExecutor
from hetero_airflow.model.grant import START_TIMEOUT_S, START_WINDOW
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker, WorkerState

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from sqlalchemy.orm import Session

NAME = "local"

_END_S = 2.0
"""How long a worker process without a task may take to end."""

_END_SIGNALS = 4
"""The second one ends a supervisor whose task has ended."""


class ReportPipe:
    """The pipe through which LocalExecutor's worker processes report that a task has ended."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.handed_over: list[Any] = []
        """Keys of device tasks that no worker process has yet; some may have been withdrawn."""
        self._executor = executor

    @property
    def readable(self) -> "Connection":
        """Readable while a report waits."""
        return self._executor.result_queue._reader  # type: ignore[attr-defined,no-any-return]

    def start_handed_over(self) -> None:
        """Give the device tasks that were handed over to the worker processes.

        The scheduler may add plain workloads meanwhile, so nothing here goes through all that are queued.
        """
        queued = (self._executor.queued_tasks.get(key) for key in self.handed_over)
        self._executor._process_workloads([workload for workload in queued if workload is not None])
        self.handed_over.clear()


class LocalEngine(AirflowEngine):
    """Runs tasks on this host."""

    traits = EngineTraits(
        is_local=True,
        serve_logs=True,
        supports_callbacks=True,
        supports_connection_test=True,
        start_timeout_s=START_TIMEOUT_S,
    )

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        modules = preload_setting()
        super().__init__(
            PreloadedExecutor(parallelism, team_name, modules) if modules else HostExecutor(parallelism, team_name)  # type: ignore[no-untyped-call]
        )
        self.host = self
        self.prompt_ends = self._reports = ReportPipe(self.executor)
        self._host = get_hostname()
        self._task_timeout = timedelta(seconds=conf.getfloat("scheduler", "task_instance_heartbeat_timeout"))
        self._workers: Callable[[], Mapping[str, Worker]] = dict
        self._unleased: dict[Any, str] = {}
        """Key → task instance id, of tasks without a lease that were handed over and whose end was not reported.

        A worker process that is killed reports nothing, so its task is still listed.
        """
        self._leaders: dict[str, psutil.Process] = {}
        """Lease id → its task's process, once found. Then a clock that is set forward can't hide it."""

    def start(self, context: EngineContext) -> None:
        """Start the executor."""
        self._workers = context.workers
        super().start(context)

    def accept(self, workload: Any, session: "Session") -> None:
        """Take a workload that asks for no device."""
        if isinstance(workload, ExecuteTask):
            self._unleased[workload.key] = str(workload.ti.id)
        super().accept(workload, session)

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed here; it starts at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload
        self._reports.handed_over.append(workload.key)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that waited; it starts at the next `heartbeat`."""
        self._unleased[workload.key] = str(workload.ti.id)
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task that no worker process has yet. Returns whether it was still here."""
        self._unleased.pop(key, None)
        return self.executor.queued_tasks.pop(key, None) is not None

    def forget(self, key: Any) -> None:
        """Count a task no longer whose process is lost. LocalExecutor itself counts none that it has started."""
        self._unleased.pop(key, None)

    def is_busy_with(self, task_instance: Any) -> bool:
        """Whether a task without a lease waits here for a worker process, or has one.

        LocalExecutor's `has_task` does not know the tasks that it has started. A RUNNING task whose worker process was
        killed is not here any more. A QUEUED one is, until Airflow revokes it after `task_queued_timeout`: a worker
        process may have just taken it, and not put it into its title yet.
        """
        id_ = str(task_instance.id)
        is_handed_over = self._unleased.get(task_instance.key) == id_
        return (is_handed_over and task_instance.state == TaskInstanceState.QUEUED) or self._has_process(id_)

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call."""
        self.executor.sync()
        return self._take_events()

    def _take_events(self) -> dict[Any, tuple[Any, Any]]:
        events = dict(self.executor.get_event_buffer())
        for key, (state, _) in events.items():
            if state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                self._unleased.pop(key, None)
        return events

    def heartbeat(self) -> None:
        """Give the tasks that were handed over to the worker processes."""
        self._reports.handed_over.clear()
        self.executor.heartbeat()

    def open_slots(self) -> int:
        """How many workloads would start at once. LocalExecutor itself takes any number into its pipe."""
        executor = self.executor
        busy = sum(not title.endswith(b"<idle>") for title in self._titles())
        waiting = executor._unread_messages.value + len(executor.queued_tasks) + len(executor.queued_callbacks)
        return max(0, int(executor.parallelism) - busy - int(waiting))

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker is this host, the only one where LocalExecutor runs tasks."""
        return worker.engine == NAME and worker.id == self._host

    def liveness_of(self, processes: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs. Scans this host's processes only if a recorded one has ended."""
        leases = {process.lease.id: process for process in processes}
        alive = {id_ for id_, run in recorded_runs(leases).items() if run.is_active or run.needs_check}
        unrecorded = [process for id_, process in leases.items() if id_ not in alive]
        alive |= self.processes(
            {process.lease.id: (self._pid_here(process), process.seen_at) for process in unrecorded}
        ).keys()
        alive |= {id_ for id_, run in recorded_runs(leases.keys() - alive).items() if run.is_starting}
        return {
            id_: Liveness.ALIVE if id_ in alive else self._liveness_without_process(process)
            for id_, process in leases.items()
        }

    def _liveness_without_process(self, process: LeasedProcess) -> Liveness:
        """The liveness of a lease that has no process here, and none that is about to start."""
        is_unknown = (self._is_far(process) or self._may_start(process)) and not self._is_abandoned(process)
        return Liveness.UNKNOWN if is_unknown else Liveness.GONE

    def _may_start(self, process: LeasedProcess) -> bool:
        """Whether the task may be about to start.

        Our LocalExecutor reports on its own tasks. The worker processes of a scheduler that died may live on and start
        the tasks that they had, but not after the start timeout. A scheduler on another host can't see them.
        """
        if process.state != "queued":
            return False
        if process.is_ours:
            return self.has_in_hand(process.lease.request_id)
        is_on_this_host = process.lease.worker_id == self._host
        return not is_on_this_host or datetime.now(UTC) < process.lease.expires_at + START_WINDOW

    def _is_abandoned(self, process: LeasedProcess) -> bool:
        """Whether the lease was another host's, whose scheduler is lost and whose task Airflow takes for lost too.

        So it is after a container was restarted under a new name. The new one can't see the processes of the old one.
        """
        worker = self._workers().get(process.lease.worker_id)
        is_lost = worker is not None and worker.id != self._host and worker.state is WorkerState.LOST
        silent_since = process.seen_at or process.lease.granted_at
        return is_lost and datetime.now(UTC) - silent_since > self._task_timeout

    def has_in_hand(self, task_instance_id: str) -> bool:
        """Whether a workload may still start: it waits in the pipe, or a worker process has it."""
        if self.executor._unread_messages.value > 0 or self.executor.queued_tasks:
            return True
        return self._has_process(task_instance_id)

    def _has_process(self, task_instance_id: str) -> bool:
        """Whether a worker process has the task."""
        return any(task_instance_id.encode() in title for title in self._titles())

    def _titles(self) -> Iterator[bytes]:
        """The process titles of LocalExecutor's workers, which name their tasks. A new process has none yet."""
        for pid in list(self.executor.workers):
            with suppress(OSError):
                yield Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")

    @property
    def occupied_slots(self) -> int:
        """Workloads that LocalExecutor counts as its own."""
        return int(self.executor.slots_occupied)

    def processes(self, leases: Mapping[str, tuple[int | None, datetime | None]]) -> dict[str, list[int]]:
        """Lease id → pids of its processes on this host.

        :param leases: lease id → pid of the process that Airflow knows, and its last heartbeat. They count only if no
            process is recorded for the lease: the task may run again under another one
        """
        if not leases:
            return {}
        runs = recorded_runs(leases)
        roots = {id_: self._root(id_, runs.get(id_), *leader) for id_, leader in leases.items()}
        pids_of = lease_processes(roots)
        self._leaders = {id_: process for id_, process in self._leaders.items() if process.is_running()}
        for id_, pids in pids_of.items():
            pid = roots[id_].leader
            if pid in pids and (id_ not in self._leaders or self._leaders[id_].pid != pid):
                with suppress(psutil.Error):
                    self._leaders[id_] = psutil.Process(pid)
        return pids_of

    def signal(self, process: LeasedProcess, number: int) -> None:
        """Send a signal to the processes of a lease on this host."""
        id_ = process.lease.id
        signal_processes(id_, self._root(id_, recorded_run(id_), self._pid_here(process), process.seen_at), number)

    def _pid_here(self, process: LeasedProcess) -> int | None:
        """The pid that Airflow knows; None if it is one of another host, where it may be that of another process."""
        return None if self._is_far(process) else process.pid

    def _is_far(self, process: LeasedProcess) -> bool:
        """Whether Airflow has the process on another host. The row of a task that has not begun may name no host."""
        return bool(process.hostname) and process.hostname != self._host

    def _root(self, lease_id: str, run: LeaseFile | None, pid: int | None, seen_at: datetime | None) -> LeaseRoot:
        if run is not None and run.task is not None:
            return run.root
        leader = self._leaders.get(lease_id)
        is_same = leader is not None and leader.pid == pid and leader.is_running()
        return LeaseRoot(pid, None if is_same else seen_at)

    def tell(self, lease_id: str, notice: Notice) -> None:
        """Ask the task of a lease to save and end, if it runs here."""
        run = recorded_run(lease_id)
        if run is not None and run.control is not None:
            with suppress(OSError):  # the folder goes when the task ends
                give_notice(run.control, notice)

    # -- the end of the scheduler --------------------------------------------------------------------------------------

    def take_back(self) -> list[Any]:
        """Start no task from now on. Returns the keys of those that no worker process has."""
        self._reports.handed_over.clear()
        keys = [workload.key for workload in self.executor.take_back()]
        for key in keys:
            self._unleased.pop(key, None)
        return keys

    def has_run(self, task_instance_id: str, lease_id: str | None) -> bool:
        """Whether a run of a task goes on here, or is about to begin, or has its end to report."""
        run = recorded_run(lease_id) if lease_id is not None else None
        return (run is not None and run.is_running) or self._has_process(task_instance_id)

    def progress(self, lease_id: str) -> Progress | None:
        """The progress of the task of a lease, if it runs here and reports any."""
        run = recorded_run(lease_id)
        if run is None or run.control is None or run.task is None or not run.task.is_running:
            return None
        return read_progress(run.control)

    def terminate_tasks(self) -> None:
        """Send SIGTERM to the worker processes, which pass it on to their tasks. One whose task has ended ends, too."""
        signal_pids(self._working(), signal.SIGTERM)

    def has_callbacks(self, task_instance_ids: Collection[str]) -> bool:
        """Whether a worker process has anything but one of these tasks, such as a callback."""
        titles = [title for title in self._titles() if title and not title.endswith(b"<idle>")]
        return any(not any(id_.encode() in title for id_ in task_instance_ids) for title in titles)

    def has_processes(self) -> bool:
        """Whether a task of a worker process has processes. Without any, there is only its end to report."""
        return any(not is_zombie(child) for pid in self._working() for child in descendants(pid))

    def _working(self) -> list[int]:
        return [pid for pid, process in self.executor.workers.items() if process.is_alive()]

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Stop the worker processes, with the tasks that they still have. Returns the tasks that ended meanwhile."""
        events = self.collect()
        for _ in range(_END_SIGNALS):
            self.terminate_tasks()
            until = time.monotonic() + _END_S / _END_SIGNALS
            while (working := self._working()) and time.monotonic() < until:
                wait([self.executor.workers[pid].sentinel for pid in working], until - time.monotonic())
        for pid in self._working():
            signal_pids([*descendants(pid), pid], signal.SIGKILL)
        self.executor.end()
        return events | self._take_events()
