"""Devices that two workers offer: the second worker gets them only when the first is gone with all its leases.

Two agents can run on one host or in two containers that see one GPU, or an agent can lie. A device that both offer
would be leased twice, since each worker's devices are leased on their own.
"""

from __future__ import annotations

from sqlalchemy import or_, select

from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks

_UNIQUE = ("GPU-", "MIG-")
"""Prefixes of ids that are unique everywhere: NVML's UUIDs. All other ids are unique on one host only."""


def without_contested(transaction: WriteTransaction, worker: Worker) -> tuple[Worker, tuple[str, ...]]:
    """The worker with the devices that another worker offers made not leasable, and the ids of these devices.

    Only real accelerators count: simulated devices share names, and cgroups divide the CPU of a host.
    """
    ids = [device.id for device in worker.devices if _can_be_contested(device) and device.leasable]
    owners = _read_owners(transaction, worker, ids)
    if not owners:
        return worker, ()
    devices = tuple(_made_contested(device, owners.get(device.id)) for device in worker.devices)
    return worker.model_copy(update={"devices": devices}), tuple(owners)


def _can_be_contested(device: Device) -> bool:
    return device.kind != "cpu" and not device.simulated


def _read_owners(transaction: WriteTransaction, worker: Worker, ids: list[str]) -> dict[str, str]:
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
        for row in transaction.connection.execute(query.where(device.id.in_(chunk)))
        if row.id.startswith(_UNIQUE) or Worker.model_validate_json(row.inventory).host == worker.host
    }


def _made_contested(device: Device, owner: str | None) -> Device:
    if owner is None:
        return device
    text = f"worker {owner} offers it already: run one agent for each device"
    return device.model_copy(update={"leasable": False, "problem": text[:500]})
