"""The executor, as Airflow's scheduler sees it. Device tasks go through the dispatcher, all others to the engine."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.callbacks.callback_requests import TaskCallbackRequest
from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor, get_execution_api_server_url
from airflow.executors.workloads import ExecuteTask
from airflow.models.log import Log
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from hetero_airflow.clock import Clock
from hetero_airflow.contract.envelope import is_device_task, unpack_request
from hetero_airflow.contract.executor_names import COORDINATOR_MODULE
from hetero_airflow.contract.placement_check import is_placement_check
from hetero_airflow.engines.end_watch import EndWatch
from hetero_airflow.engines.engine import AirflowEngine, EngineContext
from hetero_airflow.errors import RequestError, StoreUnavailable
from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_api.workload_token import renew_token
from hetero_airflow.executor.airflow_db.audit_log import explain_failure
from hetero_airflow.executor.airflow_db.device_pool import ensure_pool
from hetero_airflow.executor.airflow_db.forked_connections import close_in_children
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.build import Outside, make_dispatcher
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.configuration import EngineTrait, configured_engine, read_configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run import Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.stopping import LocalStop, ignore_later_signals
from hetero_airflow.executor.store_key import start_recording
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.model.lease import Lease
from hetero_airflow.policies import load_policy
from hetero_airflow.settings import AUDIT_EVENT
from hetero_airflow.store.sql.airflow_database import airflow_engine
from hetero_airflow.store.sql.worker_keys import grant_signer

if TYPE_CHECKING:
    from hetero_airflow.engines.local import ReportPipe

_MAX_NOTES = 1000

_MAX_ROUND_S = 5.0
"""So long the scheduler's transaction waits for the round of another thread."""


