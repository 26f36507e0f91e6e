"""Who may speak for a worker: enrolment, revocation, and what agents tell, in Airflow's database.

What an agent tells is taken in the transaction that looks at its key, so a revocation holds at once and in every API
server, and a request that was taken once is refused ever after: each carries a nonce that must be greater than the
last. Rejected: remembering the ids of tokens until they expire, which each API server would do for itself, so that
another one, or the same after a restart, took the request again.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, func, insert, select, update

from hetero_airflow.errors import IdentityError, shorten
from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.contested_devices import without_contested
from hetero_airflow.store.sql.events import record_events
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks, reading, writing
from hetero_airflow.store.store import HoldLifted, StoreEvent, WorkerAlive, WorkerLost, WorkerSeen

_KEY, _LEASE, _HELD = tables.worker_key.c, tables.lease.c, tables.lease_device.c
_UPDATE_NONCE = update(tables.worker_key).where(_KEY.worker_id == bindparam("key"))


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """One request of an agent whose signature holds."""

    worker_id: str
    public_key: str
    """The one that the signature holds for."""
    nonce: int
    instance: str
    """The agent's process: the last one that told an inventory is the one that counts."""
    event: WorkerSeen | WorkerAlive
    leaving: StoreEvent | None = None
    """The bar to put up, of an agent that was told to stop."""
    errors: tuple[HealthChanged, ...] = ()
    """What they change in the health of its devices; those of other devices are passed over."""


class Admission(StrEnum):
    """What became of what an agent told."""

    TAKEN = "taken"
    """It is in the database."""
    REPLAYED = "replayed"
    """It, or a later one, was taken before."""
    REVOKED = "revoked"
    """The worker has no key, or another one."""
    SUPERSEDED = "superseded"
    """Another process has told the worker's inventory since, with the same key."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What an agent is told back."""

    outcome: Admission
    digest: str = ""
    """Of the inventory that the store has; empty where it has none, or takes the worker for lost: it is to be told."""
    end: tuple[str, ...] = ()
    """Ids of leases that it told of and that are over."""
    leases: int | None = None
    """How many leases are left there, of a worker that leaves; at 0 it is taken for lost."""
    contested: tuple[str, ...] = ()
    """Ids of devices in the inventory that another worker offers."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A worker's key as it is since that sequence; None for one that is not enrolled, or is revoked."""

    worker_id: str
    public_key: str | None
    changed: int


