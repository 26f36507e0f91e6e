"""Commits a plan to the tables: grants leases, refuses requests, stores decisions.

The statements here, and not the writers' lock, prevent that a device is leased twice. One conditional update takes all
devices of a plan. The database checks its condition again when it has locked a row, and the table's CHECK refuses what
would still be wrong. A unique index refuses a physical device that another worker has leased. Under the lock the
condition always holds for what `DeviceLedger` accepts.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Insert, Select, Update, bindparam, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from hetero_airflow.model.lease import Claim, Lease
from hetero_airflow.model.plan import Decision, Place, Plan, Refuse, Wait
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES, decision_columns, digest
from hetero_airflow.store.lease_rules import granted_lease
from hetero_airflow.store.sql.device_ledger import DeviceLedger
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows, without_index
from hetero_airflow.store.sql.leases import claimed_rows, end_requests
from hetero_airflow.store.sql.tallies import Occurrence, TallyName, add_tallies
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.store.store import CommitResult

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c


class PlacementConflict(Exception):
    """Another process took devices of the plan without the writers' lock: roll the transaction back."""


class WaitDigests:
    """Finds out whether a decision to wait is new, without converting it to JSON on every heartbeat."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[Wait, str]] = {}

    def of(self, plan: Plan) -> dict[str, str]:
        """Request id → digest of reason, position and account, for the decisions to wait."""
        earlier = self._latest
        current: dict[str, tuple[Wait, str]] = {}
        for decision in plan.decisions:
            if isinstance(decision, Wait):
                before = earlier.get(decision.request_id)
                text = before[1] if before and before[0] == decision else _wait_digest(decision)
                current[decision.request_id] = (decision, text)
        self._latest = current
        return {request_id: text for request_id, (_, text) in current.items()}


def _wait_digest(wait: Wait) -> str:
    columns = decision_columns(wait)
    return digest(columns["position"], columns["reason"], columns["account"])


class StoredWait(NamedTuple):
    """What the tables have of a request that waits."""

    digest: str | None
    """Of the newest stored decision; None before the first."""
    dag_id: str
    since: datetime


def read_newest_decisions(connection: Connection, decisions: Iterable[Decision]) -> dict[str, StoredWait]:
    """Those of the decisions' requests that wait, by id."""
    keys = key_rows({decision.request_id for decision in decisions})
    rows = read_by_rows(connection, _newest, keys)
    return {row.id: StoredWait(row.newest_decision, row.dag_id, row.since) for row in rows}


class PlanCommit:
    """Commits one plan; for one use.

    :param can_grant: False refuses all placements and commits the rest of the plan
    """

    def __init__(
        self,
        transaction: WriteTransaction,
        now: datetime,
        expires_at: datetime,
        digests: Mapping[str, str],
        *,
        can_grant: bool = True,
    ) -> None:
        self._transaction, self._now, self._expires_at, self._digests = transaction, now, expires_at, digests
        self._can_grant = can_grant
        self._granted: list[tuple[Place, tuple[Claim, ...]]] = []
        self._models: dict[str, str] = {}
        """Request id → the model of the devices that it gets."""
        self._refused: list[str] = []
        self._kept: list[Decision] = []
        self._newest: dict[str, str] = {}
        self._ended: dict[str, str] = {}

    def commit(self, plan: Plan) -> CommitResult:
        """Grant the placements that fit, end the refused requests, store the decisions.

        :raises PlacementConflict: the caller has to roll the transaction back
        """
        waits = read_newest_decisions(self._transaction.connection, plan.decisions)
        self._sort_decisions(plan, dict(waits))
        leases = self._take_devices()
        self._write(leases)
        end_requests(self._transaction, self._ended, "waiting", self._now)
        write_dag_tokens(self._transaction, {waits[lease.request_id].dag_id: lease.token for lease in leases})
        self._count(leases, waits)
        return CommitResult(leases, tuple(self._refused))

    def _sort_decisions(self, plan: Plan, waiting: dict[str, StoredWait]) -> None:
        """Decide by the tables what becomes of each decision."""
        ledger = DeviceLedger(self._transaction, plan.places)
        for decision in plan.decisions:
            request_id = decision.request_id
            if isinstance(decision, Place):
                claims = ledger.take(decision) if request_id in waiting and self._can_grant else None
                if claims is None:
                    self._refused.append(request_id)
                    continue
                self._granted.append((decision, claims))
                self._models[request_id] = ledger.model_label(decision.worker_id, claims)
            elif request_id not in waiting:
                continue
            elif isinstance(decision, Wait):
                if waiting[request_id].digest != self._digests[request_id]:
                    self._newest[request_id] = self._digests[request_id]
                    self._kept.append(decision)
                continue
            else:
                self._ended[request_id] = str(decision.reason)
            self._kept.append(decision)
            del waiting[request_id]

    def _take_devices(self) -> tuple[Lease, ...]:
        """Take the devices of the granted placements; returns their leases."""
        if not self._granted:
            return ()
        transaction = self._transaction
        placed = [{"key": place.request_id} for place, _ in self._granted]
        claimed = claimed_rows((place.worker_id, claims) for place, claims in self._granted)
        now = {"moment": self._now, "stamp": transaction.stamp}
        try:
            if transaction.execute_rows(_place_requests, placed, stamp=transaction.stamp) < len(placed):
                raise PlacementConflict
            if transaction.execute_rows(_take_devices, claimed, **now) < len(claimed):
                raise PlacementConflict
        except IntegrityError as error:
            raise PlacementConflict from error
        transaction.is_visible = True
        first = transaction.fence + 1
        transaction.fence += len(self._granted)
        return tuple(
            granted_lease(place, claims, token, self._now, self._expires_at)
            for token, (place, claims) in enumerate(self._granted, first)
        )

    def _write(self, leases: Sequence[Lease]) -> None:
        transaction = self._transaction
        transaction.insert_rows(
            tables.lease,
            [
                lease.model_dump(exclude={"claims"})
                | {"cause": "", "changed": transaction.stamp, "device_model": self._models[lease.request_id]}
                for lease in leases
            ],
        )
        transaction.insert_rows(
            tables.lease_device,
            [
                {
                    "lease_id": lease.id,
                    "position": position,
                    "worker_id": lease.worker_id,
                    "device_id": claim.device_id,
                    "milli": claim.share_milli,
                    "memory_bytes": claim.memory_bytes,
                    "cores": CORES.dump_json(claim.cores).decode(),
                    "is_held": True,
                }
                for lease in leases
                for position, claim in enumerate(lease.claims)
            ],
        )
        transaction.insert_rows(
            tables.decision,
            [decision_columns(decision) | {"decided_at": self._now} for decision in self._kept],
        )
        rows = [{"key": request_id, "digest": digest} for request_id, digest in self._newest.items()]
        transaction.execute_rows(_write_newest, rows)

    def _count(self, leases: Sequence[Lease], waits: Mapping[str, StoredWait]) -> None:
        """Add the granted leases and the refused requests to the tallies."""
        granted = [
            Occurrence(TallyName.WAITED, lease_id=lease.id, elapsed=self._now - waits[lease.request_id].since)
            for lease in leases
        ]
        refused = [
            Occurrence(TallyName.REFUSED, decision.reason.code)
            for decision in self._kept
            if isinstance(decision, Refuse)
        ]
        add_tallies(self._transaction, granted + refused)


