"""Expires leases that were not renewed, evicts those whose process is gone, finds lost workers and old ones."""

import logging
from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Engine, Liveness
from hetero_airflow.model.heartbeat import ServerHeartbeat, time_without_heartbeat
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.model.lease import TERMINAL, Lease, LeaseState
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import SITE_LABEL
from hetero_airflow.model.worker import Worker, WorkerState, worker_type
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

    The cycle does not call this. The times come from the store, a query that is worth its cost a few
    times a minute, not in every cycle.

    :param agents: ids of the workers that have an agent, as in `SqlStore.heartbeats`; a scheduler reports the others
    :param server: as in `SqlStore.server_heartbeat`
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


def forgettable_workers(
    snapshot: Snapshot, last_seen: Mapping[str, datetime], before: datetime, long_before: datetime
) -> tuple[str, ...]:
    """Ids of the lost workers that were not seen since `before` and hold no lease.

    Two kinds of lost workers are kept until they were not seen since `long_before`. The last known worker of its type
    and labels shows what such workers can run. Without it, a fleet that was scaled to zero could not grow again, and
    its requests would be refused. A worker with a hold must not come back without it, and a hold goes with the worker.
    """
    leased = {lease.worker_id for lease in snapshot.leases}
    held = {hold.worker_id for hold in snapshot.holds if hold.kind not in (HoldKind.LEAVING, HoldKind.RECLAIMED)}
    newest_first = sorted(
        snapshot.workers,
        key=lambda worker: (worker.state is WorkerState.ONLINE, last_seen.get(worker.id, long_before), worker.id),
        reverse=True,
    )
    offers: set[tuple[object, ...]] = set()
    forgettable = []
    for worker in newest_first:
        offer = _offer(worker)
        limit = long_before if worker.id in held or offer not in offers else before
        is_silent = worker.id not in last_seen or last_seen[worker.id] < limit
        if worker.state is WorkerState.LOST and worker.id not in leased and is_silent:
            forgettable.append(worker.id)
        else:
            offers.add(offer)
    return tuple(sorted(forgettable))


def _offer(worker: Worker) -> tuple[object, ...]:
    """What makes a worker different for requests: engine, type and labels.

    Of a cluster's node, only the label of the site counts, since each node has a label with its name.
    """
    labels = {SITE_LABEL: worker.labels.get(SITE_LABEL)} if worker.node_assigns_devices else worker.labels
    return worker.engine, worker_type(worker), frozenset(labels.items())


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
