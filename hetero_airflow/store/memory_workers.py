"""The part of the store in memory that holds workers, their devices, holds and error records."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.health import NO_ERRORS, DeviceHealth, last_change
from hetero_airflow.model.heartbeat import ServerHeartbeat, WorkerHeartbeat, next_server_heartbeat
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Claim, Lease
from hetero_airflow.model.plan import Place
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.inventory import DeviceRecord, merge_inventory, worker_with_devices
from hetero_airflow.store.lease_rules import are_grantable, choose_cores
from hetero_airflow.store.snapshot_builder import SnapshotBuilder
from hetero_airflow.store.store import (
    SCHEDULER_KEPT,
    HealthNoted,
    HoldLifted,
    HoldPlaced,
    SchedulerDecided,
    ServerAlive,
    WorkerAlive,
    WorkerForgotten,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.units import MILLI_PER_DEVICE


@dataclass(slots=True)
class _WorkerRecord:
    reported: Worker
    state: WorkerState
    seen_at: datetime
    leases: frozenset[str] | None = None
    """As its agent reported last."""
    devices: dict[str, DeviceRecord] = field(default_factory=dict)
    telemetry: tuple[Telemetry, ...] = ()
    freed_at: datetime | None = None
    """When its last lease ended."""

    def record_heartbeat(self, event: WorkerSeen | WorkerAlive, now: datetime) -> None:
        self.seen_at = now
        self.telemetry = event.telemetry or self.telemetry
        self.leases = self.leases if event.leases is None else event.leases

    def is_unused_since(self, before: datetime) -> bool:
        """Whether the worker was not seen since this time, and held no lease since then."""
        is_idle = all(device.is_idle for device in self.devices.values())
        return is_idle and self.seen_at < before and (self.freed_at is None or self.freed_at < before)


class MemoryWorkers:
    """The part of `MemoryStore` that holds workers. Writes each change that a snapshot shows into the builder.

    The methods for events return whether a snapshot shows the change.
    """

    def __init__(self) -> None:
        self._builder = SnapshotBuilder()
        self._workers: dict[str, _WorkerRecord] = {}
        self._holds: defaultdict[str, dict[tuple[str, HoldKind], Hold]] = defaultdict(dict)
        """Worker id → (device id, kind) → hold."""
        self._health: dict[tuple[str, str], DeviceHealth] = {}
        self._cores: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        """(worker id, CPU id) → leased cores."""
        self._server: ServerHeartbeat | None = None
        self._decided: dict[str, datetime] = {}

    def _see(self, event: WorkerSeen, now: datetime) -> bool:
        record = self._workers.get(event.worker.id)
        may_be_online = self._may_be_online(record, event)
        if record is None:
            if not may_be_online:
                return False
            record = self._workers[event.worker.id] = _WorkerRecord(event.worker, WorkerState.ONLINE, now)
        elif not may_be_online or (record.reported == event.worker and record.state == WorkerState.ONLINE):
            record.record_heartbeat(event, now)
            return False
        record.devices = merge_inventory(record.devices, event.worker, record.seen_at, now)
        record.reported, record.state = event.worker, WorkerState.ONLINE
        record.record_heartbeat(event, now)
        self._show(record)
        return True

    def _may_be_online(self, record: _WorkerRecord | None, event: WorkerSeen) -> bool:
        """Whether the worker is online or may become so; see `WorkerSeen`."""
        if not event.leases or (record is not None and record.state == WorkerState.ONLINE):
            return True
        live = [self._builder.lease(lease_id) for lease_id in event.leases]
        is_held = all(lease is not None and lease.worker_id == event.worker.id for lease in live)
        return is_held and record is not None and event.leases <= (record.leases or frozenset())

    def _hear(self, event: WorkerAlive, now: datetime) -> bool:
        record = self._workers.get(event.worker_id)
        if record is not None and record.state == WorkerState.ONLINE:
            record.record_heartbeat(event, now)
        return False

    def _lose(self, event: WorkerLost, now: datetime) -> bool:
        record = self._workers.get(event.worker_id)
        if record is None or record.state == WorkerState.LOST:
            return False
        record.state, record.leases = WorkerState.LOST, None
        self._show(record)
        return True

    def _forget(self, event: WorkerForgotten, now: datetime) -> bool:
        record = self._workers.get(event.worker_id)
        if record is None or record.state != WorkerState.LOST or not record.is_unused_since(event.before):
            return False
        del self._workers[event.worker_id]
        for device_id in record.devices:
            self._cores.pop((event.worker_id, device_id), None)
        self._builder.drop_worker(event.worker_id)
        return True

    def _prune_workers(self, before: datetime) -> None:
        """Delete the old holds and error records of unknown workers; see `SqlStore.prune`."""
        for worker_id in self._holds.keys() - self._workers.keys():
            holds = {key: hold for key, hold in self._holds[worker_id].items() if hold.since >= before}
            if holds:
                self._holds[worker_id] = holds
            else:
                del self._holds[worker_id]
        for key in [key for key in self._health if key[0] not in self._workers]:
            if last_change(self._health[key], before) < before:
                del self._health[key]

    def _hear_server(self, event: ServerAlive, now: datetime) -> bool:
        self._server = next_server_heartbeat(self._server, now, is_new=event.is_new)
        return False

    def _note_decision(self, event: SchedulerDecided, now: datetime) -> bool:
        known = {id_: at for id_, at in self._decided.items() if at >= event.at - SCHEDULER_KEPT}
        self._decided = known | {event.scheduler: event.at}
        return False

    def _place_hold(self, event: HoldPlaced, now: datetime) -> bool:
        hold = replace(event.hold, cause=clean_cause(event.hold.cause))
        return self._set_hold(hold.worker_id, hold.device_id, hold.kind, hold)

    def _lift_hold(self, event: HoldLifted, now: datetime) -> bool:
        return self._set_hold(event.worker_id, event.device_id, event.kind, None)

    def _set_hold(self, worker_id: str, device_id: str, kind: HoldKind, hold: Hold | None) -> bool:
        holds, key = self._holds[worker_id], (device_id, kind)
        if holds.get(key) == hold:
            return False
        if hold is None:
            del holds[key]
        else:
            holds[key] = hold
        record = self._workers.get(worker_id)
        if record is not None:
            self._show(record)
        return record is not None

    def _note_health(self, event: HealthNoted, now: datetime) -> bool:
        self._health[event.worker_id, event.device_id] = event.health
        return False

    def _change_health(self, event: HealthChanged, now: datetime) -> bool:
        before = self._health.get((event.worker_id, event.device_id), NO_ERRORS)
        health, hold = event.change(before)
        if health == before:
            return False
        self._health[event.worker_id, event.device_id] = health
        hold = None if hold is None else replace(hold, cause=clean_cause(hold.cause))
        return self._set_hold(event.worker_id, event.device_id, HoldKind.QUARANTINED, hold)

    def _show(self, record: _WorkerRecord) -> None:
        worker_id = record.reported.id
        devices = (device.device for device in record.devices.values())
        shown = worker_with_devices(record.reported, devices, record.state)
        since = {device_id: device.reported_since for device_id, device in record.devices.items()}
        self._builder.put_worker(shown, self._holds[worker_id].values(), since)
        usage = {device_id: device.usage for device_id, device in record.devices.items()}
        self._builder.put_usage(worker_id, usage, replace=True)

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
            if device is None or cores is None or not self._is_free_to_lease(place.worker_id, device.device):
                return None
            granted[claim.device_id] = device
            claims.append(replace(claim, cores=cores) if cores else claim)
        record.devices.update(granted)
        self._builder.put_usage(place.worker_id, {device_id: device.usage for device_id, device in granted.items()})
        for claim in claims:
            if claim.cores:
                self._cores[place.worker_id, claim.device_id].update(claim.cores)
        return tuple(claims)

    def _is_free_to_lease(self, worker_id: str, device: Device) -> bool:
        """Whether there is no hold on the device, and no other worker has leased the same physical device."""
        is_on_hold = bool(holds_on(device, self._holds[worker_id].values()))
        return not is_on_hold and self._builder.holder_elsewhere(worker_id, device.id) is None

    def _choose_cores(self, worker_id: str, record: DeviceRecord, claim: Claim) -> tuple[int, ...] | None:
        if record.device.kind != "cpu":
            return ()
        leased_cores = self._cores[worker_id, record.device.id]
        return choose_cores(record.device.cores, leased_cores, claim.share_milli // MILLI_PER_DEVICE)

    def _free(self, lease: Lease, now: datetime) -> None:
        record = self._workers[lease.worker_id]
        record.freed_at = now
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

    def telemetry(self) -> dict[tuple[str, str], Telemetry]:
        """(worker id, device id) → last reading."""
        return {(i, reading.device_id): reading for i, record in self._workers.items() for reading in record.telemetry}

    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """(worker id, device id) → record of its errors; without devices that have none."""
        return {key: health for key, health in self._health.items() if health != NO_ERRORS}

    def last_seen(self) -> dict[str, datetime]:
        """Worker id → time of its last heartbeat."""
        return {worker_id: record.seen_at for worker_id, record in self._workers.items()}

    def heartbeats(self) -> dict[str, WorkerHeartbeat]:
        """Worker id → last heartbeat of its agent; without workers that have no agent or are lost."""
        return {
            worker_id: WorkerHeartbeat(record.seen_at, record.leases)
            for worker_id, record in self._workers.items()
            if record.leases is not None
        }

    def last_decisions(self) -> dict[str, datetime]:
        """Scheduler → the end of its last cycle."""
        return dict(self._decided)

    def server_heartbeat(self) -> ServerHeartbeat | None:
        """The last heartbeat of the API server; None if there was none."""
        return self._server
