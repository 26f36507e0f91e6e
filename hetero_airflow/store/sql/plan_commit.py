"""Plans on their way into the tables: leases granted, requests refused, decisions kept.

That no device is leased twice is a fact of the statements here, not of the writers' lock: what a plan takes is one
conditional update of all its devices, whose condition the database checks again once it holds a row, and the table's
CHECK refuses what would still be wrong. Under the lock the condition always holds for what `DeviceLedger` has let
through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Insert, Select, Update, bindparam, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Wait
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES, decision_columns, digest
from hetero_airflow.store.lease_rules import lease_id
from hetero_airflow.store.sql.device_ledger import DeviceLedger
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows, without_index
from hetero_airflow.store.sql.leases import claimed_rows, end_requests
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.store.store import CommitResult

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c


class PlacementConflict(Exception):
    """Someone took part of what a plan places without the writers' lock: the transaction is to be rolled back."""


class WaitDigests:
    """Tells whether a decision to wait is news, without making JSON of it again on every heartbeat."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Wait, str]] = {}

    def of(self, plan: Plan) -> dict[str, str]:
        """Request id → digest of the reason, position and account, for those that wait."""
        known = self._known
        current: dict[str, tuple[Wait, str]] = {}
        for decision in plan.decisions:
            if isinstance(decision, Wait):
                before = known.get(decision.request_id)
                own = before[1] if before and before[0] == decision else _wait_digest(decision)
                current[decision.request_id] = (decision, own)
        self._known = current
        return {request_id: own for request_id, (_, own) in current.items()}


def _wait_digest(wait: Wait) -> str:
    columns = decision_columns(wait)
    return digest(columns["position"], columns["reason"], columns["account"])


def read_newest_decisions(connection: Connection, decisions: Iterable[Decision]) -> dict[str, tuple[str | None, str]]:
    """Of the decisions' requests that wait: id → digest of the newest decision that was kept, and DAG id."""
    asked = key_rows({decision.request_id for decision in decisions})
    rows = read_by_rows(connection, _newest(connection.dialect.name), asked)
    return {row.id: (row.newest_decision, row.dag_id) for row in rows}


