"""The executor, as Airflow's scheduler sees it. Device tasks go through the dispatcher, all others to the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor, get_execution_api_server_url
from airflow.executors.workloads import ExecuteTask
from airflow.models.log import Log
from airflow.utils.state import TaskInstanceState
from sqlalchemy.orm import Session

from hetero_airflow.clock import Clock, SystemClock
from hetero_airflow.contract.envelope import is_device_task, unpack_request
from hetero_airflow.contract.executor_names import COORDINATOR_MODULE
from hetero_airflow.contract.placement_check import is_placement_check
from hetero_airflow.engines.end_watch import EndWatch
from hetero_airflow.engines.engine import AirflowEngine, EngineContext, PromptEnds
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_api.workload_token import renew_token
from hetero_airflow.executor.airflow_db.device_pool import ensure_pool
from hetero_airflow.executor.airflow_db.forked_connections import close_in_children
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.configuration import EngineTrait, configured_engine, read_configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.leases.adoption import Adoption
from hetero_airflow.executor.leases.end_reports import EndReports
from hetero_airflow.executor.store_key import start_recording
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.policies import load_policy
from hetero_airflow.store.sql.airflow_database import airflow_engine
from hetero_airflow.store.sql.grant_key import grant_signer

_MAX_NOTES = 1000


class HeteroExecutor(BaseExecutor):
    """Keeps device tasks until they are placed, then hands them to an existing engine.

    Configure it as ``[core] executor = hetero_airflow.executor.HeteroExecutor``, alone or beside others.
    """

    is_local = EngineTrait()
    serve_logs = EngineTrait()
    supports_callbacks = EngineTrait()
    supports_connection_test = EngineTrait()
    pre_assigns_external_executor_id = EngineTrait()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock: Clock = SystemClock()
        self._notes: deque[Any] = deque(maxlen=_MAX_NOTES)
        self._arrived: dict[Any, ExecuteTask] = {}
        self._revoked: list[Any] = []
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
        self._use(
            store,
            Dispatcher(
                configuration,
                store,
                load_policy(configuration.policy),
                self._engine,
                tasks=TaskInstances(),
                edges=DagEdges(),
                api=ExecutionApiWatch.of_server(
                    get_execution_api_server_url(self.conf),
                    self._clock,
                    is_local=self._engine.traits.is_local,
                    last_heartbeat=store.server_heartbeat,
                ),
                callbacks=SchedulerCallbacks(self._report, self._note, partial(renew_token, self.jwt_generator)),
                clock=self._clock,
                queued_timeout_s=conf.getfloat("scheduler", "task_queued_timeout"),
                signer=signer,
            ),
        )
        workers = self._dispatcher.workers.current
        self._engine.start(EngineContext(self.job_id, self.callback_sink, self.name, store.heartbeats, workers, signer))
        self._key_recording = start_recording(signer.public_key)
        self._starts_threads = True

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

    def _use(self, store: CachedSnapshotStore, dispatcher: Dispatcher) -> None:
        self._store, self._dispatcher = store, dispatcher
        self._queue, self._checks, self._keeper = dispatcher.queue, dispatcher.checks, dispatcher.keeper
        self._reports = EndReports(dispatcher.keeper, self._engine)
        self._unleased = dispatcher.unleased
        self._adoption = Adoption(
            store, dispatcher, self._engine, lambda: self.job_id, self._has, self._queue_again, self._round
        )

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Keep a device task; pass everything else to the engine. Runs inside the scheduler's transaction."""
        is_task = isinstance(workload, ExecuteTask)
        if is_task and (is_device_task(workload.ti.executor_config) or workload.key in self._revoked):
            self._arrived[workload.key] = workload  # after the revocations
        else:
            self._unleased.accept(workload, session)

    def heartbeat(self) -> None:
        """One round of the scheduler's loop: place waiting tasks, start them, and process the tasks that have ended.

        New tasks are placed before the engine reports ended ones, so that they do not wait for the report.
        """
        self._start_threads()
        with self._round:
            self._emit_metrics(self.slots_available, len(self._keeper.running), len(self._queue.tasks))  # type: ignore[no-untyped-call]
            self._store.invalidate()  # read the tables once in this heartbeat
            now = self._clock.now()
            self._take_messages()
            self._dispatcher.place_tasks(now)  # run a cycle: it gives devices to tasks, and the tasks to the engine
            self._engine.heartbeat()  # the engine starts them
            is_any_over = self._process_ends(self._engine.collect())
            if is_any_over or self._dispatcher.has_new_requests():  # free devices go to the next task at once
                self._dispatcher.place_tasks(now)
                self._engine.heartbeat()
            self._dispatcher.maintain(now)  # renew leases, find lost tasks, keep records

    def _react_to_ends(self, ends: PromptEnds) -> None:
        """Between two heartbeats: give the devices of ended tasks to the next ones. `EndWatch` calls it."""
        with self._round:
            if self._process_ends(self._engine.collect()):
                self._store.invalidate()
                self._dispatcher.hand_on_devices(self._clock.now())
                ends.start_handed_over()

    def _take_messages(self) -> None:
        """Act on what the scheduler said since the last heartbeat."""
        for key in self._revoked:
            self._dispatcher.drop(key, "Airflow revoked it")
            if self._engine.withdraw(key):
                self._keeper.end(key, "Airflow revoked it")
        self._revoked.clear()
        for workload in self._arrived.values():
            self._add_to_queue(workload)
        self._arrived.clear()

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:
        """Take over a task's state. The scheduler calls this for a running task whose heartbeats stopped.

        Such a task counts as lost: the recovery rules decide whether it runs again with the same try.
        """
        if state != TaskInstanceState.FAILED or not self._keeper.mark_heartbeat_lost(key):
            super().change_state(key, state, info, remove_running)

    def get_event_buffer(self, dag_ids: Any = None) -> dict[Any, tuple[Any, Any]]:
        """The ends of tasks since the last call."""
        while self._ends:
            super().change_state(*self._ends.popleft())
        return super().get_event_buffer(dag_ids)

    def get_task_log(self, ti: Any, try_number: int) -> tuple[list[str], list[str]]:
        """The log of a running task, if only its cluster has it."""
        if self._engine.cluster is not None:
            return self._engine.cluster.task_log(ti, try_number)
        return super().get_task_log(ti, try_number)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the task waits or runs here. If so, an end event of an earlier run is stale."""
        return self._has(task_instance.key) or self._engine.has_task(task_instance)

    def revoke_task(self, *, ti: Any) -> None:
        """Forget a task that Airflow found stuck in the queue."""
        self._arrived.pop(ti.key, None)
        self._revoked.append(ti.key)

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Take over device tasks of a scheduler that died. Returns those that can't be taken over."""
        self._start_threads()  # a cluster is asked for the pods
        return self._adoption.adopt(tis)

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self._engine.fail_connection_test(key)

    @property
    def slots_occupied(self) -> int:
        """Workloads that run or wait for a free process. A waiting device task takes no slot."""
        return int(self._engine.occupied_slots) + len(self._unleased.waiting) + len(self._keeper.running)

    @property
    def slots_available(self) -> int:
        """How many more workloads may be queued here."""
        return int(self.parallelism) - self.slots_occupied

    def debug_dump(self) -> None:
        """Log which tasks wait and which run. A signal handler calls it: it waits for no round."""
        self.log.info("Waiting: %s", [str(key) for key in list(self._queue.tasks)])
        self.log.info("Running: %s", {str(key): task.lease.id for key, task in list(self._keeper.running.items())})

    def end(self) -> None:
        """Wait for the running tasks, then free their devices."""
        self._end_watch.stop()
        self._process_ends(self._engine.end())
        self._dispatcher.lease_events.free_ended(self._clock.now())
        self._dispatcher.close()
        self._dispatcher.lease_events.free_ended(self._clock.now())  # those whose end was not explained yet

    def terminate(self) -> None:
        """Stop without waiting."""
        self._end_watch.stop()
        self._dispatcher.close()
        self._engine.terminate()

    def _has(self, key: Any) -> bool:
        waiting = self._arrived, self._queue.tasks, self._checks.tasks, self._unleased.waiting
        return key in self._keeper.running or any(key in tasks for tasks in waiting)

    def _queue_again(self, ti: Any) -> None:
        self._add_to_queue(ExecuteTask.make(ti, generator=self.jwt_generator))

    def _add_to_queue(self, workload: ExecuteTask) -> None:
        """Keep a task that has arrived. One whose request can't be read fails."""
        config = workload.ti.executor_config
        try:
            requested = unpack_request(config, workload.ti.map_index)
        except RequestError as error:
            self._report(workload.key, "failed", str(error))
            return
        if requested is None:  # Airflow revoked it and queued it again
            self._unleased.waiting[workload.key] = workload
            return
        (self._checks if is_placement_check(config) else self._queue).add(workload, requested, self._clock.now())

    def _process_ends(self, events: Mapping[Any, tuple[Any, Any]]) -> bool:
        """Pass on the states that the engine reports. Returns whether a lease is over.

        The end of a task that waits here again, or is about to, is not passed on: Airflow would take it for the end of
        the coming run.
        """
        is_any_over = False
        for key, (state, info) in (self._reports.denied() | dict(events)).items():
            is_end = state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)
            if key not in self._keeper.running:
                if not (is_end and (self._reports.is_late(key) or self._unleased.keep_again(key, state))):
                    self._ends.append((key, state, info))
            elif self._dispatcher.lease_events.keep_again(self._reports.failed_start(key, state), self._clock.now()):
                is_any_over = True
            elif is_end and self._reports.is_over(key, (state, info)):
                is_queued = key in self._arrived or key in self._queue.tasks
                runs_again = is_queued or self._reports.is_to_run_again(key)
                self._reports.end(key)
                is_any_over = True
                if not runs_again:
                    self._ends.append((key, state, info))
            elif state == TaskInstanceState.QUEUED:  # with its id in the engine, by which another scheduler adopts it
                self._ends.append((key, state, info))
        return is_any_over

    def _report(self, key: Any, state: str, reason: str | None) -> None:
        if reason:
            self._note(key, reason)
        self._ends.append((key, TaskInstanceState(state), reason))

    def _note(self, key: Any, text: str) -> None:
        record = Log(event="hetero_airflow", extra=text, task_instance=key)
        self._task_event_logs.append(record)
        # Airflow hands them to SQLAlchemy one by one, which holds them weakly: without this they would be empty
        self._notes.append(record)
