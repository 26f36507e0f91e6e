"""The executor, as Airflow's scheduler sees it. Device tasks go through the dispatcher, all others to the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.workloads import ExecuteTask
from airflow.models.pool import Pool
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hetero_airflow.clock import Clock, SystemClock
from hetero_airflow.contract.envelope import ENVELOPE_KEY, unpack_request
from hetero_airflow.contract.placement_check import is_placement_check
from hetero_airflow.contract.selection import COORDINATOR_MODULE
from hetero_airflow.engines.engine import AirflowEngine, EngineContext
from hetero_airflow.errors import RequestError, StoreUnavailable
from hetero_airflow.executor.airflow_db.forked_connections import close_in_children
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.configuration import EngineTrait, configured_engine, read_configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.model.lease import Lease
from hetero_airflow.policies import load_policy
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
        self._engine: AirflowEngine = configured_engine()(self.parallelism, self.team_name)

    def start(self) -> None:
        """Open the store and start the engine.

        :raises SettingsError: an option of [hetero] that can't be read
        :raises StoreUnavailable: the database can't be reached, or `airflow db migrate` was not run
        """
        import_module(COORDINATOR_MODULE)  # the engine's worker processes inherit it by fork
        configuration = read_configuration()
        _ensure_pool(configuration.pool)
        close_in_children(_airflow_database())
        store = CachedSnapshotStore(_airflow_database())
        store.snapshot()  # fails early, with a clear error
        self._use(
            store,
            Dispatcher(
                configuration,
                store,
                load_policy(configuration.policy),
                self._engine,
                tasks=TaskInstances(),
                edges=DagEdges(),
                callbacks=SchedulerCallbacks(self._report, self._note, self._renew_token),
                clock=self._clock,
                queued_timeout_s=conf.getfloat("scheduler", "task_queued_timeout"),
                signer=grant_signer(_airflow_database()),
            ),
        )
        workers = self._dispatcher.workers.current
        self._engine.start(EngineContext(self.job_id, self.callback_sink, self.name, store.heartbeats, workers))

    def _use(self, store: CachedSnapshotStore, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._queue, self._checks, self._keeper = dispatcher.queue, dispatcher.checks, dispatcher.keeper
        self._reports = dispatcher.reports

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Keep a device task; pass everything else to the engine. Runs inside the scheduler's transaction."""
        if not (isinstance(workload, ExecuteTask) and self._add_to_queue(workload)):
            self._engine.accept(workload, session)

    def heartbeat(self) -> None:
        """One round of the scheduler's loop: place waiting tasks, start them, and process the tasks that have ended.

        New tasks are placed before the engine reports ended ones, so that they do not wait for the report.
        """
        self._emit_metrics(self.slots_available, len(self._keeper.running), len(self._queue.tasks))  # type: ignore[no-untyped-call]
        self._store.invalidate()  # read the tables once in this heartbeat
        now = self._clock.now()
        self._dispatcher.place_tasks(now)  # run a cycle: it gives free devices to tasks, and the tasks to the engine
        self._engine.heartbeat()  # the engine starts them
        is_any_over = self._process_ends(self._engine.collect())
        if is_any_over or self._dispatcher.has_new_requests():  # free devices go to the next task at once
            self._dispatcher.place_tasks(now)
            self._engine.heartbeat()
        self._dispatcher.maintain(now)  # renew leases, find lost tasks, keep records

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:
        """Take over a task's state. The scheduler calls this for a running task whose heartbeats stopped.

        Such a task counts as lost: the recovery rules decide whether it runs again with the same try.
        """
        if state == TaskInstanceState.FAILED and key in self._keeper.running:
            self._keeper.mark_heartbeat_lost(key)
        else:
            super().change_state(key, state, info, remove_running)

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
        self._dispatcher.drop(ti.key, "Airflow revoked it")
        if self._engine.withdraw(ti.key):
            self._keeper.end(ti.key, "Airflow revoked it")

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Take over device tasks of a scheduler that died. Returns those that can't be taken over."""
        self._store.invalidate()
        try:
            leases = {lease.request_id: lease for lease in self._store.snapshot().leases}
        except StoreUnavailable as error:
            # Airflow tries again after the driver's errors, not after ours
            raise error.__cause__ or error from None
        running, to_engine = [], []
        # without our own tasks: Airflow offers them to us after a late heartbeat
        for ti in (ti for ti in tis if not self._has(ti.key)):
            lease = leases.get(str(ti.id))
            if not self._adopt(ti, lease):
                to_engine.append(ti)
            elif lease is not None and ti.key in self._keeper.running:
                running.append(ti)
        self._engine.try_adopt(running)  # if the engine can't follow them, the keeper finds out when they end
        return list(self._engine.try_adopt(to_engine))

    def _adopt(self, ti: Any, lease: Lease | None) -> bool:
        """Take over one device task. Returns whether that was possible.

        :param lease: its live lease
        """
        if lease is not None and not self._dispatcher.starter.reaches(lease.worker_id):
            return False  # this scheduler can't see the host on which the task runs or starts
        is_device_task = ENVELOPE_KEY in (ti.executor_config or {})
        if ti.state == TaskInstanceState.QUEUED and is_device_task:
            self._add_to_queue(ExecuteTask.make(ti, generator=self.jwt_generator))
            return True
        if lease is not None:
            self._keeper.begin(ti.key, lease)
            if self._engine.cluster is not None:
                self._engine.cluster.follow(ti.key, lease)
            return True
        last = self._dispatcher.lease_events.last_lease(ti.key, str(ti.id)) if is_device_task else None
        if last is not None:  # a cycle took back the lease of the dead scheduler's task: the task is lost
            self._keeper.begin(ti.key, last)
        return last is not None

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self._engine.fail_connection_test(key)

    @property
    def slots_occupied(self) -> int:
        """Workloads that run or wait for a free process. A waiting device task takes no slot."""
        return int(self._engine.occupied_slots) + len(self._keeper.running)

    @property
    def slots_available(self) -> int:
        """How many more workloads may be queued here."""
        return int(self.parallelism) - self.slots_occupied

    def debug_dump(self) -> None:
        """Log which tasks wait and which run."""
        self.log.info("Waiting: %s", [str(key) for key in self._queue.tasks])
        self.log.info("Running: %s", {str(key): task.lease.id for key, task in self._keeper.running.items()})

    def end(self) -> None:
        """Wait for the running tasks, then free their devices."""
        self._process_ends(self._engine.end())
        self._dispatcher.close()
        now = self._clock.now()
        self._dispatcher.lease_events.handle(self._keeper.free_ended(now), now)

    def terminate(self) -> None:
        """Stop without waiting."""
        self._dispatcher.close()
        self._engine.terminate()

    def _has(self, key: Any) -> bool:
        return key in self._queue.tasks or key in self._checks.tasks or key in self._keeper.running

    def _add_to_queue(self, workload: ExecuteTask) -> bool:
        """Keep a workload that requests a device. Returns whether it requests one."""
        config = workload.ti.executor_config
        try:
            requested = unpack_request(config, workload.ti.map_index)
        except RequestError as error:
            self._report(workload.key, "failed", str(error))
            return True
        if requested is not None:
            queue = self._checks if is_placement_check(config) else self._queue
            queue.add(workload, requested, self._clock.now())
        return requested is not None

    def _process_ends(self, events: Mapping[Any, tuple[Any, Any]]) -> bool:
        """Pass on the states that the engine reports. Returns whether a lease is over.

        The end of a task that waits here again, or is about to, is not passed on: Airflow would take it for the end of
        the coming run.
        """
        is_any_over = False
        for key, (state, info) in (self._reports.denied() | dict(events)).items():
            is_end = state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)
            if key not in self._keeper.running:
                if not (is_end and self._reports.is_late(key)):
                    super().change_state(key, state, info)
            elif is_end and self._reports.is_over(key, (state, info)):
                runs_again = key in self._queue.tasks or self._reports.is_scheduled_again(key)
                self._reports.end(key)
                is_any_over = True
                if not runs_again:
                    super().change_state(key, state, info)
        return is_any_over

    def _report(self, key: Any, state: str, reason: str | None) -> None:
        if reason:
            self._note(key, reason)
        super().change_state(key, TaskInstanceState(state), reason)

    def _note(self, key: Any, text: str) -> None:
        self.log_task_event(event="hetero_airflow", extra=text, ti_key=key)
        # SQLAlchemy holds the events weakly until Airflow stores them: without this reference they would be empty
        self._notes.extend(self._task_event_logs)

    def _renew_token(self, workload: ExecuteTask, valid_s: float | None = None) -> None:
        """Give a task a new token. The first one may have expired in the queue, or a shorter life is wanted."""
        claims = {"sub": str(workload.ti.id), "scope": "workload"}
        limit_s = conf.getfloat("scheduler", "task_queued_timeout")
        workload.token = self.jwt_generator.generate(claims, valid_for=min(valid_s or limit_s, limit_s))


def _airflow_database() -> Any:
    from airflow import settings

    return settings.engine


def _ensure_pool(name: str) -> None:
    """Create the pool of device tasks. They need their own: a waiting device task is QUEUED and takes a slot."""
    pool = Pool(pool=name, slots=-1, description="Tasks that wait for or use devices", include_deferred=False)
    with suppress(IntegrityError), create_session(scoped=False) as session:  # another scheduler may be faster
        if session.scalar(select(Pool).where(Pool.pool == name)) is None:
            session.add(pool)
