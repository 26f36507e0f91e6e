"""Builds snapshots. It keeps the live state, so that a snapshot costs only what changed since the last one."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime

from hetero_airflow.model.hold import Hold, with_holds
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.contested_devices import ContestedDevices


class SnapshotBuilder:
    """Holds what a `Snapshot` shows: workers by id, usage, pending requests by time of submission, leases by token.

    A part that does not change is the same object in the next snapshot. Policies may rely on this for their caches.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        """As reported, with their holds."""
        self._contested = ContestedDevices()
        self._is_sorted = True
        self._usage: dict[str, Mapping[str, DeviceUsage]] = {}
        self._pending: dict[str, PendingRequest] = {}
        self._latest: tuple[datetime, str] | None = None
        """Place of the last pending request in the queue; None if they are not sorted."""
        self._leases: dict[str, Lease] = {}
        self._holders: dict[str, PendingRequest] = {}
        self._holds: dict[str, tuple[Hold, ...]] = {}
        self._dag_tokens: dict[str, int] = {}
        self._last = Snapshot(sequence=-1, usage=UsageByWorker({}))
        self._changed = {"workers", "usage", "pending", "leases", "dag_tokens", "holders"}

    def put_worker(
        self, worker: Worker, holds: Iterable[Hold] = (), reported_since: Mapping[str, datetime | None] = {}
    ) -> None:
        """Add or replace a worker, with all holds on it and on its devices.

        :param reported_since: device id → when the worker first reported it
        """
        self._is_sorted &= worker.id in self._workers
        ordered = tuple(sorted(holds, key=lambda hold: (hold.device_id, hold.kind)))
        self._workers[worker.id] = with_holds(worker, ordered)
        self._contested.put_worker(self._workers[worker.id], reported_since, ordered)
        self._changed.add("workers")
        if ordered != self._holds.get(worker.id, ()):
            self._holds[worker.id] = ordered
            self._changed.add("holds")

    def drop_worker(self, worker_id: str) -> None:
        """Remove a worker that holds no lease, with the holds on it; unknown ids are ignored."""
        if self._workers.pop(worker_id, None) is not None:
            self._contested.drop_worker(worker_id)
            self._changed.add("workers")
        if self._usage.pop(worker_id, None) is not None:
            self._changed.add("usage")
        if self._holds.pop(worker_id, None) is not None:
            self._changed.add("holds")

    def put_usage(self, worker_id: str, usage: Mapping[str, DeviceUsage], *, replace: bool = False) -> None:
        """Set the usage of some of a worker's devices, or with `replace` of all of them."""
        merged = {} if replace else dict(self._usage.get(worker_id, {}))
        for device_id, value in usage.items():
            if value == NO_USAGE:
                merged.pop(device_id, None)
            else:
                merged[device_id] = value
        if merged:
            self._usage[worker_id] = merged
        else:
            self._usage.pop(worker_id, None)
        self._changed.add("usage")

    def put_pending(self, pending: PendingRequest) -> None:
        """Add or replace a waiting request."""
        is_last = not self._pending or (self._latest is not None and self._latest <= pending.order())
        self._pending.pop(pending.id, None)
        self._pending[pending.id] = pending
        self._latest = pending.order() if is_last else None
        self._changed.add("pending")

    def drop_pending(self, request_id: str) -> None:
        """Remove a request that no longer waits; unknown ids are ignored."""
        if self._pending.pop(request_id, None) is not None:
            self._changed.add("pending")

    def put_holder(self, pending: PendingRequest) -> None:
        """Add a request that has a lease; it no longer waits."""
        self.drop_pending(pending.id)
        self._holders[pending.id] = pending
        self._changed.add("holders")

    def drop_holder(self, request_id: str) -> None:
        """Remove a request that has no lease any more; unknown ids are ignored."""
        if self._holders.pop(request_id, None) is not None:
            self._changed.add("holders")

    def put_lease(self, lease: Lease) -> None:
        """Add or replace a live lease. The caller adds new leases in the order of their tokens."""
        self._leases[lease.id] = lease
        self._changed.add("leases")

    def drop_lease(self, lease_id: str) -> None:
        """Remove an ended lease; unknown ids are ignored."""
        if self._leases.pop(lease_id, None) is not None:
            self._changed.add("leases")

    def put_dag_token(self, dag_id: str, token: int) -> None:
        """Set the token of the newest lease of a DAG's requests."""
        self._dag_tokens[dag_id] = token
        self._changed.add("dag_tokens")

    def drop_dag_tokens(self, dag_ids: AbstractSet[str]) -> bool:
        """Remove the tokens of all DAGs except these. Returns whether there were any."""
        dropped = self._dag_tokens.keys() - dag_ids
        for dag_id in dropped:
            del self._dag_tokens[dag_id]
        if dropped:
            self._changed.add("dag_tokens")
        return bool(dropped)

    def keep_only(
        self, workers: AbstractSet[str], requests: AbstractSet[str], leases: AbstractSet[str], dags: AbstractSet[str]
    ) -> None:
        """Remove everything except what has these ids, after the rest was deleted."""
        for worker_id in self._workers.keys() - workers:
            self.drop_worker(worker_id)
        for request_id in (self._pending.keys() | self._holders.keys()) - requests:
            self.drop_pending(request_id)
            self.drop_holder(request_id)
        for lease_id in self._leases.keys() - leases:
            self.drop_lease(lease_id)
        self.drop_dag_tokens(dags)

    def lease(self, lease_id: str) -> Lease | None:
        """The live lease with this id."""
        return self._leases.get(lease_id)

    def holder_elsewhere(self, worker_id: str, device_id: str) -> str | None:
        """Another worker that has leased the same physical device; None if there is none."""
        return self._contested.holder_elsewhere(worker_id, device_id, self._usage)

    def snapshot(self, sequence: int) -> Snapshot:
        """The current state, as the snapshot of this sequence."""
        last, changed = self._last, self._changed
        if sequence != last.sequence or changed:
            if not self._is_sorted:
                self._workers, self._is_sorted = dict(sorted(self._workers.items())), True
            if changed & {"workers", "usage"} and self._contested.update(self._workers, self._usage):
                changed.add("workers")
            if self._pending and self._latest is None:
                queue = sorted(self._pending.values(), key=PendingRequest.order)
                self._pending, self._latest = {request.id: request for request in queue}, queue[-1].order()
            self._last = Snapshot(
                sequence,
                self._contested.shown(self._workers) if "workers" in changed else last.workers,
                UsageByWorker(self._usage.copy()) if "usage" in changed else last.usage,
                tuple(self._pending.values()) if "pending" in changed else last.pending,
                tuple(self._leases.values()) if "leases" in changed else last.leases,
                self._dag_tokens.copy() if "dag_tokens" in changed else last.dag_tokens,
                self._holders.copy() if "holders" in changed else last.holders,
                holds=tuple(hold for _, holds in sorted(self._holds.items()) for hold in holds)
                if "holds" in changed
                else last.holds,
            )
            self._changed = set()
        return self._last
