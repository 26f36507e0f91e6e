"""Devices that two workers say they have: the second one gets them only when the first is gone, with all its leases.

Two agents on one host, or in two containers that see one GPU, or one that lies: a device that both offered would be
leased twice, since each worker's devices are leased by themselves.
"""

from __future__ import annotations

from sqlalchemy import or_, select

from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks

_UNIQUE = ("GPU-", "MIG-")
"""How ids begin that are unique in the world: NVML's UUIDs. All others are so on one host only."""


def without_contested(writing: WriteTransaction, worker: Worker) -> tuple[Worker, tuple[str, ...]]:
    """The worker, where devices that another one offers are not leasable, and the ids of those.

    Only real accelerators count: simulated devices share their names, and the CPU of a host is divided by cgroups.
    """
    ids = [device.id for device in worker.devices if _can_be_contested(device) and device.leasable]
    others = _read_offered(writing, worker, ids)
    if not others:
        return worker, ()
    devices = tuple(_without_contested(device, others.get(device.id)) for device in worker.devices)
    return worker.model_copy(update={"devices": devices}), tuple(others)


def _can_be_contested(device: Device) -> bool:
    return device.kind != "cpu" and not device.simulated


def _read_offered(writing: WriteTransaction, worker: Worker, ids: list[str]) -> dict[str, str]:
    """Device id → the other worker that offers it."""
    device, owner = tables.device.c, tables.worker.c
    query = (
        select(device.id, device.worker_id, owner.inventory)
        .join(tables.worker, owner.id == device.worker_id)
        .where(device.leasable, device.worker_id != worker.id)
        .where(or_(owner.state == WorkerState.ONLINE, device.used_milli > 0))
    )
    return {
        row.id: row.worker_id
        for chunk in chunks(ids)
        for row in writing.connection.execute(query.where(device.id.in_(chunk)))
        if row.id.startswith(_UNIQUE) or Worker.model_validate_json(row.inventory).host == worker.host
    }


def _without_contested(device: Device, owner: str | None) -> Device:
    if owner is None:
        return device
    text = f"worker {owner} offers it already: run one agent for each device"
    return device.model_copy(update={"leasable": False, "problem": text[:500]})
