"""Which physical device a worker reports, so that two workers on one machine are not taken to have two."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from hetero_airflow.model.device import Device
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState

_UNIQUE_EVERYWHERE = re.compile(r"(GPU|MIG)-(GPU-)?[0-9a-f]{8}")
"""How the UUIDs of NVML begin, and AMD's ids with a serial number. All other ids are unique on one machine only."""


def physical_ids(worker: Worker) -> dict[str, str]:
    """Device id → an id that every worker on the same machine gives to the same physical device.

    It is the device's UUID, or else the boot of the machine and the device's PCI address. Containers have the boot in
    common, and no two machines do. It changes with a reboot, so it compares only what workers report now.

    Left out: CPUs, which cgroups divide; simulated devices; and the slots of a cluster's node, since the node decides
    which device a slot is.

    >>> from hetero_airflow.testing import a_device, a_worker
    >>> npu = a_device("0000:0e:00.0", vendor="ascend", kind="npu", pci="0000:0e:00.0")
    >>> physical_ids(a_worker("container-1", (npu,), boot_id="6f1c"))
    {'0000:0e:00.0': '6f1c/0000:0e:00.0'}
    """
    if worker.node_assigns_devices:
        return {}
    machine = worker.boot_id or worker.host
    devices = [device for device in worker.devices if device.kind != "cpu" and not device.simulated]
    ids = {device.id: _physical_id(device, machine) for device in devices}
    counts = Counter(ids.values())
    return {id_: physical if counts[physical] == 1 else f"{machine}/{id_}" for id_, physical in ids.items()}


def contested_devices(workers: Iterable[Worker]) -> list[tuple[tuple[str, str], ...]]:
    """The physical devices that several online workers report, each as its (worker id, device id), ordered."""
    reports: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for worker in workers:
        if worker.state is WorkerState.ONLINE:
            for device_id, physical_id in physical_ids(worker).items():
                reports[physical_id].append((worker.id, device_id))
    return sorted(tuple(sorted(report)) for report in reports.values() if len(report) > 1)


def contested_text(reports: tuple[tuple[str, str], ...]) -> str:
    """One of the `contested_devices` as a sentence for a person.

    >>> contested_text((("host-1", "GPU-0"), ("host-2", "GPU-0")))[:70]
    'host-1/GPU-0 and host-2/GPU-0 are one device, so only one worker at a '
    """
    names = " and ".join(f"{worker_id}/{device_id}" for worker_id, device_id in reports)
    return f"{names} are one device, so only one worker at a time can lease it. Run one worker for each device."


def devices_leased_elsewhere(snapshot: Snapshot, worker_id: str) -> frozenset[str]:
    """Ids of the worker's devices that are leased where another worker reports them."""
    ids = {worker.id: physical_ids(worker) for worker in snapshot.workers}
    leased = {
        ids.get(other_id, {}).get(device_id)
        for (other_id, device_id), usage in snapshot.usage.items()
        if other_id != worker_id and usage.share_milli
    }
    return frozenset(id_ for id_, physical_id in ids.get(worker_id, {}).items() if physical_id in leased)


def _physical_id(device: Device, machine: str) -> str:
    if _UNIQUE_EVERYWHERE.match(device.id):
        return device.id
    if device.parent is not None or not device.pci:  # a MIG instance has the address of its GPU
        return f"{machine}/{device.id}"
    chip = device.details.get("chip")  # Ascend: chips of one card may share an address
    return f"{machine}/{device.pci}" + (f"/{chip}" if chip is not None else "")
