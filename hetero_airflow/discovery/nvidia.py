"""NVIDIA GPUs and their MIG instances, through NVML (the package nvidia-ml-py).

`read` collects NVML's answers; `parse` turns them into devices. For one GPU of a DGX A100 the calls and answers are
(``None`` if NVML says "not supported")::

    nvmlSystemGetDriverVersion()            '550.54.15'
    nvmlSystemGetCudaDriverVersion_v2()     12040
    nvmlDeviceGetName(handle)               'NVIDIA A100-SXM4-80GB'
    nvmlDeviceGetUUID(handle)               'GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f'
    nvmlDeviceGetMemoryInfo(handle)         total 85899345920, free 85443870720
    nvmlDeviceGetPciInfo(handle).busId      '00000000:07:00.0'
    nvmlDeviceGetMigMode(handle)            [0, 0]
    nvmlDeviceGetMinorNumber(handle)        0        (its node is /dev/nvidia0)
    nvmlDeviceGetComputeRunningProcesses(handle)     [pid 3478, usedGpuMemory 61224255488]
    nvmlDeviceGetPcieThroughput(handle, 0)  26700    (0: sent, 1: received; KB/s, measured for 20 ms while it blocks)

NVML has no call for the last XID: it reports an XID only to a process that waits in an event set at that moment (see
`health.xid_watch`). So a probe leaves `Telemetry.xid` None, and uses what NVML keeps: the recovery action that the
driver asks for, and memory rows that could not be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from hetero_airflow.discovery.nvidia_users import asker, device_pids
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_numa_node
from hetero_airflow.discovery.sources.values import (
    to_bytes,
    to_count,
    to_number,
    to_pci,
    to_share,
    to_text,
    to_version,
    to_word,
)
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import NODE_KEY, SICK_KEY, Device, Telemetry

MAX_GPUS = 256

_RECOVERY = {
    1: "asks to be reset",
    2: "asks for a reboot of the host",
    4: "asks to be drained and reset",
    6: "asks for a reset of its bus",
    7: "asks for a reboot of the host",
}
"""nvmlDeviceGpuRecoveryAction_t values that make a GPU unusable; 3 and 5 concern only its links."""

_PROHIBITED = 2
"""NVML_COMPUTEMODE_PROHIBITED: no process may compute on the GPU."""

_PROFILE = re.compile(r"\bMIG\s+([0-9][0-9a-z.+-]*)", re.IGNORECASE)


def probe() -> ProbeResult:
    """The NVIDIA GPUs that NVML shows to this process.

    :raises ProbeError: NVML is installed but unusable
    """
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return ProbeResult()
    except pynvml.NVMLError as error:
        raise ProbeError(
            "nvmlInit()", found=str(error), remedy='Run "nvidia-smi"; after a driver update, reboot the host'
        ) from error
    try:
        return parse(read(pynvml))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read(pynvml: Any) -> dict[str, Any]:
    """NVML's raw answers as plain data; `pynvml` is the module, after nvmlInit()."""

    ask = asker(pynvml)
    handles: dict[int, Any] = {}
    gpus: list[dict[str, Any]] = []
    for index in range(min(ask(pynvml.nvmlDeviceGetCount) or 0, MAX_GPUS)):
        try:
            handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            gpus.append({"index": index, "error": str(error)})
            continue
        gpus.append({"index": index} | _read_gpu(pynvml, ask, handles[index]))
    for gpu in gpus:
        if gpu["index"] in handles:
            gpu["nvlink"] = [
                other_gpu["uuid"]
                for other_gpu in gpus
                if other_gpu is not gpu
                and other_gpu["index"] in handles
                and ask(
                    pynvml.nvmlDeviceGetP2PStatus,
                    handles[gpu["index"]], handles[other_gpu["index"]], pynvml.NVML_P2P_CAPS_INDEX_NVLINK,
                ) == pynvml.NVML_P2P_STATUS_OK
            ]  # fmt: skip
    return {
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda": ask(pynvml.nvmlSystemGetCudaDriverVersion_v2),
        "gpus": gpus,
    }


