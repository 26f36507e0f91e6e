"""The store in memory, for the simulator. For one thread; its content ends with the process."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import TERMINAL, Claim, Lease
from hetero_airflow.model.plan import Place, Plan, Refuse
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.inventory import DeviceRecord, merge_inventory, worker_with_devices
from hetero_airflow.store.lease_rules import are_grantable, check_move, choose_cores, granted_lease
from hetero_airflow.store.snapshot_builder import SnapshotBuilder
from hetero_airflow.store.store import (
    CheckpointSaved,
    CommitResult,
    LeaseMove,
    RequestSubmitted,
    RequestWithdrawn,
    StoreEvent,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.units import MILLI_PER_DEVICE


@dataclass(slots=True)
class _WorkerRecord:
    reported: Worker
    state: WorkerState
    seen_at: datetime
    devices: dict[str, DeviceRecord] = field(default_factory=dict)


class MemoryStore:
    """A `Store` that keeps only what is live: workers, and the requests that wait or hold a lease.

    It has no history, so an ended lease is not found. It knows no agents and no persons: it records what happens to
    workers, requests and checkpoints, and raises a `KeyError` for other events.
    """

    def __init__(self) -> None:
        self._builder = SnapshotBuilder()
        self._workers: dict[str, _WorkerRecord] = {}
        self._cores: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        """(worker id, CPU id) → leased cores."""
        self._sequence = 0
        self._token = 0
        self._recorders: dict[type, Callable[[Any, datetime], bool]] = {
            WorkerSeen: self._see,
            WorkerLost: self._lose,
            RequestSubmitted: self._submit,
            RequestWithdrawn: self._withdraw,
            CheckpointSaved: self._save,
        }
        """Type of event → records one, and returns whether a snapshot shows the change."""

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Record the events in order."""
        is_visible = False
        for event in events:
            is_visible |= self._recorders[type(event)](event, now)
        self._sequence += is_visible

    def snapshot(self) -> Snapshot:
        """The current state; cheap if nothing has changed since the last call."""
        return self._builder.snapshot(self._sequence)

    def commit(
        self, plan: Plan, now: datetime, expires_at: datetime, events: Sequence[StoreEvent] = ()
    ) -> CommitResult:
        """Grant the placements of a plan, and end the refused requests; see the port."""
        self.record(events, now)
        leases: list[Lease] = []
        refused: list[str] = []
        has_ended = False
        for decision in plan.decisions:
            is_waiting = decision.request_id in self._builder.pending
            if isinstance(decision, Place):
                lease = self._grant(decision, now, expires_at) if is_waiting else None
                if lease is None:
                    refused.append(decision.request_id)
                else:
                    leases.append(lease)
            elif isinstance(decision, Refuse) and is_waiting:
                self._builder.pending.drop(decision.request_id)
                has_ended = True
        self._sequence += bool(leases) or has_ended
        return CommitResult(tuple(leases), tuple(refused))

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; returns the result of each move, in order; see the port."""
        return tuple(map(self._move, moves))

    def _move(self, move: LeaseMove) -> Lease | StoreError:
        lease = check_move(move, self._builder.leases.get(move.lease_id))
        if isinstance(lease, StoreError):
            return lease
        moved = self._change(lease, state=move.to)
        if move.to in TERMINAL:
            self._free(lease)
            self._builder.leases.drop(lease.id)
            self._builder.holders.drop(lease.request_id)
        self._sequence += 1
        return moved

    def _submit(self, event: RequestSubmitted, now: datetime) -> bool:
        if event.request_id in self._builder.pending or event.request_id in self._builder.holders:
            return False
        self._builder.put_pending(event.pending)
        return True

    def _withdraw(self, event: RequestWithdrawn, now: datetime) -> bool:
        return self._builder.pending.drop(event.request_id)

    def _save(self, event: CheckpointSaved, now: datetime) -> bool:
        lease = self._builder.leases.get(event.lease_id)
        if lease is None or lease.token != event.token:
            return False
        self._change(lease, saved_at=now)
        return True

    def _change(self, lease: Lease, **fields: object) -> Lease:
        changed = lease.model_copy(update=fields)
        self._builder.leases.put(lease.id, changed)
        return changed

    def _see(self, event: WorkerSeen, now: datetime) -> bool:
        record = self._workers.get(event.worker.id)
        if record is None:
            record = self._workers[event.worker.id] = _WorkerRecord(event.worker, WorkerState.ONLINE, now)
        elif record.reported == event.worker and record.state == WorkerState.ONLINE:
            record.seen_at = now
            return False
        record.devices = merge_inventory(record.devices, event.worker, record.seen_at, now)
        record.reported, record.state, record.seen_at = event.worker, WorkerState.ONLINE, now
        self._show(record)
        return True

    def _lose(self, event: WorkerLost, now: datetime) -> bool:
        record = self._workers.get(event.worker_id)
        if record is None or record.state == WorkerState.LOST:
            return False
        record.state = WorkerState.LOST
        self._show(record)
        return True

    def _show(self, record: _WorkerRecord) -> None:
        devices = (device.device for device in record.devices.values())
        shown = worker_with_devices(record.reported, devices, record.state)
        since = {device_id: device.reported_since for device_id, device in record.devices.items()}
        self._builder.put_worker(shown, (), since)
        usage = {device_id: device.usage for device_id, device in record.devices.items()}
        self._builder.put_usage(shown.id, usage, replace=True)

    def _grant(self, place: Place, now: datetime, expires_at: datetime) -> Lease | None:
        claims = self._take(place, now)
        if claims is None:
            return None
        self._token += 1
        lease = granted_lease(place, claims, self._token, now, expires_at)
        pending = self._builder.pending[place.request_id]
        self._builder.put_holder(pending)
        self._builder.dag_tokens.put(pending.dag_id, self._token)
        self._builder.leases.put(lease.id, lease)
        return lease

    def _take(self, place: Place, now: datetime) -> tuple[Claim, ...] | None:
        """Take the devices of a placement: its claims with their cores, or None if one of them does not fit."""
        record = self._workers.get(place.worker_id)
        if record is None or record.state != WorkerState.ONLINE or not are_grantable(place.claims):
            return None
        granted: dict[str, DeviceRecord] = {}
        claims: list[Claim] = []
        for claim in place.claims:
            offered = record.devices.get(claim.device_id)
            device = None if offered is None else offered.grant(claim, now)
            cores = None if device is None else self._choose_cores(place.worker_id, device, claim)
            if device is None or cores is None or self._builder.holder_elsewhere(place.worker_id, claim.device_id):
                return None
            granted[claim.device_id] = device
            claims.append(replace(claim, cores=cores) if cores else claim)
        record.devices.update(granted)
        self._builder.put_usage(place.worker_id, {device_id: device.usage for device_id, device in granted.items()})
        for claim in claims:
            if claim.cores:
                self._cores[place.worker_id, claim.device_id].update(claim.cores)
        return tuple(claims)

    def _choose_cores(self, worker_id: str, record: DeviceRecord, claim: Claim) -> tuple[int, ...] | None:
        if record.device.kind != "cpu":
            return ()
        leased_cores = self._cores[worker_id, record.device.id]
        return choose_cores(record.device.cores, leased_cores, claim.share_milli // MILLI_PER_DEVICE)

    def _free(self, lease: Lease) -> None:
        record = self._workers[lease.worker_id]
        for claim in lease.claims:
            if claim.cores:
                self._cores[lease.worker_id, claim.device_id].difference_update(claim.cores)
            device = record.devices[claim.device_id].free(claim)
            if device is None:
                del record.devices[claim.device_id]
                self._show(record)
            else:
                record.devices[claim.device_id] = device
                self._builder.put_usage(lease.worker_id, {claim.device_id: device.usage})
