"""Leases granted, renewed and ended in the tables.

That no device is leased twice is a fact of the statements here, not of the writers' lock: a grant is
one conditional update a device, whose condition the database checks again once it holds the row,
and the table's CHECK refuses what would still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, exists, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import TERMINAL, TRANSITIONS, Claim, Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Wait
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES, clean_cause, decision_columns, digest
from hetero_airflow.store.cores import choose_cores
from hetero_airflow.store.leases import is_sound, lease_id, movable, run_end, suits
from hetero_airflow.store.sql_bars import read_barred_devices
from hetero_airflow.store.sql_events import request_ending
from hetero_airflow.store.sql_reading import read_leases
from hetero_airflow.store.sql_transaction import Writing, chunks
from hetero_airflow.store.store import Commit, Move
from hetero_airflow.units import MILLI_PER_DEVICE

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c
_LEASE, _HELD, _DAG = tables.lease.c, tables.lease_device.c, tables.dag.c

_PLACE_REQUEST = (
    update(tables.request)
    .where(_REQUEST.id == bindparam("key"), _REQUEST.state == "waiting")
    .values(state="placed", changed=bindparam("stamp"))
)
_END_REQUEST = update(tables.request).where(_REQUEST.id == bindparam("key"), _REQUEST.state == bindparam("was"))
_TAKE = (
    update(tables.device)
    .where(
        _DEVICE.worker_id == bindparam("worker_key"),
        _DEVICE.id == bindparam("key"),
        _DEVICE.leasable,
        _DEVICE.used_milli + bindparam("milli") <= _DEVICE.capacity_milli,
        or_(
            _DEVICE.capacity_memory_bytes.is_(None),
            _DEVICE.used_memory_bytes + bindparam("memory") <= _DEVICE.capacity_memory_bytes,
        ),
        exists().where(_WORKER.id == bindparam("worker_key"), _WORKER.state == WorkerState.ONLINE),
    )
    .values(
        used_milli=_DEVICE.used_milli + bindparam("milli"),
        used_memory_bytes=_DEVICE.used_memory_bytes + bindparam("memory"),
        last_granted_at=bindparam("now"),
        changed=bindparam("stamp"),
    )
)
_UPDATE_DAG = update(tables.dag).where(_DAG.dag_id == bindparam("key"))
_MILLI_LEFT = _DEVICE.used_milli - bindparam("milli")
_MEMORY_LEFT = _DEVICE.used_memory_bytes - bindparam("memory")
_FREE = (
    update(tables.device)
    .where(_DEVICE.worker_id == bindparam("worker_key"), _DEVICE.id == bindparam("key"))
    .values(
        used_milli=_MILLI_LEFT,
        used_memory_bytes=_MEMORY_LEFT,
        capacity_milli=case((_DEVICE.offered_milli >= _MILLI_LEFT, _DEVICE.offered_milli), else_=_MILLI_LEFT),
        capacity_memory_bytes=case(
            (_DEVICE.offered_memory_bytes < _MEMORY_LEFT, _MEMORY_LEFT), else_=_DEVICE.offered_memory_bytes
        ),
        changed=bindparam("stamp"),
    )
)
_DROP_VANISHED = delete(tables.device).where(
    _DEVICE.worker_id == bindparam("worker_key"),
    _DEVICE.is_vanished,
    _DEVICE.used_milli == 0,
    _DEVICE.used_memory_bytes == 0,
)


class _Refused(Exception):
    """Rolls back to before the placement."""


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
                own = before[1] if before and before[0] == decision else _digest(decision)
                current[decision.request_id] = (decision, own)
        self._known = current
        return {request_id: own for request_id, (_, own) in current.items()}


def _digest(wait: Wait) -> str:
    columns = decision_columns(wait)
    return digest(columns["position"], columns["reason"], columns["account"])


def read_newest(connection: Connection, decisions: Iterable[Decision]) -> dict[str, tuple[str | None, str]]:
    """Of the decisions' requests that wait: id → digest of the newest decision that was kept, and DAG id."""
    query = select(_REQUEST.id, _REQUEST.newest_decision, _REQUEST.dag_id).where(_REQUEST.state == "waiting")
    ids = sorted({decision.request_id for decision in decisions})
    rows = (row for chunk in chunks(ids) for row in connection.execute(query.where(_REQUEST.id.in_(chunk))))
    return {row.id: (row.newest_decision, row.dag_id) for row in rows}