def _read_gpu(pynvml: Any, ask: Callable[..., Any], handle: Any) -> dict[str, Any]:
    pci = getattr(ask(pynvml.nvmlDeviceGetPciInfo, handle), "busId", None)
    bus_id = pci.decode(errors="replace") if isinstance(pci, bytes) else pci
    mig_mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
    instances = []
    if mig_mode and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        for slot in range(min(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, 64)):
            instance = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            if instance is not None:
                instances.append({
                    "index": slot,
                    "name": ask(pynvml.nvmlDeviceGetName, instance),
                    "uuid": ask(pynvml.nvmlDeviceGetUUID, instance),
                    "memory": _memory(ask(pynvml.nvmlDeviceGetMemoryInfo, instance)),
                    "pids": device_pids(pynvml, ask, instance),
                })  # fmt: skip
    return {
        "name": ask(pynvml.nvmlDeviceGetName, handle),
        "uuid": ask(pynvml.nvmlDeviceGetUUID, handle),
        "memory": _memory(ask(pynvml.nvmlDeviceGetMemoryInfo, handle)),
        "capability": ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "pci": bus_id,
        "numa_node": read_numa_node(to_pci(bus_id)),
        "pcie_generation": ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "utilization": getattr(ask(pynvml.nvmlDeviceGetUtilizationRates, handle), "gpu", None),
        "temperature": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_mw": ask(pynvml.nvmlDeviceGetPowerUsage, handle),
        "pcie_sent_kb_per_s": ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_received_kb_per_s": ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "ecc_uncorrected": ask(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC,
        ),
        "remapped_rows": ask(pynvml.nvmlDeviceGetRemappedRows, handle),
        "recovery_action": _recovery_action(pynvml, ask, handle),
        "compute_mode": ask(pynvml.nvmlDeviceGetComputeMode, handle),
        "mig_mode": mig_mode,
        "mig": instances,
        "minor": ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        "pids": device_pids(pynvml, ask, handle),
    }  # fmt: skip


def _memory(info: Any) -> dict[str, int] | None:
    return None if info is None else {"total": info.total, "free": info.free}


