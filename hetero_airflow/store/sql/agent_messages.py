"""Records the messages of workers' agents, after checking each against its worker's key.

One transaction checks the key and records the message, so a revocation takes effect at once in every API server. Each
message carries a nonce that must be greater than the last one, so a message is accepted only once. Rejected:
remembering the ids of tokens until they expire. Each API server would do so on its own, so another server, or the same
one after a restart, would accept the message again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, or_, select, update

from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.events import record_events
from hetero_airflow.store.sql.transaction import WriteTransaction, read_chunks
from hetero_airflow.store.store import HoldLifted, StoreEvent, WorkerAlive, WorkerLost, WorkerSeen

_KEY, _LEASE, _HELD, _HOLD = tables.worker_key.c, tables.lease.c, tables.lease_device.c, tables.hold.c
_DEVICE, _OTHER = tables.device.c, tables.device.alias("other")
_UPDATE_NONCE = update(tables.worker_key).where(_KEY.worker_id == bindparam("key"))


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """One request of an agent, with a valid signature."""

    worker_id: str
    public_key: str
    """The key that verified the signature."""
    nonce: int
    instance: str
    """The agent's process. The process that sent the last inventory is the valid one."""
    event: WorkerSeen | WorkerAlive
    leaving: StoreEvent | None = None
    """The hold to place, if the agent was told to stop."""
    reclaimed: StoreEvent | None = None
    """The hold to place, if the machine is taken back."""
    errors: tuple[HealthChanged, ...] = ()
    """Changes in the health of the worker's devices; those of other devices are ignored."""


class Admission(StrEnum):
    """Whether a message was accepted."""

    TAKEN = "taken"
    """The message is in the database."""
    REPLAYED = "replayed"
    """This message or a later one was accepted before."""
    REVOKED = "revoked"
    """The worker has no key, or another key."""
    SUPERSEDED = "superseded"
    """Another process with the same key has sent the worker's inventory since."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """The reply to a message."""

    outcome: Admission
    digest: str = ""
    """Of the stored inventory; empty if the agent has to send it, since there is none or the worker is lost."""
    end: tuple[str, ...] = ()
    """Ids of the reported leases that are over."""
    unknown: tuple[str, ...] = ()
    """Ids of the reported leases that the worker never had."""
    leases: int | None = None
    """How many leases a leaving worker still has; at 0 it counts as lost."""
    contested: tuple[str, ...] = ()
    """Ids of devices in the inventory that another worker reports too; see `ContestedDevices`."""


def record_messages(transaction: WriteTransaction, messages: Sequence[AgentMessage], now: datetime) -> list[AgentReply]:
    """Record the messages; returns the reply to each, in order. A message that is not accepted stops no other."""
    batch = _MessageBatch(transaction, {message.worker_id for message in messages})
    outcomes = [batch.admit(message) for message in messages]
    accepted = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is Admission.TAKEN]
    reporting = [message for message in accepted if isinstance(message.event, WorkerSeen)]
    heartbeats = [message for message in accepted if isinstance(message.event, WorkerAlive)]
    for messages_of_kind in (reporting, heartbeats):  # an error counts for a device of the newest inventory
        record_events(transaction, [event for message in messages_of_kind for event in batch.events(message)], now)
    transaction.execute_many(_UPDATE_NONCE, batch.nonces())
    digests = _read_digests(transaction, {message.worker_id for message in accepted})
    ended, unknown = _read_reported(transaction, accepted)
    contested = _read_contested(transaction, {message.worker_id for message in reporting})
    counts = _count_leases(transaction, {message.worker_id for message in accepted if message.leaving is not None})
    record_events(transaction, [WorkerLost(worker_id) for worker_id, leases in counts.items() if not leases], now)
    return [
        AgentReply(
            outcome,
            digests.get(message.worker_id, ""),
            ended.get(message.worker_id, ()),
            unknown.get(message.worker_id, ()),
            counts.get(message.worker_id) if message.leaving is not None else None,
            contested.get(message.worker_id, ()) if isinstance(message.event, WorkerSeen) else (),
        )
        if outcome is Admission.TAKEN
        else AgentReply(outcome)
        for message, outcome in zip(messages, outcomes, strict=True)
    ]


def read_keys(connection: Connection, worker_ids: Iterable[str]) -> dict[str, Row[*tuple[Any, ...]]]:
    """Worker id → row of its key."""
    query = select(tables.worker_key)
    return {row.worker_id: row for row in read_chunks(connection, query, _KEY.worker_id, sorted(worker_ids))}


class _MessageBatch:
    """Checks messages against the keys, and remembers the nonces of the accepted ones."""

    def __init__(self, transaction: WriteTransaction, worker_ids: Iterable[str]) -> None:
        self._transaction, self._keys = transaction, read_keys(transaction.connection, worker_ids)
        is_reclaimed = _HOLD.kind == HoldKind.RECLAIMED
        self._reclaimed = set(transaction.connection.execute(select(_HOLD.worker_id).where(is_reclaimed)).scalars())
        self._latest = {worker_id: (row.nonce, row.instance) for worker_id, row in self._keys.items()}

    def admit(self, message: AgentMessage) -> Admission:
        key = self._keys.get(message.worker_id)
        if key is None or key.revoked_at is not None or key.public_key != message.public_key:
            return Admission.REVOKED
        nonce, instance = self._latest[message.worker_id]
        if message.nonce <= nonce:
            return Admission.REPLAYED
        if isinstance(message.event, WorkerAlive) and message.instance != instance and instance:
            return Admission.SUPERSEDED
        is_inventory = isinstance(message.event, WorkerSeen)
        self._latest[message.worker_id] = (message.nonce, message.instance if is_inventory else instance)
        return Admission.TAKEN

    def events(self, message: AgentMessage) -> Iterator[StoreEvent]:
        worker_id = message.worker_id
        yield message.event
        if message.leaving is not None:
            if not self._is_leaving(worker_id):  # the first hold stays, with its time
                yield message.leaving
        elif isinstance(message.event, WorkerSeen) and message.instance != self._keys[worker_id].instance:
            yield HoldLifted(worker_id, "", HoldKind.LEAVING)
        yield from self._reclaim_events(message)
        if message.errors:
            query = select(tables.device.c.id).where(tables.device.c.worker_id == worker_id)
            device_ids = set(self._transaction.connection.execute(query).scalars())
            yield from (changed for changed in message.errors if changed.device_id in device_ids)

    def _reclaim_events(self, message: AgentMessage) -> Iterator[StoreEvent]:
        """Place or lift the hold when that changes. Only heartbeats tell; the first hold stays, with its time."""
        is_held = message.worker_id in self._reclaimed
        if message.reclaimed is not None and not is_held:
            self._reclaimed.add(message.worker_id)
            yield message.reclaimed
        elif message.reclaimed is None and is_held and isinstance(message.event, WorkerAlive):
            self._reclaimed.discard(message.worker_id)
            yield HoldLifted(message.worker_id, "", HoldKind.RECLAIMED)

    def _is_leaving(self, worker_id: str) -> bool:
        is_leaving = (_HOLD.worker_id == worker_id, _HOLD.device_id == "", _HOLD.kind == HoldKind.LEAVING)
        return self._transaction.connection.execute(select(_HOLD.worker_id).where(*is_leaving)).first() is not None

    def nonces(self) -> list[dict[str, Any]]:
        return [
            {"key": worker_id, "nonce": nonce, "instance": instance}
            for worker_id, (nonce, instance) in self._latest.items()
            if (nonce, instance) != (self._keys[worker_id].nonce, self._keys[worker_id].instance)
        ]


def _read_contested(transaction: WriteTransaction, worker_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Worker id → ids of its devices that another worker reports too, and offers or has leased."""
    contested: dict[str, tuple[str, ...]] = {}
    query = (
        select(_DEVICE.worker_id, _DEVICE.id)
        .distinct()
        .join(_OTHER, _OTHER.c.physical_id == _DEVICE.physical_id)
        .join(tables.worker, tables.worker.c.id == _OTHER.c.worker_id)
        .where(_OTHER.c.worker_id != _DEVICE.worker_id)
        .where(or_(tables.worker.c.state == WorkerState.ONLINE, _OTHER.c.used_milli > 0))
        .order_by(_DEVICE.worker_id, _DEVICE.id)
    )
    for row in read_chunks(transaction.connection, query, _DEVICE.worker_id, sorted(worker_ids)):
        contested[row.worker_id] = (*contested.get(row.worker_id, ()), row.id)
    return contested


