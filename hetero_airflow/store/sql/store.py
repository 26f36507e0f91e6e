"""`SqlStore`, the store in Airflow's metadata database: SQLite or PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import lru_cache
from threading import Lock

from sqlalchemy import Connection, Engine, select

from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.devices.health import DeviceHealth
from hetero_airflow.model.heartbeat import ServerHeartbeat, WorkerHeartbeat
from hetero_airflow.model.host_data import HostData
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Plan, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import EndedRun, MeasuredSpeed, ServiceRecord
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.store import tables
from hetero_airflow.store.codec import LEASES, READINGS
from hetero_airflow.store.snapshot_builder import SnapshotBuilder
from hetero_airflow.store.sql.events import record_events
from hetero_airflow.store.sql.holds import HEALTH
from hetero_airflow.store.sql.leases import move_leases, renew_leases
from hetero_airflow.store.sql.plan_commit import PlacementConflict, PlanCommit, WaitDigests, read_newest_decisions
from hetero_airflow.store.sql.presence import read_server_heartbeat
from hetero_airflow.store.sql.pruning import forget_by_name, prune
from hetero_airflow.store.sql.queue import change_queue
from hetero_airflow.store.sql.reads import apply_changes, drop_deleted, read_request_history, read_runs, read_service
from hetero_airflow.store.sql.speeds import LeaseSpeed, add_speeds, read_speeds
from hetero_airflow.store.sql.transaction import WriteTransaction, read_state, read_transaction, write_transaction
from hetero_airflow.store.store import CommitResult, LeaseMove, QueueChange, RequestHistory, StoreEvent

_SEEN = tables.telemetry.c


class SqlStore:
    """A `Store` in a SQL database, with its history, the heartbeats of workers, and the speeds that tasks report.

    Several processes and threads may use one.

    It opens its own connections, so it does not touch the caller's sessions. On SQLite the caller must not have an
    open transaction that has written, since a file has one writer.

    :param engine: of a database that `airflow db migrate` has prepared; in Airflow, `airflow.settings.engine`
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read_request = lru_cache(maxsize=4096)(DeviceRequest.model_validate_json)
        self._read_data = lru_cache(maxsize=1024)(HostData.model_validate_json)
        self._digests = WaitDigests()
        self._builder: SnapshotBuilder | None = None
        self._sequence = 0
        self._indexed: tuple[tuple[Worker, ...], Mapping[str, Worker]] = ((), {})
        self._lock = Lock()

    def connect(self) -> AbstractContextManager[Connection]:
        """A connection for reading tables of Airflow's own."""
        return read_transaction(self._engine)

    def _write(self) -> AbstractContextManager[WriteTransaction]:
        return write_transaction(self._engine)

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Record the events in order."""
        if events:
            with self._write() as transaction:
                record_events(transaction, events, now)

    def snapshot(self) -> Snapshot:
        """The current state. Reads only what changed since the last call: one small query if nothing did."""
        with self._lock, read_transaction(self._engine) as connection:
            sequence, pruned = read_state(self._engine, connection)
            if self._builder is None or sequence < self._sequence:
                self._builder, self._sequence = SnapshotBuilder(), 0
            if sequence != self._sequence:
                apply_changes(connection, self._builder, self._sequence, self._read_request)
                if self._sequence < pruned:
                    drop_deleted(connection, self._builder)
                self._sequence = sequence
            return self._builder.snapshot(sequence)

    def workers(self) -> Mapping[str, Worker]:
        """Worker id → worker. A new index is made only when the workers change."""
        workers = self.snapshot().workers
        if workers is not self._indexed[0]:
            self._indexed = workers, {worker.id: worker for worker in workers}
        return self._indexed[1]

    def worker(self, worker_id: str) -> Worker:
        """A worker as it was last seen. Only for an unknown one the tables are read: a commit has just changed them."""
        return self._indexed[1].get(worker_id) or self.workers()[worker_id]

    def commit(
        self, plan: Plan, now: datetime, expires_at: datetime, events: Sequence[StoreEvent] = ()
    ) -> CommitResult:
        """Grant the placements of a plan and store every decision; writes nothing if nothing is new. See the port."""
        digests = self._digests.of(plan)
        if not events and all(isinstance(decision, Wait) for decision in plan.decisions):
            with read_transaction(self._engine) as connection:
                newest = read_newest_decisions(connection, plan.decisions)
            if all(stored.digest == digests[request_id] for request_id, stored in newest.items()):
                return CommitResult()

        def write(*, can_grant: bool) -> CommitResult:
            with self._write() as transaction:
                record_events(transaction, events, now)
                return PlanCommit(transaction, now, expires_at, digests, can_grant=can_grant).commit(plan)

        try:
            return write(can_grant=True)
        except PlacementConflict:
            return write(can_grant=False)

    def renew(self, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
        """Extend leases, given as (lease id, token); returns the ids that are no longer held with that token.

        A granted or expired lease becomes active; a preempted one stays preempted.
        """
        if not holds:
            return frozenset()
        with self._write() as transaction:
            return renew_leases(transaction, holds, expires_at)

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; returns the result of each move, in order; see the port."""
        if not moves:
            return ()
        with self._write() as transaction:
            return move_leases(transaction, moves, now)

    def request_history(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> RequestHistory | None:
        """The newest request of a task instance, or None if it never had one."""
        with read_transaction(self._engine) as connection:
            return read_request_history(connection, (dag_id, run_id, task_id, map_index), self._read_request)

    def telemetry(self) -> dict[tuple[str, str], Telemetry]:
        """(worker id, device id) → last reading."""
        with read_transaction(self._engine) as connection:
            rows = connection.execute(select(_SEEN.worker_id, _SEEN.readings)).all()
        return {(row.worker_id, r.device_id): r for row in rows for r in READINGS.validate_json(row.readings)}

    def host_data(self) -> dict[str, HostData]:
        """Worker id → what its host's data cache holds, for the workers whose hosts have said it."""
        query = select(_SEEN.worker_id, _SEEN.data).where(_SEEN.data.is_not(None))
        with read_transaction(self._engine) as connection:
            rows = connection.execute(query).all()
        return {row.worker_id: self._read_data(row.data) for row in rows}

    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """(worker id, device id) → what is remembered of its errors; without those that are `NO_ERRORS`."""
        with read_transaction(self._engine) as connection:
            rows = connection.execute(select(tables.health)).all()
        return {(row.worker_id, row.device_id): HEALTH.validate_json(row.record) for row in rows}

    def runs(self, since: int = 0) -> tuple[EndedRun, ...]:
        """The leases that ended after this sequence in a known way, ordered by their ends.

        Only the newest `MAX_RUNS`, without those of devices that are no longer known. The cost depends on what is
        newer than `since`; the next call's `since` is the sequence of the last run.
        """
        with read_transaction(self._engine) as connection:
            return read_runs(connection, since, self._read_request)

    def service_records(self, request_ids: Collection[str]) -> dict[str, ServiceRecord]:
        """Request id → what it has had under its leases, for those of the requests that had one which is over."""
        if not request_ids:
            return {}
        with read_transaction(self._engine) as connection:
            return read_service(connection, request_ids, self._read_request)

    def add_speeds(self, reports: Sequence[LeaseSpeed], now: datetime) -> None:
        """Keep what tasks reported of their speeds. A report counts once, however often it is written."""
        if reports:
            with self._write() as transaction:
                add_speeds(transaction, reports, now)

    def speeds(self, since: int = 0) -> tuple[int, tuple[MeasuredSpeed, ...]]:
        """The reported speeds that changed after this sequence, and the sequence for the next call."""
        with read_transaction(self._engine) as connection:
            return read_speeds(connection, since)

    def prune(self, before: datetime) -> int:
        """Delete requests that ended before this time, with their leases and decisions; returns how many requests.

        Waiting requests lose all decisions except the newest. It also deletes the turns of DAGs that have no request
        any more, speeds that were not measured for so long, and what is kept of unknown workers from before this
        time: holds, error records, unused keys.
        """
        with self._write() as transaction:
            return prune(transaction, before)

    def forget(self, worker_id: str, before: datetime) -> bool:
        """Delete everything about a lost worker, also its key and its holds. Returns whether the worker was known.

        :param before: the worker must not have been seen since then, and must have held no lease since then
        :raises StoreError: there is no such worker, or it is still in use
        """
        with self._write() as transaction:
            return forget_by_name(transaction, worker_id, before)

    def change_queue(self, changes: Sequence[QueueChange]) -> None:
        """Change requests that wait, in order. Those that do not wait stay as they are."""
        with self._write() as transaction:
            change_queue(transaction, changes, self._read_request)

    def last_seen(self) -> dict[str, datetime]:
        """Worker id → time of its last heartbeat."""
        with read_transaction(self._engine) as connection:
            rows = connection.execute(select(_SEEN.worker_id, _SEEN.seen_at))
            return {row.worker_id: row.seen_at for row in rows}

    def heartbeats(self) -> Mapping[str, WorkerHeartbeat]:
        """Worker id → last heartbeat of its agent; without workers that have no agent or are lost."""
        with read_transaction(self._engine) as connection:
            query = select(_SEEN.worker_id, _SEEN.seen_at, _SEEN.leases).where(_SEEN.leases.is_not(None))
            rows = connection.execute(query).all()
        return {row.worker_id: WorkerHeartbeat(row.seen_at, LEASES.validate_json(row.leases)) for row in rows}

    def server_heartbeat(self) -> ServerHeartbeat | None:
        """The last heartbeat of the API server; None if there was none."""
        with read_transaction(self._engine) as connection:
            return read_server_heartbeat(connection)

    def last_decisions(self) -> dict[str, datetime]:
        """Scheduler → the end of its last cycle, some seconds late."""
        with read_transaction(self._engine) as connection:
            return {row.id: row.decided_at for row in connection.execute(select(tables.scheduler))}
