"""Takes over the tasks of a scheduler that died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import OperationalError

from hetero_airflow.contract.envelope import is_device_task
from hetero_airflow.contract.placement_check import is_placement_check
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.model.lease import Lease

_MAX_ROUND_S = 5.0
"""So long the scheduler's transaction waits for the round of another thread."""


@dataclass(frozen=True)
class Adoption:
    """Decides for each task whether it is queued again, followed, or left to the engine.

    :param job_id: the id of this scheduler's job in Airflow
    :param has_task: whether a task with that key waits or runs here
    :param queue: lets a task instance wait here
    :param round: held while this executor's tasks change
    """

    store: CachedSnapshotStore
    dispatcher: Dispatcher
    engine: AirflowEngine
    job_id: Callable[[], Any]
    has_task: Callable[[Any], bool]
    queue: Callable[[Any], None]
    round: Lock

    def adopt(self, tis: Sequence[Any]) -> list[Any]:
        """Take over task instances. Returns those that can't be taken over.

        The scheduler calls this in a transaction, for which the round of another thread may wait. After a late
        heartbeat it offers tasks of this executor, which need no round.

        :raises OperationalError: the round takes too long. Airflow ends the transaction, and tries again
        """
        if all(map(self._is_own, tis)):
            return []
        if not self.round.acquire(timeout=_MAX_ROUND_S):
            raise OperationalError("adoption of tasks", None, TimeoutError("a round takes too long"))
        try:
            return self._adopt([ti for ti in tis if not self._is_own(ti)])
        finally:
            self.round.release()

    def _is_own(self, ti: Any) -> bool:
        """Whether this executor has the task. The engine knows about tasks that run without a lease."""
        if not is_device_task(ti.executor_config) or is_placement_check(ti.executor_config):
            return self.has_task(ti.key) or self.engine.is_busy_with(ti)
        return self.has_task(ti.key) and not self._is_later_run(ti)

    def _is_later_run(self, ti: Any) -> bool:
        """Whether another scheduler has queued a task again whose earlier run is kept here."""
        is_kept = ti.key in self.dispatcher.keeper.running and ti.key not in self.dispatcher.queue.tasks
        return is_kept and ti.state == TaskInstanceState.QUEUED and ti.queued_by_job_id != self.job_id()

    def _adopt(self, tis: Sequence[Any]) -> list[Any]:
        self.store.invalidate()
        try:
            leases = {lease.request_id: lease for lease in self.store.snapshot().leases}
        except StoreUnavailable as error:
            # Airflow tries again after the driver's errors, not after ours
            raise error.__cause__ or error from None
        running, to_engine = [], []
        for ti in tis:
            lease = leases.get(str(ti.id))
            if not self._adopt_one(ti, lease):
                to_engine.append(ti)
            elif lease is not None and ti.key in self.dispatcher.keeper.running:
                running.append(ti)
        self.engine.try_adopt(running)  # if the engine can't follow them, the keeper finds out when they end
        return list(self.engine.try_adopt(to_engine))

    def _adopt_one(self, ti: Any, lease: Lease | None) -> bool:
        """Take over one device task. Returns whether that was possible.

        :param lease: its live lease
        """
        dispatcher = self.dispatcher
        requests_device = is_device_task(ti.executor_config)
        if ti.state == TaskInstanceState.QUEUED and requests_device:
            self.queue(ti)  # it waits here until its lease is over, also if that is on a host out of reach
            return True
        if lease is not None and not self.engine.traits.is_local and not dispatcher.starter.reaches(lease.worker_id):
            return False  # another executor ran it
        if lease is not None:
            dispatcher.starter.follow(ti.key, lease)
            return True
        last = dispatcher.lease_events.last_lease(ti.key, str(ti.id)) if requests_device else None
        if last is not None:  # a cycle took the lease back: the task is lost, before Airflow missed its scheduler
            dispatcher.keeper.begin(ti.key, last)
        return last is not None
