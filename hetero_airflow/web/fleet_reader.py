"""Reads the store for all routes. Readings and estimates are kept for some seconds and serve all readers."""

import threading
from collections.abc import Callable
from datetime import datetime
from functools import cached_property, partial

from airflow.models.taskinstancekey import TaskInstanceKey
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.contract.progress import Progress
from hetero_airflow.contract.state_keys import PROGRESS, LeaseProgress
from hetero_airflow.executor.airflow_db.state_store import CALL_LIMIT_S, StateCalls, read_states
from hetero_airflow.executor.explanation.live_snapshot import LiveSnapshots
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.scheduling.advice.wanted_workers import WantedWorkers, wanted_workers
from hetero_airflow.store.sql.store import SqlStore

READINGS_S = 3
"""Readings of devices reach the page at most this many seconds late. Until then, they alone do not change an answer.

The store has them when they are 0.6 s old, and until they are 6 s old if their probe takes 0.1 s."""


class FleetReader:
    """The store of one process, opened when the first reader asks."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._readings: tuple[int, dict[tuple[str, str], Telemetry]] = (0, {})
        self._wanted: tuple[Snapshot, WantedWorkers] | None = None
        self._states = StateCalls()

    @cached_property
    def store(self) -> SqlStore:
        """The plugin's store."""
        return SqlStore(self.engine())

    @cached_property
    def _live(self) -> LiveSnapshots:
        return LiveSnapshots(self.store)

    def snapshot_with_estimates(self) -> Snapshot:
        """The newest snapshot with what the scheduler adds to it.

        :raises StoreUnavailable: the database is down
        """
        with self._lock:
            return self._live.read()

    def snapshot_for_decisions(self) -> Snapshot:
        """The snapshot on which the scheduler would decide.

        :raises StoreUnavailable: the database is down
        """
        with self._lock:
            return self._live.read_for_decisions()

    def readings(self, now: datetime) -> dict[tuple[str, str], Telemetry]:
        """(worker id, device id) → a reading that is at most `READINGS_S` older than the newest."""
        period = readings_period(now)
        with self._lock:
            if self._readings[0] != period:
                self._readings = period, self.store.telemetry()
            return self._readings[1]

    def wanted_workers(self, snapshot: Snapshot) -> WantedWorkers:
        """The workers that would let all waiting requests start now; computed once for each snapshot."""
        with self._lock:
            if self._wanted is None or self._wanted[0] is not snapshot:
                self._wanted = snapshot, wanted_workers(snapshot)
            return self._wanted[1]

    def progress(self, pending: PendingRequest, lease_id: str | None) -> Progress | None:
        """What the task last reported under a lease; None if it reported nothing, or if it can't be read.

        The state backend can be a service, which may raise any error; the tab does without the progress then.
        """
        if lease_id is None:
            return None
        key = TaskInstanceKey(
            pending.dag_id, pending.task_id, pending.run_id, pending.try_number, map_index=pending.map_index
        )
        answer = self._states.ask(object(), partial(read_states, [key], PROGRESS))
        try:
            texts = answer.result(CALL_LIMIT_S)
            report = LeaseProgress.model_validate_json(texts[key]) if key in texts else None
        except (SQLAlchemyError, OSError, ValueError, RuntimeError):
            return None
        return report.progress if report is not None and report.lease_id == lease_id else None


def readings_period(now: datetime) -> int:
    """The number of the period in which readings are not read again."""
    return int(now.timestamp() // READINGS_S)
