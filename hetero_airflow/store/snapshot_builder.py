"""The live part of the world, kept ready so that a snapshot costs what changed since the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hetero_airflow.model.hold import Hold, with_holds
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker


class SnapshotBuilder:
    """Workers by id, usage, pending by time of submission, live leases by token, their holders; makes a `Snapshot`.

    A part that did not change is the same object in the next snapshot, which policies may rely on
    for what they cache.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._is_sorted = True
        self._usage: dict[str, Mapping[str, DeviceUsage]] = {}
        self._pending: dict[str, PendingRequest] = {}
        self._latest: tuple[datetime, str] | None = None
        """Where the last of them stands in the queue; None if they are not in its order."""
        self._leases: dict[str, Lease] = {}
        self._holders: dict[str, PendingRequest] = {}
        self._bars: dict[str, tuple[Hold, ...]] = {}
        self._dag_tokens: dict[str, int] = {}
        self._last = Snapshot(sequence=-1, usage=UsageByWorker({}))
        self._changed = {"workers", "usage", "pending", "leases", "dag_tokens", "holders"}

    def put_worker(self, worker: Worker, bars: Iterable[Hold] = ()) -> None:
        """Take in a worker with all bars on it and its devices, or replace them."""
        self._is_sorted &= worker.id in self._workers
        own = tuple(sorted(bars, key=lambda bar: (bar.device_id, bar.kind)))
        self._workers[worker.id] = with_holds(worker, own)
        self._changed.add("workers")
        if own != self._bars.get(worker.id, ()):
            self._bars[worker.id] = own
            self._changed.add("bars")

    def put_usage(self, worker_id: str, usage: Mapping[str, DeviceUsage], *, replace: bool = False) -> None:
        """Take in the usage of some of a worker's devices, or with `replace` of all of them."""
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
        """Take in a request that waits, or replace it."""
        is_last = not self._pending or (self._latest is not None and self._latest <= pending.order())
        self._pending.pop(pending.id, None)
        self._pending[pending.id] = pending
        self._latest = pending.order() if is_last else None
        self._changed.add("pending")

    def drop_pending(self, request_id: str) -> None:
        """Let go of a request that does not wait any longer; unknown ids are passed over."""
        if self._pending.pop(request_id, None) is not None:
            self._changed.add("pending")

    def put_holder(self, pending: PendingRequest) -> None:
        """Take in a request that got a lease; it does not wait any longer."""
        self.drop_pending(pending.id)
        self._holders[pending.id] = pending
        self._changed.add("holders")

    def drop_holder(self, request_id: str) -> None:
        """Let go of a request that holds no lease any longer; unknown ids are passed over."""
        if self._holders.pop(request_id, None) is not None:
            self._changed.add("holders")

    def put_lease(self, lease: Lease) -> None:
        """Take in a live lease, or replace it. New ones come in the order of their tokens."""
        self._leases[lease.id] = lease
        self._changed.add("leases")

    def drop_lease(self, lease_id: str) -> None:
        """Let go of a lease that has ended; unknown ids are passed over."""
        if self._leases.pop(lease_id, None) is not None:
            self._changed.add("leases")

    def put_dag_token(self, dag_id: str, token: int) -> None:
        """Take in the token of the newest lease of a DAG's requests."""
        self._dag_tokens[dag_id] = token
        self._changed.add("dag_tokens")

    def lease(self, lease_id: str) -> Lease | None:
        """The live lease of that id."""
        return self._leases.get(lease_id)

    def snapshot(self, sequence: int) -> Snapshot:
        """The present state under that sequence."""
        last, changed = self._last, self._changed
        if sequence != last.sequence or changed:
            if not self._is_sorted:
                self._workers, self._is_sorted = dict(sorted(self._workers.items())), True
            if self._pending and self._latest is None:
                queue = sorted(self._pending.values(), key=PendingRequest.order)
                self._pending, self._latest = {one.id: one for one in queue}, queue[-1].order()
            self._last = Snapshot(
                sequence,
                tuple(self._workers.values()) if "workers" in changed else last.workers,
                UsageByWorker(self._usage.copy()) if "usage" in changed else last.usage,
                tuple(self._pending.values()) if "pending" in changed else last.pending,
                tuple(self._leases.values()) if "leases" in changed else last.leases,
                self._dag_tokens.copy() if "dag_tokens" in changed else last.dag_tokens,
                self._holders.copy() if "holders" in changed else last.holders,
                holds=tuple(bar for _, own in sorted(self._bars.items()) for bar in own)
                if "bars" in changed
                else last.holds,
            )
            self._changed = set()
        return self._last
