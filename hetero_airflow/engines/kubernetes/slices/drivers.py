"""How DRA drivers describe their devices. A driver without a row is read by the names that most drivers use.

Sources: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go), ROCm/k8s-gpu-dra-driver
(docs/driver-attributes.md, cmd/gpu-kubeletplugin/deviceinfo.go), intel/intel-resource-drivers-for-kubernetes
(cmd/kubelet-gpu-plugin/node_state.go, cmd/kubelet-gaudi-plugin/node_state.go), kubernetes-sigs/dra-driver-google-tpu
(cmd/tpu-dra-kubeletplugin/state.go), and "AWS Neuron Dynamic Resource Allocation".
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hetero_airflow.engines.kubernetes.resources import DRA_DRIVERS, MIG_CLASS, accelerator_word, maker_of
from hetero_airflow.model.devices.names import KINDS

MODEL_NAMES = ("productName", "model", "modelName", "accelerator", "chipName", "tpuGen", "deviceName", "instanceType")
"""Attributes that name the model, the best first."""

PCI_NAMES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddr", "pciAddress")
"""Attributes with the PCI address of a device."""

PINS = ("uuid", "serial", *PCI_NAMES, "deviceID", "deviceId", "index", "minor", "cardIndex")
"""Attributes that may tell the devices of a node apart, the best first."""

PARENT_NAMES = ("parentUUID", "parentPciAddr", "parentDeviceID")
"""Attributes with the UUID, the PCI address or the number of the device that a device is a part of."""

VERSION_NAMES = ("driverVersion", "cudaDriverVersion", "cudaComputeCapability")
PROFILE_NAMES = ("profile", "partitionProfile")
HEALTH_NAMES = ("health", "healthy")

READ_NAMES = frozenset(
    {
        *MODEL_NAMES,
        *PINS,
        *VERSION_NAMES,
        *PROFILE_NAMES,
        *PARENT_NAMES,
        *HEALTH_NAMES,
        "type",
        "driver",
        "resourceType",
    }
)
"""The attributes that are read. A driver may publish any number of others."""

_WHOLE, _PART = "whole", "part"
_TYPES: Mapping[str, Mapping[object, str]] = {
    "gpu.nvidia.com": {"gpu": _WHOLE, "mig": _PART},
    "gpu.amd.com": {"amdgpu": _WHOLE, "amdgpu-partition": _PART},
    "gpu.intel.com": {"gpu": _WHOLE},
}
"""Driver → value of its attribute ``type`` → what a container gets. Not here: ``vfio`` and ``vf``, for machines."""

_PROFILES = {
    "gpu.nvidia.com": re.compile(r"(\d+c\.)?\d+g\.\d+gb([+.-][a-z]+)*"),
    "gpu.amd.com": re.compile(r"[dtqc]px([_-]nps\d)?"),
}

_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "gpu.nvidia.com": ("type",),
    "gpu.amd.com": ("type",),
    "gpu.intel.com": ("type", "driver", "health"),
    "gaudi.intel.com": ("healthy",),
}
"""Driver → attributes that each of its devices has."""

_NEW_INTEL = "resource.kubernetes.io/pciBusID"
"""Intel's driver for GPUs publishes it since May 2026; before that it had not yet all of `_ALWAYS`."""


class DriverKind(NamedTuple):
    """The kind of a driver's devices."""

    vendor: str
    kind: str
    device_class: str


def driver_kind(driver: str) -> DriverKind | None:
    """What a driver's devices are; None if they are no accelerators, such as network cards.

    >>> driver_kind("gpu.nvidia.com"), driver_kind("dra.net"), driver_kind("compute-domain.nvidia.com")
    (DriverKind(vendor='nvidia', kind='gpu', device_class='gpu.nvidia.com'), None, None)
    >>> driver_kind("npu.huawei.com").vendor, driver_kind("gaudi.intel.com")[:2], driver_kind("dcu.hygon.com")[:2]
    ('ascend', ('habana', 'hpu'), ('hygon', 'dcu'))
    """
    row = next(((vendor, row) for vendor, row in DRA_DRIVERS.items() if row.domain == driver), None)
    if row is not None:
        return DriverKind(row[0], row[1].kinds[0], driver)
    first, _, domain = driver.partition(".")
    maker = maker_of(driver) if "." in domain else None  # a domain alone is no driver's name
    if first in KINDS and first != "cpu" and domain:
        return DriverKind(maker or domain.split(".")[0], first, driver)
    return None if maker is None else DriverKind(maker, accelerator_word(driver) or "accelerator", driver)


