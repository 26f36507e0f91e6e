"""Expires leases that were not renewed, evicts those whose process is gone, and finds workers without heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Engine, Liveness
from hetero_airflow.model.heartbeat import ServerHeartbeat, time_without_heartbeat
from hetero_airflow.model.lease import TERMINAL, Lease, LeaseState
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.store import LeaseMove, Store, WorkerLost

log = logging.getLogger(__name__)


def reap(store: Store, engine: Engine, leases: Iterable[Lease], now: datetime) -> tuple[Lease, ...]:
    """Expire the leases that are due and evict those whose process is gone; the changed leases, in their new state.

    An expired lease keeps its devices while its process runs, or while the engine does not know. An idle device is
    better than one that two tasks use.
    """
    moved = []
    for lease in leases:
        current = lease
        if lease.expires_at <= now and lease.state is not LeaseState.EXPIRED and lease.state not in TERMINAL:
            expired = _move(store, lease, LeaseState.EXPIRED, now, f"not renewed since {lease.expires_at:%H:%M:%S} UTC")
            if expired is None:
                continue
            current = expired
        if current.state is LeaseState.EXPIRED and _is_gone(engine, current):
            current = _move(store, current, LeaseState.EVICTED, now, "its process is gone") or current
        if current is not lease:
            moved.append(current)
    return tuple(moved)


def lost_workers(
    workers: Iterable[Worker],
    last_seen: Mapping[str, datetime],
    agents: Container[str],
    server: ServerHeartbeat | None,
    now: datetime,
    worker_timeout_s: float,
) -> tuple[WorkerLost, ...]:
    """An event for each online worker whose heartbeat is overdue; the caller records them.

    The time without a heartbeat of an agent counts only while an API server could receive one. A server that is down,
    or has just come back, loses no worker. The timeout has to be longer than two heartbeats.

    The cycle does not call this. The times come from the store's `Presence`, a query that is worth its cost a few
    times a minute, not in every cycle.

    :param agents: ids of the workers that have an agent, as in `Presence.heartbeats`; a scheduler reports the others
    :param server: as in `Presence.server_heartbeat`
    """
    timeout = timedelta(seconds=worker_timeout_s)

    def without_heartbeat(worker_id: str, seen_at: datetime) -> timedelta:
        if worker_id not in agents:
            return now - seen_at
        return timedelta(0) if server is None else time_without_heartbeat(seen_at, server, now)

    return tuple(
        WorkerLost(worker.id)
        for worker in workers
        if worker.state is WorkerState.ONLINE and without_heartbeat(worker.id, last_seen.get(worker.id, now)) >= timeout
    )


def _is_gone(engine: Engine, lease: Lease) -> bool:
    """Whether an expired lease may be evicted."""
    try:
        return engine.liveness(lease) is Liveness.GONE
    except Exception as error:  # noqa: BLE001  whatever an engine raises means that it can't tell
        log.warning(
            "Lease %s keeps its devices, since the engine can't tell whether its process runs: %s", lease.id, error
        )
        return False


def _move(store: Store, lease: Lease, to: LeaseState, now: datetime, cause: str) -> Lease | None:
    """The lease in its new state; None if another scheduler or the lease's holder was faster."""
    outcome = store.move([LeaseMove(lease.id, lease.token, to, cause)], now)[0]
    if isinstance(outcome, Lease):
        return outcome
    log.debug("Lease %s was not moved to %s: %s", lease.id, to, outcome)
    return None
