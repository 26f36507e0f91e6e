"""Renews and ends leases in the tables; `plan_commit.py` grants them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Delete, Select, Update, bindparam, case, delete, select, update

from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import TERMINAL, TRANSITIONS, Claim, Lease, LeaseState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.lease_rules import check_move, run_end_of
from hetero_airflow.store.sql.json_rows import ROWS, json_table, key_rows, read_by_rows, rows_json, without_index
from hetero_airflow.store.sql.reads import read_leases
from hetero_airflow.store.sql.tallies import Occurrence, TallyName, add_tallies, ended_label
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks, read_chunks
from hetero_airflow.store.store import LeaseMove, StartClaimed

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c
_LEASE, _HELD = tables.lease.c, tables.lease_device.c


def renew_leases(
    transaction: WriteTransaction, holds: Sequence[tuple[str, int]], expires_at: datetime
) -> frozenset[str]:
    """Extend the live leases with these tokens; returns the ids of the others."""
    query = select(_LEASE.id, _LEASE.token, _LEASE.state, _LEASE.expires_at).where(_LEASE.state.not_in(TERMINAL))
    ids = sorted({lease_id for lease_id, _ in holds})
    rows = list(read_chunks(transaction.connection, query, _LEASE.id, ids))
    tokens = {row.id: row.token for row in rows}
    settled = (LeaseState.ACTIVE, LeaseState.PREEMPTED)
    due = {row.id for row in rows if row.state not in settled or row.expires_at != expires_at}
    renewed = sorted(due & {lease_id for lease_id, token in holds if tokens.get(lease_id) == token})
    for chunk in chunks(renewed):
        state = case((_LEASE.state == LeaseState.PREEMPTED, LeaseState.PREEMPTED), else_=LeaseState.ACTIVE)
        values = {"state": state, "expires_at": expires_at, "changed": transaction.stamp}
        transaction.connection.execute(update(tables.lease).where(_LEASE.id.in_(chunk)).values(values))
    transaction.is_visible = bool(renewed)
    return frozenset(lease_id for lease_id, token in holds if tokens.get(lease_id) != token)


def claim_starts(transaction: WriteTransaction, claims: Iterable[StartClaimed]) -> None:
    """Write who starts the tasks of these leases, where nobody does yet."""
    for claim in claims:
        is_free = (_LEASE.token == claim.token) & _LEASE.starter.is_(None) & _LEASE.state.not_in(TERMINAL)
        values = {"starter": claim.starter, "changed": transaction.stamp}
        query = update(tables.lease).where(_LEASE.id == claim.lease_id, is_free).values(values)
        transaction.is_visible |= transaction.connection.execute(query).rowcount == 1


def move_leases(
    transaction: WriteTransaction, moves: Sequence[LeaseMove], now: datetime
) -> tuple[Lease | StoreError, ...]:
    """Change the leases' states; a terminal state frees the devices and ends the request."""
    moved = _LEASE.id.in_(select(json_table(transaction.dialect, key="text").c.key))
    ids = rows_json(key_rows({move.lease_id for move in moves}))
    leases = {lease.id: lease for lease in read_leases(transaction.connection, moved, {ROWS: ids})}
    outcomes: list[Lease | StoreError] = []
    rows: dict[str, dict[str, Any]] = {}
    occurrences: list[Occurrence] = []
    for move in moves:
        outcome = check_move(move, leases.get(move.lease_id))
        if isinstance(outcome, Lease):
            occurrences += _occurrences(move, outcome, now)
            cause = clean_cause(move.cause or TRANSITIONS[outcome.state, move.to])
            rows[outcome.id] = {"key": outcome.id, "state": move.to, "cause": cause}
            if move.to in TERMINAL:
                rows[outcome.id] |= {"outcome": run_end_of(move), "ended_at": now}
            outcome = leases[outcome.id] = outcome.model_copy(update={"state": move.to})
        outcomes.append(outcome)
    transaction.execute_rows(_move, [*rows.values()], stamp=transaction.stamp)
    add_tallies(transaction, occurrences)
    ended = [leases[key] for key in rows if leases[key].state in TERMINAL]
    if ended:
        _free_leases(transaction, ended)
        end_requests(transaction, {lease.request_id: rows[lease.id]["cause"] for lease in ended}, "placed", now)
    transaction.is_visible |= bool(rows)
    return tuple(outcomes)


def _occurrences(move: LeaseMove, lease: Lease, now: datetime) -> tuple[Occurrence, ...]:
    """What a move adds to the tallies."""
    if move.to is LeaseState.PREEMPTED:
        return (Occurrence(TallyName.PREEMPTED, ""),)
    if move.to not in TERMINAL:
        return ()
    ended = Occurrence(TallyName.ENDED, ended_label(run_end_of(move)))
    return ended, Occurrence(TallyName.HELD, lease_id=lease.id, elapsed=now - lease.granted_at)