def is_known_driver(driver: str) -> bool:
    """Whether it is known how the driver describes its devices."""
    return any(row.domain == driver for row in DRA_DRIVERS.values())


def profile_of(attributes: Mapping[str, Any]) -> str | None:
    """The profile of a partition; None for a whole device, for which AMD's driver writes ``_`` or ``spx_nps1``.

    >>> profile_of({"partitionProfile": "cpx_nps4"}), profile_of({"partitionProfile": "_"}), profile_of({})
    ('cpx_nps4', None, None)
    """
    profile = next((str(attributes[name]).lower() for name in PROFILE_NAMES if attributes.get(name)), "")
    return profile if profile.strip("_") and not profile.startswith("spx") else None


_CHIP = re.compile(r"neuron|(neuron[_-]?)?device")
"""The values of ``resourceType`` for a chip. Amazon's pages show only that of a node."""

_NAMED_BY_ALL = ("type", "driver", "resourceType", *HEALTH_NAMES)


def expected_names(devices: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The attributes that tell what a device is and that some of a pool's devices have: each must have them.

    :param devices: the attributes of each device
    """
    return frozenset(name for attributes in devices for name in _NAMED_BY_ALL if name in attributes)


def attribute_fault(
    driver: str, attributes: Mapping[str, Any], expected: Iterable[str] = ()
) -> tuple[str, bool] | None:
    """Why a device is none that a container can have, and whether that is because it is not understood.

    :param expected: attributes that it must have, besides those that all devices of the driver have
    """
    missing = _missing(driver, attributes, expected)
    return type_fault(driver, attributes) or ((missing, True) if missing is not None else None)


def _missing(driver: str, attributes: Mapping[str, Any], expected: Iterable[str]) -> str | None:
    always = _ALWAYS.get(driver, ()) if driver != "gpu.intel.com" or _NEW_INTEL in attributes else ()
    missing = next((name for name in sorted({*expected, *always}) if name not in attributes), None)
    return None if missing is None else f"its driver does not publish its {missing}, so its state is unknown"


def type_fault(driver: str, attributes: Mapping[str, Any]) -> tuple[str, bool] | None:
    """`attribute_fault` from the attributes that are there."""
    kind, profile = attributes.get("type"), profile_of(attributes)
    if is_for_machines(attributes):
        return "it is for virtual machines only: its driver is vfio-pci, or it is a virtual function", False
    if is_whole_node(attributes):
        return "it stands for all devices of the node", False
    resource = attributes.get("resourceType", "device")
    types = _TYPES.get(driver, {kind: _WHOLE})
    binding = attributes.get("driver", "xe") if driver == "gpu.intel.com" else "xe"
    if (kind not in types and kind is not None) or binding not in ("xe", "i915") or not _CHIP.fullmatch(str(resource)):
        values = ", ".join(str(attributes[name]) for name in _NAMED_BY_ALL[:3] if name in attributes)
        return f"its type is not understood ({values}): update hetero-airflow or the driver", True
    pattern = _PROFILES.get(driver)
    is_part = types.get(kind) == _PART or profile is not None
    if is_part and pattern is not None and not pattern.fullmatch(profile or ""):
        return f"it is a part of a device, and which part is not understood (profile: {profile})", True
    if not is_known_driver(driver) and not any(attributes.get(name) for name in MODEL_NAMES):
        return "its driver publishes no attribute that names its model", True
    return None


def is_for_machines(attributes: Mapping[str, Any]) -> bool:
    """Whether a device can be given to a virtual machine only."""
    return attributes.get("type") in ("vfio", "vf") or "vfio" in str(attributes.get("driver", ""))


def is_whole_node(attributes: Mapping[str, Any]) -> bool:
    """Whether a device of Neuron's driver stands for all chips of its node (``resourceType: neuron_node``)."""
    return str(attributes.get("resourceType", "")).endswith("node")


def health_fault(attributes: Mapping[str, Any]) -> str | None:
    """Why a device is not healthy."""
    health = next((attributes[name] for name in HEALTH_NAMES if name in attributes), None)
    is_healthy = health in (None, True) or str(health).lower() in ("healthy", "true")
    return None if is_healthy else f"its driver says that it is not healthy (health: {health})"


def device_class(driver: str, profile: str | None) -> str:
    """The DeviceClass of a driver's device. By convention it has the driver's name."""
    return MIG_CLASS if driver == "gpu.nvidia.com" and profile else driver
