"""The executor: what Airflow's scheduler sees. Device tasks go through the dispatcher, all others straight through."""

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
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.engine_choice import EngineTrait, configured_engine
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.policies import load_policy

_MAX_NOTES = 1000


class HeteroExecutor(BaseExecutor):
    """Holds device tasks until they are placed, then hands them to an engine that exists already.

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
        self._noted: deque[Any] = deque(maxlen=_MAX_NOTES)
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
        store, tasks = CachedSnapshotStore(_airflow_database()), TaskInstances()
        store.snapshot()  # fails now, and clearly, where it would fail later
        self._engine.start(
            EngineContext(
                self.job_id, self.callback_sink, self.name, store.heartbeats, lambda: self._dispatcher.workers()
            )
        )
        self._keeper = LeaseKeeper(
            store,
            self._engine,
            tasks=tasks,
            report=self._report,
            freed=lambda *told: self._dispatcher.freed(*told),
            lost=lambda *told: self._dispatcher.lost(*told),
            lease_timeout_s=configuration.lease_timeout_s,
        )
        self._dispatcher = Dispatcher(
            configuration,
            store,
            load_policy(configuration.policy),
            self._engine,
            self._keeper,
            tasks=tasks,
            edges=DagEdges(),
            report=self._report,
            note=self._note,
            renew_token=self._renew_token,
            queued_timeout_s=conf.getfloat("scheduler", "task_queued_timeout"),
        )
        self._store = store

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Hold a device task; pass everything else to the engine. Runs inside the scheduler's transaction."""
        if not (isinstance(workload, ExecuteTask) and self._take(workload)):
            self._engine.accept(workload, session)

    def heartbeat(self) -> None:
        """One round of everything: what is placed now, what the engine starts, what ended.

        What was just queued does not wait for the engine's answer about what runs; what ended is given on at once.
        """
        open_slots = self.slots_available
        self._emit_metrics(open_slots, len(self._keeper.running), len(self._dispatcher.held))  # type: ignore[no-untyped-call]
        self._store.invalidate()
        now = self._clock.now()
        self._dispatcher.decide(now)
        self._engine.heartbeat()
        if self._take_in(self._engine.collect()):
            self._dispatcher.decide(now)
            self._engine.heartbeat()
        self._dispatcher.settle(now)

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:
        """Take note of a task's state; the scheduler itself calls this for a task that it declares dead.

        Such a one is treated as any that is lost: by the recovery rules, and with the same try if they say so.
        """
        if state == TaskInstanceState.FAILED and key in self._keeper.running:
            self._keeper.mark_heartbeat_lost(key)
        else:
            super().change_state(key, state, info, remove_running)

    def get_task_log(self, ti: Any, try_number: int) -> tuple[list[str], list[str]]:
        """What a running task has written so far, where nobody but the cluster has it."""
        if self._engine.cluster is not None:
            return self._engine.cluster.task_log(ti, try_number)
        return super().get_task_log(ti, try_number)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the task is held or runs here, so that an end event of its past is stale."""
        return self._has(task_instance.key) or self._engine.has_task(task_instance)

    def revoke_task(self, *, ti: Any) -> None:
        """Let go of a task that Airflow found stuck in the queue."""
        self._dispatcher.drop(ti.key, "Airflow revoked it")
        if self._engine.withdraw(ti.key):
            self._keeper.end(ti.key, "Airflow revoked it")

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Take over device tasks of a scheduler that died; those that can't be are returned."""
        self._store.invalidate()
        try:
            leases = {lease.request_id: lease for lease in self._store.snapshot().leases}
        except StoreUnavailable as error:
            # Airflow tries again after the driver's errors, not after ours
            raise error.__cause__ or error from None
        running, others = [], []
        for ti in tis:
            if self._has(ti.key):
                continue  # ours already: a scheduler that was slow to heartbeat is asked to adopt its own tasks
            lease = leases.get(str(ti.id))
            if lease is not None and not self._dispatcher.reaches(lease.worker_id):
                others.append(ti)  # what it has begun, or may begin, is on a host that we can't see
            elif ti.state == TaskInstanceState.QUEUED and ENVELOPE_KEY in (ti.executor_config or {}):
                self._take(ExecuteTask.make(ti, generator=self.jwt_generator))
            elif lease is not None:
                self._keeper.begin(ti.key, lease)
                if self._engine.cluster is not None:
                    self._engine.cluster.follow(ti.key, lease)
                running.append(ti)
            elif ENVELOPE_KEY in (ti.executor_config or {}) and (
                last := self._dispatcher.last_lease(ti.key, str(ti.id))
            ):
                self._keeper.begin(ti.key, last)  # a cycle took it back: lost, before Airflow missed its scheduler
            else:
                others.append(ti)
        self._engine.try_adopt(running)  # where the engine can't follow them, the keeper finds out when they end
        return list(self._engine.try_adopt(others))

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self._engine.fail_connection_test(key)

    @property
    def slots_occupied(self) -> int:
        """Workloads that run or wait for a free process. Held ones take none, or they would stop all others."""
        return int(self._engine.occupied_slots) + len(self._keeper.running)

    @property
    def slots_available(self) -> int:
        """How many more workloads may be queued here."""
        return int(self.parallelism) - self.slots_occupied

    def debug_dump(self) -> None:
        """Log what is held and what runs."""
        self.log.info("Held: %s", [str(held.workload.key) for held in self._dispatcher.held.values()])
        self.log.info("Running: %s", {str(key): task.lease.id for key, task in self._keeper.running.items()})

    def end(self) -> None:
        """Wait for the running tasks, then free what they held."""
        self._take_in(self._engine.end())
        self._dispatcher.close()
        self._keeper.free_ended(self._clock.now())

    def terminate(self) -> None:
        """Stop without waiting."""
        self._dispatcher.close()
        self._engine.terminate()

    def _has(self, key: Any) -> bool:
        return key in self._dispatcher.held or key in self._dispatcher.probes.held or key in self._keeper.running

    def _take(self, workload: ExecuteTask) -> bool:
        """Hold a workload that asks for a device; whether it does."""
        try:
            asked = unpack_request(workload.ti.executor_config, workload.ti.map_index)
        except RequestError as error:
            self._report(workload.key, "failed", str(error))
            return True
        if asked is not None:
            desk = self._dispatcher.probes if is_placement_check(workload.ti.executor_config) else self._dispatcher
            desk.hold(workload, asked, self._clock.now())
        return asked is not None

    def _take_in(self, events: Mapping[Any, tuple[Any, Any]]) -> bool:
        """What the engine reports; whether a lease is over. The end of a task that is held again is no news."""
        is_over = False
        for key, (state, info) in events.items():
            if key not in self._keeper.running:
                super().change_state(key, state, info)
            elif state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                has_failed = state == TaskInstanceState.FAILED
                if (has_failed and self._keeper.is_lost(key)) or self._keeper.survives(key, failed=has_failed):
                    continue
                is_told = key in self._dispatcher.held or self._keeper.is_scheduled_again(key)
                self._keeper.end(key, "the task ended")
                is_over = True
                if not is_told:
                    super().change_state(key, state, info)
        return is_over

    def _report(self, key: Any, state: str, reason: str | None) -> None:
        if reason:
            self._note(key, reason)
        super().change_state(key, TaskInstanceState(state), reason)

    def _note(self, key: Any, text: str) -> None:
        self.log_task_event(event="hetero_airflow", extra=text, ti_key=key)
        # Airflow hands them to SQLAlchemy one by one, which holds them weakly: without this they would be empty
        self._noted.extend(self._task_event_logs)

    def _renew_token(self, workload: ExecuteTask, valid_s: float | None = None) -> None:
        """A held task may have outlived the token that it was queued with, or has to begin before something."""
        claims = {"sub": str(workload.ti.id), "scope": "workload"}
        limit_s = conf.getfloat("scheduler", "task_queued_timeout")
        workload.token = self.jwt_generator.generate(claims, valid_for=min(valid_s or limit_s, limit_s))


def _airflow_database() -> Any:
    from airflow import settings

    return settings.engine


def _ensure_pool(name: str) -> None:
    """Device tasks have a pool of their own: a held task is QUEUED and would eat slots of any other."""
    pool = Pool(pool=name, slots=-1, description="Tasks that wait for or use devices", include_deferred=False)
    with suppress(IntegrityError), create_session(scoped=False) as session:  # another scheduler may be faster
        if session.scalar(select(Pool).where(Pool.pool == name)) is None:
            session.add(pool)