class Committing:
    """One plan on its way into the tables."""

    def __init__(self, writing: Writing, now: datetime, expires_at: datetime, digests: Mapping[str, str]) -> None:
        self._writing, self._now, self._expires_at, self._digests = writing, now, expires_at, digests
        self._leases: list[Lease] = []
        self._decisions: list[dict[str, Any]] = []
        self._newest: dict[str, str] = {}
        self._dag_tokens: dict[str, int] = {}
        self._taken: dict[tuple[str, str], set[int]] = {}
        self._barred: frozenset[tuple[str, str]] = frozenset()

    def commit(self, plan: Plan) -> Commit:
        """Grant what can be granted, end what is refused, keep the accounts."""
        waiting = read_newest(self._writing.connection, plan.decisions)
        worker_ids = {place.worker_id for place in plan.places}
        cpus = self._read_cpus(worker_ids)
        self._barred = read_barred_devices(self._writing.connection, worker_ids)
        refused: list[str] = []
        for decision in plan.decisions:
            is_waiting = decision.request_id in waiting
            if isinstance(decision, Place) and not (is_waiting and self._grant(decision, cpus)):
                refused.append(decision.request_id)
            elif isinstance(decision, Wait):
                own = self._digests[decision.request_id]
                if is_waiting and waiting[decision.request_id][0] != own:
                    self._newest[decision.request_id] = own
                    self._keep(decision)
            elif is_waiting:
                self._keep(decision)
                _, dag_id = waiting.pop(decision.request_id)
                if isinstance(decision, Place):
                    self._dag_tokens[dag_id] = self._writing.fence
                else:
                    end_request(self._writing, decision.request_id, "waiting", str(decision.reason), self._now)
        self._write()
        return Commit(tuple(self._leases), tuple(refused))

    def _read_cpus(self, worker_ids: Iterable[str]) -> frozenset[tuple[str, str]]:
        query = select(_DEVICE.worker_id, _DEVICE.id).where(_DEVICE.kind == "cpu")
        rows = (
            row
            for chunk in chunks(sorted(worker_ids))
            for row in self._writing.connection.execute(query.where(_DEVICE.worker_id.in_(chunk)))
        )
        return frozenset((row.worker_id, row.id) for row in rows)

    def _grant(self, place: Place, cpus: frozenset[tuple[str, str]]) -> bool:
        kinds = {claim.device_id: "cpu" if (place.worker_id, claim.device_id) in cpus else "" for claim in place.claims}
        if not is_sound(place.claims) or not all(suits(kinds[claim.device_id], claim) for claim in place.claims):
            return False
        if any((place.worker_id, claim.device_id) in self._barred for claim in place.claims):
            return False
        try:
            with self._writing.connection.begin_nested():
                claims = self._take(place, cpus)
        except (_Refused, IntegrityError):
            return False
        for claim in claims:
            if claim.cores:
                self._taken[place.worker_id, claim.device_id].update(claim.cores)
        self._writing.fence += 1
        self._writing.is_visible = True
        self._leases.append(
            Lease(
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
        )
        return True

    def _take(self, place: Place, cpus: frozenset[tuple[str, str]]) -> tuple[Claim, ...]:
        connection, stamp = self._writing.connection, self._writing.stamp
        if connection.execute(_PLACE_REQUEST, {"key": place.request_id, "stamp": stamp}).rowcount != 1:
            raise _Refused
        claims = []
        for claim in place.claims:
            values = {"worker_key": place.worker_id, "key": claim.device_id, "now": self._now, "stamp": stamp}
            amount = {"milli": claim.milli, "memory": claim.memory_bytes}
            if connection.execute(_TAKE, values | amount).rowcount != 1:
                raise _Refused
            key = (place.worker_id, claim.device_id)
            cores = self._choose_cores(key, claim.milli // MILLI_PER_DEVICE) if key in cpus else ()
            claims.append(replace(claim, cores=cores) if cores else claim)
        return tuple(claims)

    def _choose_cores(self, key: tuple[str, str], count: int) -> tuple[int, ...]:
        """Called after the conditional update has locked the device's row: nobody else chooses at the same time."""
        connection = self._writing.connection
        if key not in self._taken:
            held = select(_HELD.cores).where(_HELD.worker_id == key[0], _HELD.device_id == key[1], _HELD.is_held)
            rows = connection.execute(held).scalars()
            self._taken[key] = {core for row in rows for core in CORES.validate_json(row)}
        own = select(_DEVICE.inventory).where(_DEVICE.worker_id == key[0], _DEVICE.id == key[1])
        device = Device.model_validate_json(connection.execute(own).scalar_one())
        cores = choose_cores(device.cores, self._taken[key], count)
        if cores is None:
            raise _Refused
        return cores

    def _keep(self, decision: Decision) -> None:
        self._decisions.append(decision_columns(decision) | {"decided_at": self._now})

    def _write(self) -> None:
        writing = self._writing
        writing.execute_many(
            insert(tables.lease),
            [
                lease.model_dump(exclude={"claims"}) | {"cause": "", "changed": writing.stamp, "ended_at": None}
                for lease in self._leases
            ],
        )
        writing.execute_many(
            insert(tables.lease_device),
            [
                {
                    "lease_id": lease.id,
                    "position": position,
                    "worker_id": lease.worker_id,
                    "device_id": claim.device_id,
                    "milli": claim.milli,
                    "memory_bytes": claim.memory_bytes,
                    "cores": CORES.dump_json(claim.cores).decode(),
                    "is_held": True,
                }
                for lease in self._leases
                for position, claim in enumerate(lease.claims)
            ],
        )
        writing.execute_many(insert(tables.decision), self._decisions)
        write_dag_tokens(writing, self._dag_tokens)
        for chunk in chunks(self._newest):
            newest = case({key: self._newest[key] for key in chunk}, value=_REQUEST.id)
            writing.connection.execute(
                update(tables.request).where(_REQUEST.id.in_(chunk)).values(newest_decision=newest)
            )


def write_dag_tokens(writing: Writing, tokens: Mapping[str, int]) -> None:
    """Note the newest token of each DAG."""
    query = select(_DAG.dag_id)
    known = {
        dag_id
        for chunk in chunks(sorted(tokens))
        for dag_id in writing.connection.execute(query.where(_DAG.dag_id.in_(chunk))).scalars()
    }
    values = {key: {"token": token, "changed": writing.stamp} for key, token in tokens.items()}
    writing.execute_many(_UPDATE_DAG, [{"key": key} | row for key, row in values.items() if key in known])
    writing.execute_many(insert(tables.dag), [{"dag_id": key} | row for key, row in values.items() if key not in known])


def end_request(writing: Writing, request_id: str, was: str, cause: str, now: datetime) -> None:
    """End a request that is in the state `was`."""
    writing.connection.execute(
        _END_REQUEST, {"key": request_id, "was": was, **request_ending(cause, now, writing.stamp)}
    )
    writing.is_visible = True


def renew_leases(writing: Writing, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
    """Extend the leases that are live and have that token; the ids of the others."""
    query = select(_LEASE.id, _LEASE.token, _LEASE.state, _LEASE.expires_at).where(_LEASE.state.not_in(TERMINAL))
    ids = sorted({held_id for held_id, _ in holds})
    rows = [row for chunk in chunks(ids) for row in writing.connection.execute(query.where(_LEASE.id.in_(chunk)))]
    tokens = {row.id: row.token for row in rows}
    settled = (LeaseState.ACTIVE, LeaseState.PREEMPTED)
    due = {row.id for row in rows if row.state not in settled or row.expires_at != expires_at}
    own = sorted(due & {held_id for held_id, token in holds if tokens.get(held_id) == token})
    for chunk in chunks(own):
        state = case((_LEASE.state == LeaseState.PREEMPTED, LeaseState.PREEMPTED), else_=LeaseState.ACTIVE)
        values = {"state": state, "expires_at": expires_at, "changed": writing.stamp}
        writing.connection.execute(update(tables.lease).where(_LEASE.id.in_(chunk)).values(values))
    writing.is_visible = bool(own)
    return frozenset(held_id for held_id, token in holds if tokens.get(held_id) != token)


def move_leases(writing: Writing, moves: Sequence[Move], now: datetime) -> tuple[Lease | StoreError, ...]:
    """Change the leases' states; where one is terminal, free its devices and end its request."""
    leases: dict[str, Lease] = {}
    for ids in chunks({move.lease_id for move in moves}):
        leases |= {lease.id: lease for lease in read_leases(writing.connection, _LEASE.id.in_(ids))}
    outcomes: list[Lease | StoreError] = []
    for move in moves:
        outcome = movable(move, leases.get(move.lease_id))
        if isinstance(outcome, Lease):
            outcome = leases[outcome.id] = _move_lease(writing, outcome, move, now)
        outcomes.append(outcome)
    return tuple(outcomes)


def _move_lease(writing: Writing, lease: Lease, move: Move, now: datetime) -> Lease:
    cause = clean_cause(move.cause or TRANSITIONS[lease.state, move.to])
    values: dict[str, Any] = {"state": move.to, "cause": cause, "changed": writing.stamp}
    if move.to in TERMINAL:
        values |= {"ended_at": now, "outcome": run_end(move)}
        _free(writing, lease)
        end_request(writing, lease.request_id, "placed", cause, now)
    writing.connection.execute(update(tables.lease).where(_LEASE.id == lease.id).values(values))
    writing.is_visible = True
    return lease.model_copy(update={"state": move.to})


def _free(writing: Writing, lease: Lease) -> None:
    connection, worker_id = writing.connection, lease.worker_id
    for claim in lease.claims:
        amount = {"milli": claim.milli, "memory": claim.memory_bytes}
        connection.execute(_FREE, {"worker_key": worker_id, "key": claim.device_id, "stamp": writing.stamp, **amount})
    connection.execute(update(tables.lease_device).where(_HELD.lease_id == lease.id).values(is_held=False))
    if connection.execute(_DROP_VANISHED, {"worker_key": worker_id}).rowcount:
        connection.execute(update(tables.worker).where(_WORKER.id == worker_id).values(changed=writing.stamp))