def claimed_rows(claims: Iterable[tuple[str, Sequence[Claim]]]) -> list[dict[str, Any]]:
    """One row per device with the sums of its claims, which are given as (worker id, claims)."""
    shares_milli, memory = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for worker_id, worker_claims in claims:
        for claim in worker_claims:
            shares_milli[worker_id, claim.device_id] += claim.share_milli
            memory[worker_id, claim.device_id] += claim.memory_bytes
    return [
        {"worker_key": k[0], "key": k[1], "milli": shares_milli[k], "memory": memory[k]} for k in sorted(shares_milli)
    ]


def _free_leases(transaction: WriteTransaction, leases: Sequence[Lease]) -> None:
    rows = claimed_rows((lease.worker_id, lease.claims) for lease in leases)
    transaction.execute_rows(_free_devices, rows, stamp=transaction.stamp)
    transaction.execute_rows(_release_devices, [{"key": lease.id} for lease in leases])
    workers = key_rows({lease.worker_id for lease in leases})
    vanished = read_by_rows(transaction.connection, _unused_vanished_devices, workers)
    if vanished:
        transaction.execute_rows(_touch_workers, [{"key": row.worker_id} for row in vanished], stamp=transaction.stamp)
        transaction.execute_rows(_drop_devices, [{"worker_key": r.worker_id, "key": r.id} for r in vanished])


def end_requests(transaction: WriteTransaction, causes: Mapping[str, str], was: str, now: datetime) -> None:
    """End those of the requests, given with their causes, that are in the state `was`."""
    rows = [{"key": key, "cause": clean_cause(cause)} for key, cause in causes.items()]
    transaction.execute_rows(_end_requests, rows, was=was, moment=now, stamp=transaction.stamp)
    transaction.is_visible |= bool(rows)


@lru_cache(maxsize=2)
def _end_requests(dialect: str) -> Update:
    ended = json_table(dialect, key="text", cause="text")
    is_in_state = (_REQUEST.id == ended.c.key) & (without_index(_REQUEST.state) == bindparam("was"))
    values = {"state": "ended", "ended_at": bindparam("moment"), "cause": ended.c.cause, "changed": bindparam("stamp")}
    return update(tables.request).where(is_in_state).values(values)


@lru_cache(maxsize=2)
def _move(dialect: str) -> Update:
    moved = json_table(dialect, key="text", state="text", cause="text", outcome="text", ended_at="time")
    values = {name: moved.c[name] for name in ("state", "cause", "outcome", "ended_at")}
    return update(tables.lease).where(_LEASE.id == moved.c.key).values(values | {"changed": bindparam("stamp")})


@lru_cache(maxsize=2)
def _free_devices(dialect: str) -> Update:
    freed = json_table(dialect, worker_key="text", key="text", milli="number", memory="number")
    used_milli, memory = _DEVICE.used_milli - freed.c.milli, _DEVICE.used_memory_bytes - freed.c.memory
    return (
        update(tables.device)
        .where(_DEVICE.worker_id == freed.c.worker_key, _DEVICE.id == freed.c.key)
        .values(
            used_milli=used_milli,
            used_memory_bytes=memory,
            held_id=case((used_milli > 0, _DEVICE.held_id)),
            capacity_milli=case((_DEVICE.offered_milli >= used_milli, _DEVICE.offered_milli), else_=used_milli),
            capacity_memory_bytes=case(
                (_DEVICE.offered_memory_bytes < memory, memory), else_=_DEVICE.offered_memory_bytes
            ),
            changed=bindparam("stamp"),
        )
    )


@lru_cache(maxsize=2)
def _release_devices(dialect: str) -> Update:
    ended = json_table(dialect, key="text")
    return update(tables.lease_device).where(_HELD.lease_id == ended.c.key).values(is_held=False)


@lru_cache(maxsize=2)
def _unused_vanished_devices(dialect: str) -> Select[Any]:
    """Devices that are missing from the last inventory and have no lease."""
    workers = json_table(dialect, key="text")
    unused = (_DEVICE.used_milli == 0) & (_DEVICE.used_memory_bytes == 0)
    is_gone = (_DEVICE.worker_id == workers.c.key) & _DEVICE.is_vanished & unused
    return select(_DEVICE.worker_id, _DEVICE.id).join_from(workers, tables.device, is_gone)


@lru_cache(maxsize=2)
def _touch_workers(dialect: str) -> Update:
    touched = json_table(dialect, key="text")
    return update(tables.worker).where(_WORKER.id == touched.c.key).values(changed=bindparam("stamp"))


@lru_cache(maxsize=2)
def _drop_devices(dialect: str) -> Delete:
    dropped_devices = json_table(dialect, worker_key="text", key="text")
    dropped = select(dropped_devices.c.key).where(
        dropped_devices.c.worker_key == _DEVICE.worker_id, dropped_devices.c.key == _DEVICE.id
    )
    return delete(tables.device).where(dropped.exists())