def _read_digests(transaction: WriteTransaction, worker_ids: Iterable[str]) -> dict[str, str]:
    worker = tables.worker.c
    query = select(worker.id, worker.digest).where(worker.state == WorkerState.ONLINE)
    return {row.id: row.digest for row in read_chunks(transaction.connection, query, worker.id, sorted(worker_ids))}


def _read_reported(
    transaction: WriteTransaction, messages: Iterable[AgentMessage]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Worker id → ids of the leases that its agent reports and that are over; and of those that it never had.

    An unknown lease is not over: it may be a lease of another Airflow, whose supervisor watches it.
    """
    reported = {(message.worker_id, lease_id) for message in messages for lease_id in message.event.leases or ()}
    query = select(_LEASE.worker_id, _LEASE.id, _LEASE.state)
    rows = read_chunks(transaction.connection, query, _LEASE.id, sorted({lease_id for _, lease_id in reported}))
    states = {(row.worker_id, row.id): row.state for row in rows}
    ended: dict[str, tuple[str, ...]] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    for worker_id, lease_id in sorted(reported):
        state = states.get((worker_id, lease_id))
        if state is None:
            unknown[worker_id] = (*unknown.get(worker_id, ()), lease_id)
        elif state in TERMINAL:
            ended[worker_id] = (*ended.get(worker_id, ()), lease_id)
    return ended, unknown


def _count_leases(transaction: WriteTransaction, worker_ids: Iterable[str]) -> dict[str, int]:
    query = select(_HELD.worker_id, func.count(_HELD.lease_id.distinct()).label("leases")).group_by(_HELD.worker_id)
    counts = dict.fromkeys(worker_ids, 0)
    for row in read_chunks(transaction.connection, query.where(_HELD.is_held), _HELD.worker_id, sorted(counts)):
        counts[row.worker_id] = row.leases
    return counts
