"""What is free on the devices that a plan places on, while the plan is granted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, exists, select

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Place
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES
from hetero_airflow.store.lease_rules import are_grantable, choose_cores, suits_device_kind
from hetero_airflow.store.sql.holds import read_devices_on_hold
from hetero_airflow.store.sql.json_rows import json_table, read_by_rows
from hetero_airflow.store.sql.tallies import model_label
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.units import MILLI_PER_DEVICE

_HOLDER = tables.device.alias("holder").c
_WORKER, _DEVICE, _HELD = tables.worker.c, tables.device.c, tables.lease_device.c


@dataclass(slots=True)
class _FreeDevice:
    """What is free on one device."""

    kind: str
    inventory: str
    """The whole device, JSON."""
    is_open: bool
    """Whether it may be leased at all."""
    milli: int
    memory_bytes: int | None
    """None for an accelerator, whose memory is not counted."""
    physical_id: str | None
    taken: set[int] = field(default_factory=set)
    """Leased cores."""

    def fit(self, claim: Claim) -> Claim | None:
        """The claim with its cores, or None if it does not fit."""
        if not self.is_open or not suits_device_kind(self.kind, claim) or claim.share_milli > self.milli:
            return None
        if self.memory_bytes is not None and claim.memory_bytes > self.memory_bytes:
            return None
        if self.kind != "cpu":
            return claim
        cores = choose_cores(_read_device(self.inventory).cores, self.taken, claim.share_milli // MILLI_PER_DEVICE)
        return None if cores is None else replace(claim, cores=cores)


class DeviceLedger:
    """Reads the devices once under the writers' lock; then every placement of the plan is tried in memory."""

    def __init__(self, transaction: WriteTransaction, places: Sequence[Place]) -> None:
        self._devices: dict[tuple[str, str], _FreeDevice] = {}
        self._takers: dict[str, str] = {}
        """Physical id → the worker that has got the device in this plan."""
        if not places:
            return
        pairs = {(place.worker_id, claim.device_id) for place in places for claim in place.claims}
        wanted = [{"worker_key": worker_id, "key": key} for worker_id, key in sorted(pairs)]
        rows = read_by_rows(transaction.connection, _read_devices, wanted, online=WorkerState.ONLINE)
        on_hold = read_devices_on_hold(transaction.connection, {row.worker_id for row in rows if row.has_holds})
        for row in rows:
            memory = None if row.capacity_memory_bytes is None else row.capacity_memory_bytes - row.used_memory_bytes
            self._devices[row.worker_id, row.id] = _FreeDevice(
                row.kind,
                row.inventory,
                row.leasable and row.is_online and not row.has_holder and (row.worker_id, row.id) not in on_hold,
                row.capacity_milli - row.used_milli,
                memory,
                row.physical_id,
            )
        cpus = [{"worker_key": key[0], "key": key[1]} for key, free in self._devices.items() if free.kind == "cpu"]
        for row in read_by_rows(transaction.connection, _read_cores, cpus):
            self._devices[row.worker_id, row.device_id].taken.update(CORES.validate_json(row.cores))

    def take(self, place: Place) -> tuple[Claim, ...] | None:
        """Take the devices of a placement: its claims with their cores, or None if one of them does not fit."""
        if not are_grantable(place.claims):
            return None
        claims_by_device: list[tuple[_FreeDevice, Claim]] = []
        for wanted in place.claims:
            free = self._devices.get((place.worker_id, wanted.device_id))
            claim = None if free is None else free.fit(wanted)
            if free is None or claim is None or self._is_taken_elsewhere(free, place.worker_id):
                return None
            claims_by_device.append((free, claim))
        for free, claim in claims_by_device:
            if free.physical_id is not None:
                self._takers[free.physical_id] = place.worker_id
            free.milli -= claim.share_milli
            free.taken.update(claim.cores)
            if free.memory_bytes is not None:
                free.memory_bytes -= claim.memory_bytes
        return tuple(claim for _, claim in claims_by_device)

    def model_label(self, worker_id: str, claims: Sequence[Claim]) -> str:
        """The model of the first accelerator that was taken, or of the CPU, as a label of tallies."""
        devices = [self._devices[worker_id, claim.device_id] for claim in claims]
        first = next((device for device in devices if device.kind != "cpu"), devices[0])
        return model_label(_read_device(first.inventory))

    def _is_taken_elsewhere(self, free: _FreeDevice, worker_id: str) -> bool:
        """Whether an earlier placement of the plan took the same physical device of another worker."""
        return free.physical_id is not None and self._takers.get(free.physical_id, worker_id) != worker_id


@lru_cache(maxsize=1024)
def _read_device(inventory: str) -> Device:
    return Device.model_validate_json(inventory)


@lru_cache(maxsize=2)
def _read_devices(dialect: str) -> Select[Any]:
    wanted = json_table(dialect, worker_key="text", key="text")
    return (
        select(
            _DEVICE.worker_id,
            _DEVICE.id,
            _DEVICE.kind,
            _DEVICE.leasable,
            _DEVICE.capacity_milli,
            _DEVICE.used_milli,
            _DEVICE.capacity_memory_bytes,
            _DEVICE.used_memory_bytes,
            (_WORKER.state == bindparam("online")).label("is_online"),
            exists().where(tables.hold.c.worker_id == _DEVICE.worker_id).label("has_holds"),
            _DEVICE.physical_id,
            exists()
            .where(_HOLDER.held_id == _DEVICE.physical_id, _HOLDER.worker_id != _DEVICE.worker_id)
            .label("has_holder"),
            _DEVICE.inventory,
        )
        .join_from(wanted, tables.device, (_DEVICE.worker_id == wanted.c.worker_key) & (_DEVICE.id == wanted.c.key))
        .join(tables.worker, _WORKER.id == _DEVICE.worker_id)
    )


@lru_cache(maxsize=2)
def _read_cores(dialect: str) -> Select[Any]:
    cpus = json_table(dialect, worker_key="text", key="text")
    held = (_HELD.worker_id == cpus.c.worker_key) & (_HELD.device_id == cpus.c.key) & _HELD.is_held
    return select(_HELD.worker_id, _HELD.device_id, _HELD.cores).join_from(cpus, tables.lease_device, held)
