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

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import byref
from importlib import import_module
from typing import Any

from hetero_airflow.discovery.left_out import agent_variables, listed, offer_only
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

_USERS = frozenset({"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"})

_ANSWERED = _USERS | {
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetTemperature",
    "nvmlDeviceGetComputeMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuFabricInfo",
}  # fmt: skip
"""A healthy GPU answers these calls, if only with "not supported". If one fails, its identity, its health, its users or
its division is unknown. Power and ECC are not here: laptops answer them with "Unknown Error"."""

_GONE = frozenset({9, 11, 15, 16, 28})
"""Errors of any call that say that the GPU can't be used: its driver is not loaded, its interrupt is lost, it has
fallen off the bus, it must be reset, it is not found. NVSentinel issue 155 and gpud pull request 1209 have GPUs whose
name and UUID come from the driver's cache while all other calls fail."""

_FABRIC_CALLS = {
    "nvmlDeviceGetGpuFabricInfoV": "c_nvmlGpuFabricInfo_v2_t",
    "nvmlDeviceGetGpuFabricInfo": "c_nvmlGpuFabricInfo_t",
}
"""Call → its struct; the second one is for drivers before 545."""

_FABRIC_NOT_SUPPORTED, _FABRIC_COMPLETED = 0, 3
_FABRIC_STATES = {1: "not started", 2: "in progress"}
"""nvmlGpuFabricState_t of nvml.h. Until the fabric manager has joined the GPU to the fabric, CUDA fails with error 802,
"system not yet initialized" (pytorch issue 35710)."""

_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_NO_ORDER = (
    ", whose numbers may be CUDA's and not NVML's: the GPUs are of several models, or in MIG mode. Name GPUs by their "
    "UUIDs (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID if none is in MIG mode."
)

_NO_SUCH_READING = frozenset({2, 3, 4, 6, 7, 13, 21, 22, 24, 25, 26, 27})
"""Values of nvmlReturn_t (nvml.h) with which a healthy GPU says that it, its driver or this user has no such reading:
invalid argument, not supported, no permission, not found, insufficient size, function not found, no data, no ECC on a
vGPU, no such frequency, version mismatch, deprecated, not ready. All others are failures, such as 999, unknown."""

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


class Asker:
    """Calls functions of NVML by their names; the answer is None where NVML gives none.

    `failures` has the calls that failed although the chip has the reading: name → (nvmlReturn_t, NVML's text).
    """

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.failures: dict[str, tuple[int, str]] = {}

    def __call__(self, name: str, *arguments: Any) -> Any:
        """NVML's answer; None if it gives none."""
        try:
            return getattr(self._pynvml, name)(*arguments)
        except self._pynvml.NVMLError as error:
            code = int(getattr(error, "value", 999))
            if code not in _NO_SUCH_READING:
                self.failures[name] = (code, str(error))
            return None


def read(pynvml: Any) -> dict[str, Any]:
    """NVML's raw answers as plain data; `pynvml` is the module, after nvmlInit()."""

    ask = Asker(pynvml)
    count = ask("nvmlDeviceGetCount")
    handles: dict[int, Any] = {}
    gpus: list[dict[str, Any]] = []
    for index in range(min(count or 0, MAX_GPUS)):
        try:
            handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            gpus.append({"index": index, "error": str(error)})
            continue
        gpus.append({"index": index} | _read_gpu(pynvml, Asker(pynvml), handles[index]))
    for gpu in gpus:
        if gpu["index"] in handles:
            gpu["nvlink"] = [
                other_gpu["uuid"]
                for other_gpu in gpus
                if other_gpu is not gpu
                and other_gpu["index"] in handles
                and ask(
                    "nvmlDeviceGetP2PStatus",
                    handles[gpu["index"]], handles[other_gpu["index"]], pynvml.NVML_P2P_CAPS_INDEX_NVLINK,
                ) == pynvml.NVML_P2P_STATUS_OK
            ]  # fmt: skip
    return {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda": ask("nvmlSystemGetCudaDriverVersion_v2"),
        "count": count,
        "failures": ask.failures,
        "gpus": gpus,
        "environment": agent_variables(),
    }