def _recovery_action(pynvml: Any, ask: Callable[..., Any], handle: Any) -> int | None:
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, [field]) if field is not None else None
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal) if values[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else None


def parse(raw: Mapping[str, Any]) -> ProbeResult:
    """Devices and telemetry from NVML's answers. The instances of a GPU in MIG mode follow it."""
    devices: list[Device] = []
    telemetry: list[Telemetry] = []
    problems: list[str] = []
    users: dict[str, tuple[int, ...]] = {}
    driver = to_version(raw.get("driver")) or to_text(raw.get("driver"))
    for gpu in raw.get("gpus") or ():
        if gpu.get("error"):
            problems.append(f'GPU {gpu.get("index")} can\'t be used: {gpu["error"]}. Look for "NVRM: Xid" in dmesg.')
            continue
        parent = _device(gpu, driver)
        instances = [_instance(mig, parent, _fault(gpu)) for mig in gpu.get("mig") or ()]
        devices += [parent, *instances]
        telemetry.append(_telemetry(gpu, parent.id))
        telemetry += [
            Telemetry(device_id=device.id, memory_free_bytes=to_bytes((mig.get("memory") or {}).get("free")))
            for mig, device in zip(gpu.get("mig") or (), instances, strict=True)
        ]
        parts = [(gpu, parent), *zip(gpu.get("mig") or (), instances, strict=True)]
        users |= {device.id: tuple(part["pids"]) for part, device in parts if part.get("pids") is not None}
    cuda = to_count(raw.get("cuda"), limit=10**6)
    runtime = {"cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"} if cuda else {}
    return ProbeResult(tuple(devices), tuple(telemetry), runtime, tuple(problems), users)


def to_model(name: object) -> str:
    """The model in lower case without its maker. Series such as GeForce and Tesla stay, so both words match.

    >>> to_model("NVIDIA A100-SXM4-80GB"), to_model("NVIDIA GeForce RTX 4090"), to_model("Tesla V100-SXM2-32GB")
    ('a100-sxm4-80gb', 'geforce-rtx-4090', 'tesla-v100-sxm2-32gb')
    """
    return to_word((to_word(name) + "-").removeprefix("nvidia-").split("-mig-")[0])


def _device(gpu: Mapping[str, Any], driver: str | None) -> Device:
    index = to_count(gpu.get("index"), limit=MAX_GPUS) or 0
    pci = to_pci(gpu.get("pci"))
    problem = _fault(gpu) or _mig(gpu)
    minor = to_count(gpu.get("minor"), limit=MAX_GPUS)
    major, minor_capability = (gpu.get("capability") or (None, None))[:2]
    return Device(
        id=to_text(gpu.get("uuid"), limit=128) or pci or f"nvidia-{index}",
        vendor="nvidia",
        kind="gpu",
        model=to_model(gpu.get("name")),
        index=index,
        memory_bytes=to_bytes((gpu.get("memory") or {}).get("total")) or 0,
        leasable=problem is None,
        problem=problem,
        driver=driver,
        capability=None if major is None else f"{major}.{minor_capability}",
        numa_node=gpu.get("numa_node"),
        pci=pci,
        peers=tuple(uuid for uuid in map(to_text, gpu.get("nvlink") or ()) if uuid),
        details={
            "pcie_generation": to_count(gpu.get("pcie_generation")),
            "pcie_width": to_count(gpu.get("pcie_width")),
            **({NODE_KEY: f"/dev/nvidia{minor}"} if minor is not None else {}),
            **({SICK_KEY: True} if _sickness(gpu) else {}),
        },
    )


def _instance(mig: Mapping[str, Any], parent: Device, fault: str | None) -> Device:
    profile = _PROFILE.search(to_text(mig.get("name"), limit=128) or "")
    index = to_count(mig.get("index"), limit=1000) or 0
    return parent.model_copy(
        update={
            "id": to_text(mig.get("uuid"), limit=128) or f"{parent.id}/{index}",
            "index": index,
            "memory_bytes": to_bytes((mig.get("memory") or {}).get("total")) or 0,
            "partition": to_word(profile[1]) if profile else "unknown",
            "parent": parent.id,
            "leasable": fault is None,
            "problem": fault,
            "peers": (),
        }
    )


def _fault(gpu: Mapping[str, Any]) -> str | None:
    """Why neither the GPU nor its instances may be leased; None for a usable GPU."""
    if gpu.get("compute_mode") == _PROHIBITED and not _sickness(gpu):
        return f'Its compute mode is "prohibited"; run "nvidia-smi -i {gpu.get("index")} -c DEFAULT".'
    return _sickness(gpu)


def _sickness(gpu: Mapping[str, Any]) -> str | None:
    """What the driver reports against the hardware; None for a healthy GPU."""
    action = _RECOVERY.get(gpu.get("recovery_action") or 0)
    if action:
        return f"The driver says that the GPU {action}; drain it and do so."
    if (gpu.get("remapped_rows") or (0, 0, 0, 0))[3]:
        return "A broken row of its memory could not be replaced; the GPU needs repair."
    return None


def _mig(gpu: Mapping[str, Any]) -> str | None:
    """Why a GPU in MIG mode is not leased as a whole; None for a GPU that is not in MIG mode."""
    if (gpu.get("mig_mode") or (0,))[0] != 1:
        return None
    if gpu.get("mig"):
        return "In MIG mode: its instances are leased instead."
    return 'In MIG mode without an instance; create some with "nvidia-smi mig -cgi", or turn MIG off.'


def _telemetry(gpu: Mapping[str, Any], device_id: str) -> Telemetry:
    power_mw = to_number(gpu.get("power_mw"))
    return Telemetry(
        device_id=device_id,
        memory_free_bytes=to_bytes((gpu.get("memory") or {}).get("free")),
        utilization=to_share(gpu.get("utilization")),
        temperature_c=to_number(gpu.get("temperature")),
        power_w=None if power_mw is None else power_mw / 1000,
        pcie_sent_bytes_per_s=to_bytes(gpu.get("pcie_sent_kb_per_s"), 1000),
        pcie_received_bytes_per_s=to_bytes(gpu.get("pcie_received_kb_per_s"), 1000),
        ecc_errors=to_count(gpu.get("ecc_uncorrected")),
    )