class WorkerKeys:
    """The keys in a database that `airflow db migrate` has prepared. Every method is one transaction and may block.

    :raises StoreUnavailable: (every method) the database is down, locked, or not migrated
    """

    def __init__(self, engine: Engine, *, lock_timeout_s: float = 10.0) -> None:
        self._engine = engine
        self._lock_timeout_s = lock_timeout_s

    def open_enrolment(self, worker_id: str, secret_hash: str, until: datetime, now: datetime) -> None:
        """Let whoever has the secret enrol a key for the worker, once, until that time.

        :raises IdentityError: it has a key, or a scheduler reports a worker of that name as its own host
        """
        with writing(self._engine, self._lock_timeout_s) as transaction:
            row = _read_key(transaction.connection, worker_id)
            if row is not None and row.public_key is not None and row.revoked_at is None:
                raise IdentityError(
                    f"to enrol worker {shorten(worker_id)}",
                    found=f"a key that was enrolled at {row.enrolled_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
                    remedy="`airflow hetero revoke` it first, if it shall not speak for the worker any more",
                )
            worker = select(tables.worker.c.id).where(tables.worker.c.id == worker_id)
            if row is None and transaction.connection.execute(worker).first() is not None:
                raise IdentityError(
                    f"to enrol worker {shorten(worker_id)}",
                    found="a worker of that name that a scheduler reports, being its own host",
                    remedy="Give this one another name",
                )
            values: dict[str, Any] = {"secret_hash": secret_hash, "secret_until": until, "public_key": None}
            values |= {"enrolled_at": None, "revoked_at": None, "nonce": 0, "instance": ""}
            _write_key(transaction, worker_id, values, is_new=row is None)

    def knows_secret(self, secret_hash: str) -> bool:
        """Whether a worker was ever given that secret, and is not revoked since."""
        query = select(_KEY.worker_id).where(_KEY.secret_hash == secret_hash)
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def enrol(self, worker_id: str, secret_hash: str, public_key: str, now: datetime) -> None:
        """Take the key for the worker's; the same key with the same secret again changes nothing.

        :raises IdentityError: the secret is not the worker's, was used, or is too old
        """
        with reading(self._engine) as connection:  # whoever guesses secrets must not take the writers' lock
            _check_secret(_read_key(connection, worker_id), worker_id, secret_hash, public_key, now)
        with writing(self._engine, self._lock_timeout_s) as transaction:
            row = _read_key(transaction.connection, worker_id)
            _check_secret(row, worker_id, secret_hash, public_key, now)
            if row is not None and row.public_key is None:
                _write_key(transaction, worker_id, {"public_key": public_key, "enrolled_at": now}, is_new=False)

    def revoke(self, worker_id: str, now: datetime) -> bool:
        """Take nothing more from the worker's agent, and give it no new task; whether it had a key.

        :raises IdentityError: the worker was never enrolled, or is revoked
        """
        with writing(self._engine, self._lock_timeout_s) as transaction:
            row = _read_key(transaction.connection, worker_id)
            if row is None or row.revoked_at is not None:
                found = "no worker of that name that was enrolled" if row is None else "that it is revoked already"
                remedy = "`airflow hetero workers` lists those that are known"
                raise IdentityError(f"to revoke worker {shorten(worker_id)}", found=found, remedy=remedy)
            _write_key(transaction, worker_id, {"revoked_at": now, "secret_hash": None}, is_new=False)
            record_events(transaction, [WorkerLost(worker_id)], now)
            return row.public_key is not None

    def changes(self, since: int) -> list[KeyChange]:
        """The keys that changed after that sequence, from 0 all of them, in the order of their changes."""
        columns = (_KEY.worker_id, _KEY.public_key, _KEY.revoked_at, _KEY.changed)
        with reading(self._engine) as connection:
            rows = connection.execute(select(*columns).where(_KEY.changed > since).order_by(_KEY.changed))
            return [
                KeyChange(row.worker_id, None if row.revoked_at is not None else row.public_key, row.changed)
                for row in rows
            ]

    def take(self, told: Sequence[AgentMessage], now: datetime) -> list[AgentReply]:
        """Record what agents tell, in one transaction; the answer to each, in order. One refused stops no other."""
        with writing(self._engine, self._lock_timeout_s) as transaction:
            admitted = _AdmittedBatch(transaction, _read_keys(transaction.connection, {one.worker_id for one in told}))
            outcomes = [admitted.judge(one) for one in told]
            taken = [one for one, outcome in zip(told, outcomes, strict=True) if outcome is Admission.TAKEN]
            for one in taken:  # one inventory after the other, since each looks at what the others offer
                if isinstance(one.event, WorkerSeen):
                    record_events(transaction, list(admitted.events(one)), now)
            beats = [one for one in taken if isinstance(one.event, WorkerAlive)]
            record_events(transaction, [event for one in beats for event in admitted.events(one)], now)
            transaction.execute_many(_UPDATE_NONCE, admitted.updates())
            digests = _read_digests(transaction, {one.worker_id for one in taken})
            over = _ended_leases(transaction, taken)
            left = _count_leases_left(transaction, {one.worker_id for one in taken if one.leaving is not None})
            record_events(transaction, [WorkerLost(worker_id) for worker_id, leases in left.items() if not leases], now)
        return [
            AgentReply(
                outcome,
                digests.get(one.worker_id, ""),
                over.get(one.worker_id, ()),
                left.get(one.worker_id) if one.leaving is not None else None,
                admitted.contested.get(one.worker_id, ()) if isinstance(one.event, WorkerSeen) else (),
            )
            if outcome is Admission.TAKEN
            else AgentReply(outcome)
            for one, outcome in zip(told, outcomes, strict=True)
        ]


class _AdmittedBatch:
    """Judges a batch against the keys' rows, and remembers what it has admitted."""

    def __init__(self, writing: WriteTransaction, rows: dict[str, Row[*tuple[Any, ...]]]) -> None:
        self._writing, self._rows = writing, rows
        self.contested: dict[str, tuple[str, ...]] = {}
        """Worker id → ids of its devices that another worker offers."""
        self._now = {key: (row.nonce, row.instance) for key, row in rows.items()}

    def judge(self, told: AgentMessage) -> Admission:
        row = self._rows.get(told.worker_id)
        if row is None or row.revoked_at is not None or row.public_key != told.public_key:
            return Admission.REVOKED
        nonce, instance = self._now[told.worker_id]
        if told.nonce <= nonce:
            return Admission.REPLAYED
        if isinstance(told.event, WorkerAlive) and told.instance != instance and instance:
            return Admission.SUPERSEDED
        begins = isinstance(told.event, WorkerSeen)
        self._now[told.worker_id] = (told.nonce, told.instance if begins else instance)
        return Admission.TAKEN

    def events(self, told: AgentMessage) -> Iterable[StoreEvent]:
        if isinstance(told.event, WorkerSeen):
            worker, self.contested[told.worker_id] = without_contested(self._writing, told.event.worker)
            yield replace(told.event, worker=worker)
        else:
            yield told.event
        if told.leaving is not None:
            if not self._is_leaving(told.worker_id):  # since when it leaves stays as it was
                yield told.leaving
        elif isinstance(told.event, WorkerSeen) and told.instance != self._rows[told.worker_id].instance:
            yield HoldLifted(told.worker_id, "", HoldKind.LEAVING)
        if told.errors:
            own = self._device_ids(told.worker_id)
            yield from (changed for changed in told.errors if changed.device_id in own)

    def _device_ids(self, worker_id: str) -> frozenset[str]:
        query = select(tables.device.c.id).where(tables.device.c.worker_id == worker_id)
        return frozenset(self._writing.connection.execute(query).scalars())

    def _is_leaving(self, worker_id: str) -> bool:
        query = select(tables.bar.c.worker_id).where(tables.bar.c.worker_id == worker_id, tables.bar.c.device_id == "")
        return self._writing.connection.execute(query.where(tables.bar.c.kind == HoldKind.LEAVING)).first() is not None

    def updates(self) -> list[dict[str, Any]]:
        return [
            {"key": key, "nonce": nonce, "instance": instance}
            for key, (nonce, instance) in self._now.items()
            if (nonce, instance) != (self._rows[key].nonce, self._rows[key].instance)
        ]