def _read_gpu(pynvml: Any, ask: Asker, handle: Any) -> dict[str, Any]:
    pci = getattr(ask("nvmlDeviceGetPciInfo", handle), "busId", None)
    bus_id = pci.decode(errors="replace") if isinstance(pci, bytes) else pci
    mig_mode = ask("nvmlDeviceGetMigMode", handle)
    instances = []
    if mig_mode and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        for slot in range(min(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, 64)):
            instance = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            if instance is not None:
                instances.append({
                    "index": slot,
                    "name": ask("nvmlDeviceGetName", instance),
                    "uuid": ask("nvmlDeviceGetUUID", instance),
                    "memory": _memory(ask("nvmlDeviceGetMemoryInfo", instance)),
                    "pids": device_pids(ask, instance),
                })  # fmt: skip
    return {
        "name": ask("nvmlDeviceGetName", handle),
        "uuid": ask("nvmlDeviceGetUUID", handle),
        "memory": _memory(ask("nvmlDeviceGetMemoryInfo", handle)),
        "capability": ask("nvmlDeviceGetCudaComputeCapability", handle),
        "pci": bus_id,
        "numa_node": read_numa_node(to_pci(bus_id)),
        "pcie_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "utilization": getattr(ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
        "temperature": ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_mw": ask("nvmlDeviceGetPowerUsage", handle),
        "pcie_sent_kb_per_s": ask("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_received_kb_per_s": ask("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "ecc_uncorrected": ask(
            "nvmlDeviceGetTotalEccErrors",
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC,
        ),
        "remapped_rows": ask("nvmlDeviceGetRemappedRows", handle),
        "recovery_action": _recovery_action(pynvml, ask, handle),
        "fabric": _fabric(pynvml, ask, handle),
        "compute_mode": ask("nvmlDeviceGetComputeMode", handle),
        "mig_mode": mig_mode,
        "mig": instances,
        "minor": ask("nvmlDeviceGetMinorNumber", handle),
        "pids": device_pids(ask, handle),
        "failures": ask.failures,
    }  # fmt: skip


def _memory(info: Any) -> dict[str, int] | None:
    return None if info is None else {"total": info.total, "free": info.free}


def _recovery_action(pynvml: Any, ask: Asker, handle: Any) -> int | None:
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = ask("nvmlDeviceGetFieldValues", handle, [field]) if field is not None else None
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal) if values[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else None


def _fabric(pynvml: Any, ask: Asker, handle: Any) -> tuple[int, int] | None:
    """State and error code of the GPU's part in the NVLink fabric; None if it has none."""
    for call, struct in _FABRIC_CALLS.items():
        if hasattr(pynvml, struct):
            info = getattr(pynvml, struct)()
            answer = ask(call, handle, byref(info))
            if answer is not None:
                filled = answer if hasattr(answer, "state") else info  # nvidia-ml-py fills the struct and returns 0
                return int(filled.state), int(filled.status)
    return None


def parse(raw: Mapping[str, Any]) -> ProbeResult:
    """Devices and telemetry from NVML's answers. The instances of a GPU in MIG mode follow it."""
    devices: list[Device] = []
    telemetry: list[Telemetry] = []
    problems = list(_count_problems(raw))
    users: dict[str, tuple[int, ...]] = {}
    driver = to_version(raw.get("driver")) or to_text(raw.get("driver"))
    for gpu in raw.get("gpus") or ():
        if gpu.get("error"):
            problems.append(f'GPU {gpu.get("index")} can\'t be used: {gpu["error"]}. Look for "NVRM: Xid" in dmesg.')
            continue
        if _silence(gpu):
            problems.append(f"GPU {gpu.get('index')} does not answer: {_silence(gpu)}")
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
    return ProbeResult(_offered(devices, raw), tuple(telemetry), runtime, tuple(problems), users)


def _offered(devices: Sequence[Device], raw: Mapping[str, Any]) -> tuple[Device, ...]:
    """The devices; those that CUDA_VISIBLE_DEVICES of the agent does not list are left out.

    Numbers count in CUDA's order, the fastest GPU first, unless CUDA_DEVICE_ORDER is PCI_BUS_ID; of equal GPUs it is
    that of the bus, which is NVML's. A repeated word hides all GPUs (torch/cuda/__init__.py, _parse_visible_devices).
    """
    variables = raw.get("environment") or {}
    text = variables.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(devices)
    prefix = text.strip()[:4] if text.strip().startswith(("GPU-", "MIG-")) else ""

    def device_of(word: str) -> int | None:
        number = _NUMBER.match(word)
        places = [
            place
            for place, device in enumerate(devices)
            if (prefix and word.startswith(prefix) and device.id.startswith(word))
            or (not prefix and number and device.parent is None and device.index == int(number[0][:9]))
        ]
        return places[0] if len(places) == 1 else None

    cause, words = f"CUDA_VISIBLE_DEVICES={text}", [word.strip() for word in text.split(",")]
    places = listed(text, device_of) if len(set(words)) == len(words) else []
    if places and not prefix and _is_unsure(devices, raw, variables.get("CUDA_DEVICE_ORDER", "")):
        return offer_only(devices, (), cause, _NO_ORDER)
    ids = {devices[place].id for place in places}
    return offer_only(devices, {device.id for device in devices if {device.id, device.parent} & ids}, cause)


def _is_unsure(devices: Sequence[Device], raw: Mapping[str, Any], order: str) -> bool:
    """Whether CUDA may give the GPUs other numbers than NVML: it counts the fastest first, or has MIG instances."""
    models = {str(gpu.get("name")) for gpu in raw.get("gpus") or ()}
    return any(device.parent for device in devices) or (order != "PCI_BUS_ID" and len(models) > 1)


def _count_problems(raw: Mapping[str, Any]) -> Iterator[str]:
    """A line if NVML does not say how many GPUs there are. An answer without a count is from a test."""
    if raw.get("count", 0) is None:
        _, text = (raw.get("failures") or {}).get("nvmlDeviceGetCount", (0, "no answer"))
        yield (
            f"nvmlDeviceGetCount() fails: {text}. So the number of GPUs is unknown, and none is offered; run "
            f'"nvidia-smi", and look for "NVRM" in dmesg.'
        )


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
        memory_bytes=to_bytes((gpu.get("memory") or {}).get("total")),
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
    if fault is None and to_text(mig.get("uuid")) is None:
        fault = "NVML gives no UUID of it, so a task can't be bound to it; look at nvidia-smi -L."
    return parent.model_copy(
        update={
            "id": to_text(mig.get("uuid"), limit=128) or f"{parent.id}/{index}",
            "index": index,
            "memory_bytes": to_bytes((mig.get("memory") or {}).get("total")) or None,
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
    if to_text(gpu.get("uuid")) is None and not _sickness(gpu):
        return "NVML gives no UUID of it, so a task can't be bound to it; look at nvidia-smi -L."
    return _sickness(gpu) or _fabric_fault(gpu)


def _fabric_fault(gpu: Mapping[str, Any]) -> str | None:
    """Why CUDA can't start on a GPU that is a member of an NVLink fabric."""
    state, status = gpu.get("fabric") or (_FABRIC_NOT_SUPPORTED, 0)
    if state == _FABRIC_NOT_SUPPORTED or (state == _FABRIC_COMPLETED and not status):
        return None
    name = f"is up with error {status}" if state == _FABRIC_COMPLETED else f'is "{_FABRIC_STATES.get(state, state)}"'
    return f'Its NVLink fabric {name}, so CUDA can\'t start; run "systemctl status nvidia-fabricmanager" on the host.'


def _silence(gpu: Mapping[str, Any]) -> str | None:
    """The call that a GPU does not answer although every healthy GPU does, as a sentence; None if it answers all."""
    failures: Mapping[str, tuple[int, str]] = gpu.get("failures") or {}
    for call, (code, text) in failures.items():
        if call in _ANSWERED or code in _GONE:
            users = " So its users are unknown." if call in _USERS else ""
            return f'{call}() fails: {text}.{users} Look for "NVRM: Xid" in dmesg; reset the GPU or reboot the host.'
    return None


def _sickness(gpu: Mapping[str, Any]) -> str | None:
    """What the driver reports against the hardware; None for a healthy GPU."""
    action = _RECOVERY.get(gpu.get("recovery_action") or 0)
    if action:
        return f"The driver says that the GPU {action}; drain it and do so."
    if (gpu.get("remapped_rows") or (0, 0, 0, 0))[3]:
        return "A broken row of its memory could not be replaced; the GPU needs repair."
    return _silence(gpu)


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


def lease_users(ids: Iterable[str]) -> dict[str, tuple[int, ...]] | None:
    """Id of a GPU or MIG instance → the processes that use it; None if NVML can't tell."""
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        try:
            pids = {id_: device_pids(Asker(pynvml), pynvml.nvmlDeviceGetHandleByUUID(id_)) for id_ in ids}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    answered = {id_: users for id_, users in pids.items() if users is not None}
    return answered if len(answered) == len(pids) else None


def device_pids(ask: Asker, handle: Any) -> tuple[int, ...] | None:
    """The processes that compute or draw on a device; None if NVML can't tell.

    A chip or a MIG instance on which nothing can draw has no list of processes that draw.
    """
    compute = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    graphics = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
    if compute is None or (graphics is None and "nvmlDeviceGetGraphicsRunningProcesses" in ask.failures):
        return None
    return tuple(sorted({int(process.pid) for process in (*compute, *(graphics or ()))}))
