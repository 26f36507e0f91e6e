"""Requests, claims and devices as short texts, which mark cooperative shares and simulated devices."""

from collections.abc import Iterable

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim, Lease
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes


def request_lines(request: DeviceRequest) -> list[str]:
    """One line per alternative, in order of preference, and one for the data.

    >>> request_lines(DeviceRequest.parse(["h100:2", "gpu:0.5"]))
    ['2 × nvidia/h100', 'or 0.5 of a gpu, cooperative']
    >>> request_lines(DeviceRequest.parse({"h100", "a100"}))
    ['any of 1 × nvidia/a100', 'or 1 × nvidia/h100']
    >>> request_lines(DeviceRequest.parse("gpu", data=["s3://lake/train/", "s3://lake/labels.csv"]))
    ['1 × gpu', 'reads s3://lake/train/ and 1 more']
    """
    texts = [alternative_text(alternative) for alternative in request.alternatives]
    first = texts[0] if request.is_ordered or len(texts) == 1 else f"any of {texts[0]}"
    reads = f"reads {request.data[0]}" if request.data else ""
    more = f" and {len(request.data) - 1} more" if len(request.data) > 1 else ""
    return [first, *(f"or {text}" for text in texts[1:]), *filter(None, [reads + more])]


def alternative_text(alternative: Alternative) -> str:
    """An alternative as one line."""
    return f"{alternative}, cooperative" if alternative.share is not None else str(alternative)


def task_name(pending: PendingRequest) -> str:
    """The name of the task instance, without its run.

    >>> from hetero_airflow.testing import a_pending
    >>> task_name(a_pending("train", map_index=3)), task_name(a_pending("train"))
    ('dag.train[3]', 'dag.train')
    """
    instance = f"[{pending.map_index}]" if pending.map_index >= 0 else ""
    return f"{pending.dag_id}.{pending.task_id}{instance}"


def try_text(pending: PendingRequest) -> str:
    """The run, and the number of the try if it is not the first.

    >>> from hetero_airflow.testing import a_pending
    >>> try_text(a_pending()), try_text(a_pending(try_number=2))
    ('run', 'run, try 2')
    """
    return pending.run_id + (f", try {pending.try_number}" if pending.try_number > 1 else "")


def lease_lines(lease: Lease, worker: Worker | None) -> list[str]:
    """The claims of a lease, one line per device; only the id of a device that the worker has no longer."""
    devices = {device.id: device for device in worker.devices} if worker else {}
    return [claim_text(claim, devices.get(claim.device_id)) for claim in lease.claims]


def claim_text(claim: Claim, device: Device | None) -> str:
    """A claim as one line.

    >>> from hetero_airflow.testing import a_cpu, a_device
    >>> claim_text(Claim(device_id="GPU-0", share_milli=500, memory_bytes=20 << 30), a_device())
    '0.5 of nvidia/a100-sxm4-40gb GPU-0, cooperative: 20GiB'
    >>> claim_text(Claim(device_id="cpu", share_milli=3000, memory_bytes=1 << 30, cores=(0, 1, 4)), a_cpu())
    '3 cpu cores (0-1,4), 1GiB of host memory'
    """
    if (device and device.kind == "cpu") or claim.cores:
        number = claim.share_milli // MILLI_PER_DEVICE
        cores = f" ({core_ranges(claim.cores)})" if claim.cores else ""
        parts = [f"{count(number, 'cpu core')}{cores}"] if number else []
        parts += [f"{format_bytes(claim.memory_bytes)} of host memory"] if claim.memory_bytes else []
        return ", ".join(parts)
    name = f"{device} {claim.device_id}" if device else claim.device_id
    if claim.share_milli == MILLI_PER_DEVICE:
        return name
    memory = f": {format_bytes(claim.memory_bytes)}" if claim.memory_bytes else ""
    return f"{claim.share_milli / MILLI_PER_DEVICE:g} of {name}, cooperative{memory}"


def core_ranges(cores: Iterable[int]) -> str:
    """Core ids as ranges.

    >>> core_ranges((5, 0, 1, 2))
    '0-2,5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "device"), count(0, "device")
    ('1 device', '0 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def pairs_text(pairs: Iterable[tuple[str, str]], separator: str) -> str:
    """Names with their values, sorted by name.

    >>> pairs_text({"torch": "2.9", "cuda": "12.4"}.items(), " ")
    'cuda 12.4, torch 2.9'
    """
    return ", ".join(f"{name}{separator}{value}" for name, value in sorted(pairs))
