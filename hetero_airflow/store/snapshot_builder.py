"""Builds snapshots. It keeps the live state, so that a snapshot costs only what changed since the last one."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, TypeVar

from hetero_airflow.model.hold import Hold, with_holds
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.contested_devices import ContestedDevices

V = TypeVar("V")


class LivePart(dict[str, V]):
    """One part of the live state, by id. Change it by these methods only: they note that it has changed."""

    has_changed = True
    """Since the last snapshot."""

    def put(self, key: str, value: V) -> None:
        """Add or replace a value."""
        self[key] = value
        self.has_changed = True

    def drop(self, key: str) -> bool:
        """Remove a value. Returns whether there was one."""
        if key not in self:
            return False
        del self[key]
        self.has_changed = True
        return True

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove everything except what has these ids."""
        for key in self.keys() - keys:
            self.drop(key)


class SnapshotBuilder:
    """Holds what a `Snapshot` shows: workers by id, usage, pending requests by time of submission, leases by token.

    A part that does not change is the same object in the next snapshot. Policies may rely on this for their caches.
    """

    def __init__(self) -> None:
        self._workers: LivePart[Worker] = LivePart()
        """As reported, with their holds."""
        self._contested = ContestedDevices()
        self._is_sorted = True
        self._usage: LivePart[Mapping[str, DeviceUsage]] = LivePart()
        self._holds: LivePart[tuple[Hold, ...]] = LivePart()
        self.pending: LivePart[PendingRequest] = LivePart()
        """The requests that wait; see `put_pending`."""
        self._latest: tuple[datetime, str] | None = None
        """Place of the last pending request in the queue; None if they are not sorted."""
        self.leases: LivePart[Lease] = LivePart()
        """The live leases; new ones are added in the order of their tokens."""
        self.holders: LivePart[PendingRequest] = LivePart()
        """The requests that have a lease; see `put_holder`."""
        self.dag_tokens: LivePart[int] = LivePart()
        """DAG → the token of the newest lease of its requests."""
        self._last = Snapshot(sequence=-1, usage=UsageByWorker({}))

    def put_worker(
        self, worker: Worker, holds: Iterable[Hold] = (), reported_since: Mapping[str, datetime | None] = {}
    ) -> None:
        """Add or replace a worker, with all holds on it and on its devices.

        :param reported_since: device id → when the worker first reported it
        """
        self._is_sorted &= worker.id in self._workers
        ordered = tuple(sorted(holds, key=lambda hold: (hold.device_id, hold.kind)))
        self._workers.put(worker.id, with_holds(worker, ordered))
        self._contested.put_worker(self._workers[worker.id], reported_since, ordered)
        if ordered != self._holds.get(worker.id, ()):
            self._holds.put(worker.id, ordered)

    def put_usage(self, worker_id: str, usage: Mapping[str, DeviceUsage], *, replace: bool = False) -> None:
        """Set the usage of some of a worker's devices, or with `replace` of all of them."""
        merged = {} if replace else dict(self._usage.get(worker_id, {}))
        for device_id, value in usage.items():
            if value == NO_USAGE:
                merged.pop(device_id, None)
            else:
                merged[device_id] = value
        if merged:
            self._usage.put(worker_id, merged)
        else:
            self._usage.drop(worker_id)

    def put_pending(self, pending: PendingRequest) -> None:
        """Add or replace a waiting request."""
        is_last = not self.pending or (self._latest is not None and self._latest <= pending.order())
        self.pending.drop(pending.id)
        self.pending.put(pending.id, pending)
        self._latest = pending.order() if is_last else None

    def put_holder(self, pending: PendingRequest) -> None:
        """Add a request that has a lease; it no longer waits."""
        self.pending.drop(pending.id)
        self.holders.put(pending.id, pending)

    def keep_only(
        self, workers: AbstractSet[str], requests: AbstractSet[str], leases: AbstractSet[str], dags: AbstractSet[str]
    ) -> None:
        """Remove everything except what has these ids, after the rest was deleted."""
        for worker_id in self._workers.keys() - workers:
            self._workers.drop(worker_id)
            self._contested.drop_worker(worker_id)
            self._usage.drop(worker_id)
            self._holds.drop(worker_id)
        self.pending.keep_only(requests)
        self.holders.keep_only(requests)
        self.leases.keep_only(leases)
        self.dag_tokens.keep_only(dags)

    def holder_elsewhere(self, worker_id: str, device_id: str) -> str | None:
        """Another worker that has leased the same physical device; None if there is none."""
        return self._contested.holder_elsewhere(worker_id, device_id, self._usage)

    def snapshot(self, sequence: int) -> Snapshot:
        """The current state, as the snapshot of this sequence."""
        parts: list[LivePart[Any]] = [self._workers, self._usage, self._holds, self.pending, self.leases]
        parts += [self.holders, self.dag_tokens]
        if sequence != self._last.sequence or any(part.has_changed for part in parts):
            self._last = self._next_snapshot(sequence)
            for part in parts:
                part.has_changed = False
        return self._last

    def _next_snapshot(self, sequence: int) -> Snapshot:
        last = self._last
        if not self._is_sorted:
            _set_order(self._workers, sorted(self._workers))
            self._is_sorted = True
        if self._workers.has_changed or self._usage.has_changed:
            self._workers.has_changed |= self._contested.update(self._workers, self._usage)
        if self.pending and self._latest is None:
            queue = sorted(self.pending.values(), key=PendingRequest.order)
            _set_order(self.pending, [request.id for request in queue])
            self._latest = queue[-1].order()
        return Snapshot(
            sequence,
            self._contested.shown(self._workers) if self._workers.has_changed else last.workers,
            UsageByWorker(self._usage.copy()) if self._usage.has_changed else last.usage,
            tuple(self.pending.values()) if self.pending.has_changed else last.pending,
            tuple(self.leases.values()) if self.leases.has_changed else last.leases,
            self.dag_tokens.copy() if self.dag_tokens.has_changed else last.dag_tokens,
            self.holders.copy() if self.holders.has_changed else last.holders,
            holds=tuple(hold for _, holds in sorted(self._holds.items()) for hold in holds)
            if self._holds.has_changed
            else last.holds,
        )


def _set_order(part: LivePart[V], keys: Iterable[str]) -> None:
    for key in keys:
        part[key] = part.pop(key)