def write_dag_tokens(transaction: WriteTransaction, tokens: Mapping[str, int]) -> None:
    """Write the newest token of each DAG."""
    rows = [{"key": key, "newest": token} for key, token in sorted(tokens.items())]
    transaction.execute_rows(_put_dag_tokens, rows, stamp=transaction.stamp)


@lru_cache(maxsize=2)
def _put_dag_tokens(dialect: str) -> Insert:
    tokens = json_table(dialect, key="text", newest="number")
    rows = select(tokens.c.key, tokens.c.newest, bindparam("stamp", type_=BigInteger)).where(tokens.c.key.is_not(None))
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    put = insert(tables.dag).from_select(["dag_id", "token", "changed"], rows)
    return put.on_conflict_do_update(
        index_elements=["dag_id"], set_={"token": put.excluded.token, "changed": put.excluded.changed}
    )


@lru_cache(maxsize=2)
def _newest(dialect: str) -> Select[Any]:
    keys = json_table(dialect, key="text")
    waits = (_REQUEST.id == keys.c.key) & (without_index(_REQUEST.state) == "waiting")
    since = func.coalesce(_REQUEST.resubmitted_at, _REQUEST.submitted_at).label("since")
    return select(_REQUEST.id, _REQUEST.newest_decision, _REQUEST.dag_id, since).join_from(keys, tables.request, waits)


@lru_cache(maxsize=2)
def _place_requests(dialect: str) -> Update:
    placed = json_table(dialect, key="text")
    waits = (_REQUEST.id == placed.c.key) & (without_index(_REQUEST.state) == "waiting")
    return (
        update(tables.request)
        .where(waits, _REQUEST.is_paused.is_(False))
        .values(state="placed", changed=bindparam("stamp"))
    )


@lru_cache(maxsize=2)
def _take_devices(dialect: str) -> Update:
    claimed = json_table(dialect, worker_key="text", key="text", milli="number", memory="number")
    return (
        update(tables.device)
        .where(
            _DEVICE.worker_id == claimed.c.worker_key,
            _DEVICE.id == claimed.c.key,
            _DEVICE.leasable,
            _DEVICE.used_milli + claimed.c.milli <= _DEVICE.capacity_milli,
            or_(
                _DEVICE.capacity_memory_bytes.is_(None),
                _DEVICE.used_memory_bytes + claimed.c.memory <= _DEVICE.capacity_memory_bytes,
            ),
            exists().where(_WORKER.id == claimed.c.worker_key, _WORKER.state == WorkerState.ONLINE),
        )
        .values(
            used_milli=_DEVICE.used_milli + claimed.c.milli,
            used_memory_bytes=_DEVICE.used_memory_bytes + claimed.c.memory,
            held_id=_DEVICE.physical_id,
            last_granted_at=bindparam("moment"),
            changed=bindparam("stamp"),
        )
    )


@lru_cache(maxsize=2)
def _write_newest(dialect: str) -> Update:
    newest = json_table(dialect, key="text", digest="text")
    return update(tables.request).where(_REQUEST.id == newest.c.key).values(newest_decision=newest.c.digest)
