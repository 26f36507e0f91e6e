"""Integrated GPUs, which have no memory of their own, and device memory as a text.

An integrated GPU is a part of the host's processor and uses the host's memory, all of it if it needs. So that is its
memory here. Its drivers say something else:

- NVML has no figure for the GPUs of GB10 (DGX Spark) and of the Jetsons (XuehaiPan/nvitop pull request 208; ollama pull
  request 12619, which takes the host's memory too; Andyyyy64/whichllm pull request 165).
- AMD's figure is the part that the firmware sets aside, often 512 MiB; ROCm uses the rest of the host's memory alike
  (Syllo/nvtop pull request 428; ROCm/legacy-rocm-build issue 6004).
"""

import re
from collections.abc import Iterable

from hetero_airflow.model.device import Device
from hetero_airflow.units import format_bytes

INTEGRATED_KEY = "is_integrated"
"""Key in a device's `details`: true for an integrated GPU that `is_integrated` can't know by its model."""

SET_ASIDE_KEY = "set_aside_bytes"
"""Key in an integrated GPU's `details`: the memory that the firmware keeps for it and the host does not count."""

_NVIDIA = frozenset({"gb10", "orin", "thor", "xavier", "nvgpu"})
"""Words of the names ``NVIDIA GB10``, ``Orin (nvgpu)`` and ``NVIDIA Thor``. A GH200 or GB200 has memory of its own."""

_AMD = re.compile(r"gfx(?:902|909|90c|1013|1033|1035|1036|1037|1103|115[0-9]|117[0-9])")
"""Targets that are an APU: llvm/llvm-project, llvm/docs/AMDGPUUsage.rst, table of processors; gfx1037 as in
Umio-Yasuno/coelacanth-dream, gfx117x as in ROCm/rocm-systems pull request 10775. An MI300A (gfx942) has HBM."""


def is_integrated(device: Device) -> bool:
    """Whether the device is a GPU without memory of its own.

    >>> from hetero_airflow.testing import a_device
    >>> is_integrated(a_device(model="gb10")), is_integrated(a_device(model="gb200"))
    (True, False)
    """
    if device.kind != "gpu":
        return False
    if device.vendor == "nvidia" and not _NVIDIA.isdisjoint(device.model.split("-")):
        return True
    if device.vendor == "amd" and device.capability and _AMD.fullmatch(device.capability):
        return True
    return device.details.get(INTEGRATED_KEY) is True


def with_host_memory(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices of a host; an integrated GPU without a figure has the memory of the host's CPU.

    If the firmware sets more aside for it than the host keeps, that is its memory.
    """
    devices = tuple(devices)
    host_bytes = next((device.memory_bytes for device in devices if device.kind == "cpu"), None)
    return tuple(_with_memory(device, host_bytes) if host_bytes else device for device in devices)


def _with_memory(device: Device, host_bytes: int) -> Device:
    if device.memory_bytes is not None or device.partition is not None or not is_integrated(device):
        return device
    set_aside = device.details.get(SET_ASIDE_KEY)
    size = max(host_bytes, set_aside) if isinstance(set_aside, int) else host_bytes
    return device.model_copy(update={"memory_bytes": size})


def memory_text(device: Device) -> str:
    """A device's memory for people.

    >>> from hetero_airflow.testing import a_device
    >>> memory_text(a_device(memory="80GiB")), memory_text(a_device(model="gb10", memory="119.6GiB"))
    ('80GiB', "119.6GiB (the host's)")
    >>> memory_text(a_device(memory=None))
    'unknown'
    """
    if device.memory_bytes is None:
        return "unknown"
    return format_bytes(device.memory_bytes) + (" (the host's)" if is_integrated(device) else "")