class HeteroExecutor(BaseExecutor):
    """Keeps device tasks until they are placed, then hands them to an existing engine.

    Configure it as ``[core] executor = hetero_airflow.executor.HeteroExecutor``, alone or beside others.
    """

    is_local = EngineTrait()
    supports_multi_team = False
    """Devices, leases and the queue belong to the installation, not to a team: it is an executor of all teams."""
    serve_logs = EngineTrait()
    supports_callbacks = EngineTrait()
    supports_connection_test = EngineTrait()
    pre_assigns_external_executor_id = EngineTrait()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock: Clock = Clock()
        self._notes: deque[Any] = deque(maxlen=_MAX_NOTES)
        self._runs = Runs()
        self._revoked: list[Any] = []
        self._silent: list[Any] = []
        """What the scheduler said since the last heartbeat, in the middle of a transaction: it must not wait then."""
        self._ends: deque[tuple[Any, Any, Any]] = deque()
        """The events that the scheduler has not fetched yet: key, state, information."""
        self._round = Lock()
        """Held while tasks are placed, started or ended: the scheduler's loop and `EndWatch` take turns."""
        self._starts_threads = False
        self._end_watch = EndWatch(self._react_to_ends)
        self._engine: AirflowEngine = configured_engine()(self.parallelism, self.team_name)

    def start(self) -> None:
        """Open the store and start the engine.

        :raises SettingsError: an option of [hetero] that can't be read
        :raises StoreUnavailable: the database can't be reached, or `airflow db migrate` was not run
        """
        import_module(COORDINATOR_MODULE)  # the engine's worker processes inherit it by fork
        configuration = read_configuration()
        ensure_pool(configuration.pool)
        close_in_children(airflow_engine())
        store = CachedSnapshotStore(airflow_engine())
        store.snapshot()  # fails early, with a clear error
        signer = grant_signer(airflow_engine())
        api = ExecutionApiWatch.of_server(
            get_execution_api_server_url(self.conf),
            self._clock,
            is_local=self._engine.traits.is_local,
            last_heartbeat=store.server_heartbeat,
        )
        callbacks = SchedulerCallbacks(self._report, self._note, partial(renew_token, self.jwt_generator))
        outside = Outside(
            store, self._engine, TaskInstances(), DagEdges(store.connect), api, callbacks, self._clock, signer
        )
        queued_timeout_s = conf.getfloat("scheduler", "task_queued_timeout")
        policy = load_policy(configuration.policy)
        self._use(make_dispatcher(configuration, policy, self._runs, outside, queued_timeout_s))
        self._engine.start(
            EngineContext(self.job_id, self.callback_sink, self.name, store.heartbeats, store.workers, signer)
        )
        self._key_recording = start_recording(signer.public_key)
        self._starts_threads = True
        if self._engine.host is not None:
            ignore_later_signals()

    def _use(self, dispatcher: Dispatcher) -> None:
        self._dispatcher, self._store = dispatcher, dispatcher.store
        self._commands, self._runs = dispatcher.commands, dispatcher.runs

    def _start_threads(self) -> None:
        """Start the threads, once. The executors beside this one have forked their processes by now.

        A process that is forked while another thread imports a module may wait forever for the lock of that import.
        """
        if not self._starts_threads:
            return
        self._starts_threads = False
        if self._engine.cluster is not None:
            self._engine.cluster.watch()
        self._dispatcher.api.start()
        self._end_watch.start(self._engine.prompt_ends)

    # -- a heartbeat ---------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """One round of the scheduler's loop: place waiting tasks, start them, and process the tasks that have ended.

        New tasks are placed before the engine reports ended ones, so that they do not wait for the report.
        """
        self._start_threads()
        with self._round:
            self._emit_metrics(self.slots_available, len(self._runs.leased), len(self._runs.queued))  # type: ignore[no-untyped-call]
            self._store.invalidate()  # read the tables once in this heartbeat
            now = self._clock.now()
            self._take_messages(now)
            self._dispatcher.place_tasks(now)  # run a cycle: it gives devices to tasks, and the tasks to the engine
            self._engine.heartbeat()  # the engine starts them
            is_any_over = self._process_ends(self._engine.collect(), now)
            if is_any_over or self._dispatcher.has_new_requests():  # free devices go to the next task at once
                self._dispatcher.place_tasks(now)
                self._engine.heartbeat()
            self._dispatcher.maintain(now)  # renew leases, find lost tasks, keep records

    def _react_to_ends(self, ends: "ReportPipe") -> None:
        """Between two heartbeats: give the devices of ended tasks to the next ones. `EndWatch` calls it."""
        with self._round:
            now = self._clock.now()
            if self._process_ends(self._engine.collect(), now):
                self._store.invalidate()
                self._dispatcher.hand_on_devices(now)
                ends.start_handed_over()

    def _take_messages(self, now: datetime) -> None:
        """Act on what the scheduler said since the last heartbeat."""
        for key in self._revoked:
            self._dispatcher.revoke(key, now)
        self._revoked.clear()
        sent = self._runs.sent if self._dispatcher.api.outage is None else {}
        silent = (self._runs.leased.get(key) or sent.get(key) for key in self._silent)
        self._commands.apply([(run, events.HeartbeatLost()) for run in silent if run is not None], now)
        self._silent.clear()
        for run in list(self._runs.arrived.values()):
            self._read(run, now)

    def _read(self, run: Run, now: datetime) -> None:
        """Find out what a task that has arrived asks for. One whose request can't be read fails."""
        workload = run.workload
        assert workload is not None
        try:
            requested = unpack_request(workload.ti.executor_config, workload.ti.map_index)
        except RequestError as error:
            self._commands.apply([(run, events.Failed(str(error)))], now)
            return
        task = None if requested is None else PendingTask(workload, requested, now)
        self._commands.apply([(run, events.Read(task, is_check=is_placement_check(workload.ti.executor_config)))], now)

    def _process_ends(self, reports: Mapping[Any, tuple[Any, Any]], now: datetime) -> bool:
        """Handle the states that the engine reports. Returns whether a lease is over.

        Those of tasks that are not known here go to Airflow.
        """
        foreign, is_any_over = self._dispatcher.take_reports(reports, now)
        self._ends += ((key, *report) for key, report in foreign.items())
        return is_any_over

    # -- what Airflow's scheduler says and asks ------------------------------------------------------------------------

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Keep a device task; pass everything else to the engine. Runs inside the scheduler's transaction."""
        if not isinstance(workload, ExecuteTask):
            self._engine.accept(workload, session)
        elif is_device_task(workload.ti.executor_config) or workload.key in self._revoked:
            self._runs.arrive(workload.key, str(workload.ti.id), workload)  # after the revocations
        elif self._dispatcher.api.outage is not None:
            self._runs.hold(workload)
        else:
            self._runs.note_sent(workload.key, str(workload.ti.id), workload, self._clock.now())
            self._engine.accept(workload, session)

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:
        """Take over a task's state. The scheduler calls this for a running task whose heartbeats stopped.

        Such a task counts as lost: the recovery rules decide whether it runs again with the same try.
        """
        if state == TaskInstanceState.FAILED and self._is_kept(key):
            self._silent.append(key)
        else:
            self._engine.forget(key)
            super().change_state(key, state, info, remove_running)

    def _is_kept(self, key: Any) -> bool:
        """Whether a run of the task goes on here, or is given up and not decided yet.

        A cluster reports itself how the pods of tasks without a lease end.
        """
        is_unleased = key in self._runs.sent or key in self._runs.given_up
        return key in self._runs.leased or (is_unleased and self._engine.cluster is None)

    def send_callback(self, request: Any) -> None:
        """Let the DAG processor run a callback. The scheduler calls this before it says that a heartbeat stopped.

        Such a task has not failed yet. If the recovery rules let it fail, the scheduler sends the callback again. A
        task that was stuck in the queue has failed, and was revoked before.
        """
        key = _key_of(request.ti) if isinstance(request, TaskCallbackRequest) else None
        if key is None or key in self._revoked or not self._is_kept(key):
            super().send_callback(request)

    def get_event_buffer(self, dag_ids: Any = None) -> dict[Any, tuple[Any, Any]]:
        """The ends of tasks since the last call."""
        while self._ends:
            super().change_state(*self._ends.popleft())
        return super().get_event_buffer(dag_ids)

    def get_task_log(self, ti: Any, try_number: int) -> tuple[list[str], list[str]]:
        """The log of a running task, if only its cluster has it."""
        if self._engine.cluster is not None:
            return self._engine.cluster.executor.get_task_log(ti, try_number)
        return super().get_task_log(ti, try_number)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the task waits or runs here. If so, an end event of an earlier run is stale."""
        return task_instance.key in self._runs or self._engine.has_task(task_instance)

    def revoke_task(self, *, ti: Any) -> None:
        """Forget a task that Airflow found stuck in the queue."""
        self._runs.arrived.pop(ti.key, None)
        self._revoked.append(ti.key)

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Take over tasks of a scheduler that died. Returns those that can't be taken over.

        The scheduler calls this in a transaction, for which the round of another thread may wait. After a late
        heartbeat it offers tasks of this executor, which need no round.

        :raises OperationalError: the round takes too long. Airflow ends the transaction, and tries again
        """
        self._start_threads()  # a cluster is asked for the pods
        if all(map(self._is_own, tis)):
            return []
        if not self._round.acquire(timeout=_MAX_ROUND_S):
            raise OperationalError("adoption of tasks", None, TimeoutError("a round takes too long"))
        try:
            return self._adopt([ti for ti in tis if not self._is_own(ti)])
        finally:
            self._round.release()

    def _is_own(self, ti: Any) -> bool:
        """Whether this executor has the task. The engine knows about tasks that run without a lease."""
        if not is_device_task(ti.executor_config) or is_placement_check(ti.executor_config):
            return ti.key in self._runs or self._engine.is_busy_with(ti)
        is_kept = ti.key in self._runs.leased and ti.key not in self._runs.queued
        is_later_run = is_kept and ti.state == TaskInstanceState.QUEUED and ti.queued_by_job_id != self.job_id
        return ti.key in self._runs and not is_later_run

    def _adopt(self, tis: Sequence[Any]) -> list[Any]:
        self._store.invalidate()
        try:
            leases = {lease.request_id: lease for lease in self._store.snapshot().leases}
        except StoreUnavailable as error:
            # Airflow tries again after the driver's errors, not after ours
            raise error.__cause__ or error from None
        running, to_engine = [], []
        for ti in tis:
            lease = leases.get(str(ti.id))
            if not self._adopt_one(ti, lease):
                to_engine.append(ti)
            elif lease is not None and ti.key in self._runs.leased:
                running.append(ti)
        self._engine.try_adopt(running)  # if the engine can't follow them, `Watched` finds out when they end
        refused = {ti.key for ti in self._engine.try_adopt(to_engine)}
        return [ti for ti in to_engine if not self._follow_plain(ti, is_refused=ti.key in refused)]

    def _follow_plain(self, ti: Any, *, is_refused: bool) -> bool:
        """Follow a task that needs no lease from now on, with the same try. Returns whether it is taken over.

        A running one tells Airflow itself how it goes on, and Airflow misses the heartbeat of one that is lost. A
        queued one that the engine can't follow is sent again. If it has begun meanwhile, Airflow lets no second begin.
        """
        needs_lease = is_device_task(ti.executor_config) and not is_placement_check(ti.executor_config)
        if needs_lease or ti.state not in (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING):
            return not is_refused
        is_queued, id_ = ti.state == TaskInstanceState.QUEUED, str(ti.id)
        workload = ExecuteTask.make(ti, generator=self.jwt_generator) if is_queued else None
        if is_queued and is_refused:
            self._runs.arrive(ti.key, id_, workload)
        else:
            self._runs.note_sent(ti.key, id_, workload, self._clock.now())
        return True

    def _adopt_one(self, ti: Any, lease: Lease | None) -> bool:
        """Take over one task: it is queued again, followed, or left to the engine. Returns whether it was taken over.

        :param lease: its live lease
        """
        requests_device, now = is_device_task(ti.executor_config), self._clock.now()
        if ti.state == TaskInstanceState.QUEUED and requests_device:
            workload = ExecuteTask.make(ti, generator=self.jwt_generator)
            self._read(self._runs.arrive(ti.key, str(ti.id), workload), now)  # it waits until its lease is over
            return True
        if lease is not None and not self._engine.traits.is_local and not self._commands.reaches(lease.worker_id):
            return False  # another executor ran it
        last = lease
        if last is None and requests_device:
            last = self._dispatcher.observer.last_lease(ti.key, str(ti.id))
        if last is not None:
            run = self._runs.arrive(ti.key, str(ti.id), None)
            self._commands.apply([(run, events.Adopted(last, is_live=lease is not None))], now)
        return last is not None

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self._engine.fail_connection_test(key)

    @property
    def slots_occupied(self) -> int:
        """Workloads that run or wait for a free process. A waiting device task takes no slot."""
        return int(self._engine.occupied_slots) + len(self._runs.held) + len(self._runs.leased)

    @property
    def slots_available(self) -> int:
        """How many more workloads may be queued here."""
        return int(self.parallelism) - self.slots_occupied

    def debug_dump(self) -> None:
        """Log which tasks wait and which run. A signal handler calls it: it waits for no round."""
        self.log.info("Waiting: %s", [str(key) for key in list(self._runs.queued)])
        self.log.info("Running: %s", {str(key): run.held_lease.id for key, run in list(self._runs.leased.items())})

    def end(self) -> None:
        """Stop. Tasks of this host save or end in the grace time; other engines leave theirs to the next scheduler."""
        self._end_watch.stop()
        if self._engine.host is not None:
            LocalStop(self._dispatcher, self._engine.host, self._take_reports).run()
        self._process_ends(self._engine.end(), self._clock.now())
        self._dispatcher.free_ended(self._clock.now())
        self._dispatcher.close()
        self._dispatcher.free_ended(self._clock.now())  # those whose end was not explained yet

    def _take_reports(self) -> None:
        self._process_ends(self._engine.collect(), self._clock.now())

    def terminate(self) -> None:
        """Stop without waiting."""
        self._end_watch.stop()
        self._dispatcher.close()
        self._engine.terminate()

    def _report(self, key: Any, state: Any, info: Any, is_noted: bool) -> None:
        if is_noted and info:
            explain_failure(key, info)
        self._ends.append((key, TaskInstanceState(state) if state else state, info))

    def _note(self, key: Any, text: str) -> None:
        record = Log(event=AUDIT_EVENT, extra=text, task_instance=key)
        self._task_event_logs.append(record)
        # Airflow hands them to SQLAlchemy one by one, which holds them weakly: without this they would be empty
        self._notes.append(record)


def _key_of(ti: Any) -> TaskInstanceKey:
    return TaskInstanceKey(
        ti.dag_id, ti.task_id, ti.run_id, ti.try_number, -1 if ti.map_index is None else ti.map_index
    )