class PlanCommit:
    """One plan on its way into the tables.

    :param may_grant: False refuses all placements, and keeps the rest of the plan
    """

    def __init__(
        self,
        writing: WriteTransaction,
        now: datetime,
        expires_at: datetime,
        digests: Mapping[str, str],
        *,
        can_grant: bool = True,
    ) -> None:
        self._writing, self._now, self._expires_at, self._digests = writing, now, expires_at, digests
        self._may_grant = can_grant
        self._granted: list[tuple[Place, tuple[Claim, ...]]] = []
        self._refused: list[str] = []
        self._kept: list[Decision] = []
        self._newest: dict[str, str] = {}
        self._ended: dict[str, str] = {}

    def commit(self, plan: Plan) -> CommitResult:
        """Grant what can be granted, end what is refused, keep the accounts.

        :raises PlacementConflict: nothing of this is to be kept
        """
        dag_ids = self._sort_out(plan)
        leases = self._take()
        self._write(leases)
        end_requests(self._writing, self._ended, "waiting", self._now)
        write_dag_tokens(self._writing, {dag_ids[lease.request_id]: lease.token for lease in leases})
        return CommitResult(leases, tuple(self._refused))

    def _sort_out(self, plan: Plan) -> dict[str, str]:
        """What becomes of each decision, by what the tables say now; the DAG of each request that waits."""
        waiting = read_newest_decisions(self._writing.connection, plan.decisions)
        dag_ids = {key: dag_id for key, (_, dag_id) in waiting.items()}
        books = DeviceLedger(self._writing, plan.places)
        for decision in plan.decisions:
            key = decision.request_id
            if isinstance(decision, Place):
                claims = books.take(decision) if key in waiting and self._may_grant else None
                if claims is None:
                    self._refused.append(key)
                    continue
                self._granted.append((decision, claims))
            elif key not in waiting or (isinstance(decision, Wait) and waiting[key][0] == self._digests[key]):
                continue
            elif isinstance(decision, Wait):
                self._newest[key] = self._digests[key]
                self._kept.append(decision)
                continue
            else:
                self._ended[key] = str(decision.reason)
            self._kept.append(decision)
            del waiting[key]
        return dag_ids

    def _take(self) -> tuple[Lease, ...]:
        """The leases of what is granted."""
        if not self._granted:
            return ()
        writing = self._writing
        placed = [{"key": place.request_id} for place, _ in self._granted]
        taken = claimed_rows((place.worker_id, claims) for place, claims in self._granted)
        now = {"moment": self._now, "stamp": writing.stamp}
        try:
            if writing.execute_rows(_place_requests(writing.dialect), placed, stamp=writing.stamp) < len(placed):
                raise PlacementConflict
            if writing.execute_rows(_take_devices(writing.dialect), taken, **now) < len(taken):
                raise PlacementConflict
        except IntegrityError as error:
            raise PlacementConflict from error
        writing.is_visible = True
        return tuple(self._lease(place, claims) for place, claims in self._granted)

    def _lease(self, place: Place, claims: tuple[Claim, ...]) -> Lease:
        self._writing.fence += 1
        return Lease(
            id=lease_id(place.request_id, self._writing.fence),
            request_id=place.request_id,
            worker_id=place.worker_id,
            alternative=place.alternative,
            claims=claims,
            token=self._writing.fence,
            state=LeaseState.GRANTED,
            granted_at=self._now,
            expires_at=self._expires_at,
        )

    def _write(self, leases: Sequence[Lease]) -> None:
        writing = self._writing
        writing.insert_rows(
            tables.lease,
            [lease.model_dump(exclude={"claims"}) | {"cause": "", "changed": writing.stamp} for lease in leases],
        )
        writing.insert_rows(
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
        writing.insert_rows(
            tables.decision,
            [decision_columns(decision) | {"decided_at": self._now} for decision in self._kept],
        )
        rows = [{"key": key, "digest": own} for key, own in self._newest.items()]
        writing.execute_rows(_note_newest(writing.dialect), rows)


def write_dag_tokens(writing: WriteTransaction, tokens: Mapping[str, int]) -> None:
    """Note the newest token of each DAG."""
    rows = [{"key": key, "newest": token} for key, token in sorted(tokens.items())]
    writing.execute_rows(_put_dag_tokens(writing.dialect), rows, stamp=writing.stamp)


@lru_cache(maxsize=2)
def _put_dag_tokens(dialect: str) -> Insert:
    told = json_table(dialect, key="text", newest="number")
    rows = select(told.c.key, told.c.newest, bindparam("stamp", type_=BigInteger)).where(told.c.key.is_not(None))
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    put = insert(tables.dag).from_select(["dag_id", "token", "changed"], rows)
    return put.on_conflict_do_update(
        index_elements=["dag_id"], set_={"token": put.excluded.token, "changed": put.excluded.changed}
    )


@lru_cache(maxsize=2)
def _newest(dialect: str) -> Select[Any]:
    asked = json_table(dialect, key="text")
    waits = (_REQUEST.id == asked.c.key) & (without_index(_REQUEST.state) == "waiting")
    return select(_REQUEST.id, _REQUEST.newest_decision, _REQUEST.dag_id).join_from(asked, tables.request, waits)


@lru_cache(maxsize=2)
def _place_requests(dialect: str) -> Update:
    placed = json_table(dialect, key="text")
    mine = (_REQUEST.id == placed.c.key) & (without_index(_REQUEST.state) == "waiting")
    return update(tables.request).where(mine).values(state="placed", changed=bindparam("stamp"))


@lru_cache(maxsize=2)
def _take_devices(dialect: str) -> Update:
    taken = json_table(dialect, worker_key="text", key="text", milli="number", memory="number")
    return (
        update(tables.device)
        .where(
            _DEVICE.worker_id == taken.c.worker_key,
            _DEVICE.id == taken.c.key,
            _DEVICE.leasable,
            _DEVICE.used_milli + taken.c.milli <= _DEVICE.capacity_milli,
            or_(
                _DEVICE.capacity_memory_bytes.is_(None),
                _DEVICE.used_memory_bytes + taken.c.memory <= _DEVICE.capacity_memory_bytes,
            ),
            exists().where(_WORKER.id == taken.c.worker_key, _WORKER.state == WorkerState.ONLINE),
        )
        .values(
            used_milli=_DEVICE.used_milli + taken.c.milli,
            used_memory_bytes=_DEVICE.used_memory_bytes + taken.c.memory,
            last_granted_at=bindparam("moment"),
            changed=bindparam("stamp"),
        )
    )


@lru_cache(maxsize=2)
def _note_newest(dialect: str) -> Update:
    noted = json_table(dialect, key="text", digest="text")
    return update(tables.request).where(_REQUEST.id == noted.c.key).values(newest_decision=noted.c.digest)
