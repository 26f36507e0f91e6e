"""How DRA drivers describe their devices. A driver without a row is read by the names that most drivers use.

Sources: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go), ROCm/k8s-gpu-dra-driver
(docs/driver-attributes.md), intel/intel-resource-drivers-for-kubernetes (doc/gpu), and
kubernetes-sigs/dra-driver-google-tpu (cmd/tpu-dra-kubeletplugin/state.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hetero_airflow.engines.kubernetes.resources import DRA_DRIVERS, MIG_CLASS
from hetero_airflow.model.devices.names import KINDS

MODEL_NAMES = ("productName", "model", "modelName", "accelerator", "chipName", "tpuGen")
"""Attributes that name the model, the best first."""

PINS = (
    "uuid", "resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddr", "pciAddress", "deviceID", "index",
    "minor", "cardIndex",
)  # fmt: skip
"""Attributes that may tell the devices of a node apart, the best first."""

VERSION_NAMES = ("driverVersion", "cudaDriverVersion", "cudaComputeCapability")
PROFILE_NAMES = ("profile", "partitionProfile")

READ_NAMES = frozenset({*MODEL_NAMES, *PINS, *VERSION_NAMES, *PROFILE_NAMES, "parentUUID"})
"""The attributes that are read. A driver may publish any number of others."""

_VENDORS = {"huawei": "ascend"}
"""Domain of a driver → vendor, where they differ."""


class DriverKind(NamedTuple):
    """The kind of a driver's devices."""

    vendor: str
    kind: str
    device_class: str


def driver_kind(driver: str) -> DriverKind | None:
    """What a driver's devices are; None if they are no accelerators, such as network cards.

    >>> driver_kind("gpu.nvidia.com"), driver_kind("dra.net")
    (DriverKind(vendor='nvidia', kind='gpu', device_class='gpu.nvidia.com'), None)
    >>> driver_kind("npu.huawei.com").vendor
    'ascend'
    """
    vendors: Mapping[str, str] = {row.domain: vendor for vendor, row in DRA_DRIVERS.items()}
    kind, _, domain = driver.partition(".")
    if kind not in KINDS or kind == "cpu" or not domain:
        return None
    name = domain.split(".")[0]
    return DriverKind(vendors.get(driver, _VENDORS.get(name, name)), kind, driver)


def device_class(driver: str, profile: str | None) -> str:
    """The DeviceClass of a driver's device. By convention it has the driver's name."""
    return MIG_CLASS if driver == "gpu.nvidia.com" and profile else driver