def _check_secret(
    row: Row[*tuple[Any, ...]] | None, worker_id: str, secret_hash: str, public_key: str, now: datetime
) -> None:
    asked = f"to enrol worker {shorten(worker_id)}"
    remedy = "Ask for a new one by `airflow hetero enroll`, `airflow hetero revoke` before if the worker has a key"
    known = "" if row is None or row.revoked_at is not None else row.secret_hash or ""
    if row is None or not hmac.compare_digest(known, secret_hash):
        raise IdentityError(asked, found="a secret that is not its own", remedy=remedy)
    if row.public_key not in (None, public_key):
        raise IdentityError(asked, found="a secret that another agent has used", remedy=remedy)
    if row.public_key is None and row.secret_until < now:
        raise IdentityError(asked, found="a secret that is too old", remedy=remedy)


def _read_key(connection: Connection, worker_id: str) -> Row[*tuple[Any, ...]] | None:
    return _read_keys(connection, {worker_id}).get(worker_id)


def _read_keys(connection: Connection, worker_ids: Iterable[str]) -> dict[str, Row[*tuple[Any, ...]]]:
    query = select(tables.worker_key)
    return {
        row.worker_id: row
        for chunk in chunks(sorted(worker_ids))
        for row in connection.execute(query.where(_KEY.worker_id.in_(chunk)))
    }


def _write_key(writing: WriteTransaction, worker_id: str, values: dict[str, Any], *, is_new: bool) -> None:
    """Write the row; that the sequence grows is what lets `changes` see it."""
    values = values | {"changed": writing.stamp}
    if is_new:
        writing.connection.execute(insert(tables.worker_key), {"worker_id": worker_id} | values)
    else:
        writing.connection.execute(update(tables.worker_key).where(_KEY.worker_id == worker_id).values(values))
    writing.is_visible = True


def _read_digests(writing: WriteTransaction, worker_ids: Iterable[str]) -> dict[str, str]:
    query = select(tables.worker.c.id, tables.worker.c.digest)
    return {
        row.id: row.digest
        for chunk in chunks(sorted(worker_ids))
        for row in writing.connection.execute(
            query.where(tables.worker.c.id.in_(chunk), tables.worker.c.state == WorkerState.ONLINE)
        )
    }


def _ended_leases(writing: WriteTransaction, told: Iterable[AgentMessage]) -> dict[str, tuple[str, ...]]:
    """Worker id → ids of the leases that its agent told of and that are over.

    One that nobody knows is not: it may be another Airflow's, whose supervisor looks after it.
    """
    query = select(_LEASE.worker_id, _LEASE.id).where(_LEASE.state.in_(TERMINAL)).order_by(_LEASE.id)
    named = {(one.worker_id, lease_id) for one in told for lease_id in one.event.leases or ()}
    over: dict[str, tuple[str, ...]] = {}
    for chunk in chunks(sorted({lease_id for _, lease_id in named})):
        for row in writing.connection.execute(query.where(_LEASE.id.in_(chunk))):
            if (row.worker_id, row.id) in named:
                over[row.worker_id] = (*over.get(row.worker_id, ()), row.id)
    return over


def _count_leases_left(writing: WriteTransaction, worker_ids: Iterable[str]) -> dict[str, int]:
    query = select(_HELD.worker_id, func.count(_HELD.lease_id.distinct()).label("leases")).group_by(_HELD.worker_id)
    left = dict.fromkeys(worker_ids, 0)
    for chunk in chunks(sorted(left)):
        for row in writing.connection.execute(query.where(_HELD.worker_id.in_(chunk), _HELD.is_held)):
            left[row.worker_id] = row.leases
    return left
