"""Which extended resource of a cluster stands for which devices, and what taints and DRA drivers go with it.

Sources: NVIDIA/k8s-device-plugin (README; MIG resources of the strategy ``mixed``), ROCm/k8s-device-plugin (README),
intel/intel-device-plugins-for-kubernetes (cmd/gpu_plugin), Ascend's MindCluster guide (its device plugin counts 910A,
910B and 910C all as ``huawei.com/Ascend910``), Google's "Deploy TPU workloads in GKE". Plugins for FPGAs name a
resource by its shell or its function (Xilinx/FPGA_as_a_Service: ``xilinx.com/fpga-xilinx_u200_xdma_201820_1-153571``,
intel_fpga: ``fpga.intel.com/af-…``), so that only the cluster's owner knows them.

DRA: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go), ROCm/k8s-gpu-dra-driver
(docs/driver-attributes.md), intel/intel-resource-drivers-for-kubernetes (doc/gpu), and
kubernetes-sigs/dra-driver-google-tpu (cmd/tpu-dra-kubeletplugin/state.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_airflow.engines.kubernetes.names import is_extended_resource
from hetero_airflow.errors import RequestError
from hetero_airflow.model.catalogue import MODELS, VENDORS
from hetero_airflow.model.device import matches_model, model_tokens
from hetero_airflow.model.request import Alternative

CPU = "cpu"

DEFAULT_VENDORS: Mapping[str, str] = {"gpu": "nvidia", "npu": "ascend", "tpu": "google"}
"""Kind → vendor where a request leaves it open: a pod asks for one vendor's resource by name."""

RESOURCES: Mapping[str, str] = {
    "nvidia/gpu": "nvidia.com/gpu",
    "amd/gpu": "amd.com/gpu",
    "intel/gpu": "gpu.intel.com/i915",
    "ascend/npu": "huawei.com/Ascend910",
    "ascend/310p": "huawei.com/Ascend310P",
    "google/tpu": "google.com/tpu",
}
"""What a request says of its device → extended resource. ``[hetero] kubernetes_resources`` adds rows and replaces
them; the most exact one counts: ``nvidia/a100``, ``mig-1g.10gb``, then ``nvidia/gpu``, ``nvidia``, ``gpu``."""

_DOMAINS = {name.partition("/")[0]: said.partition("/")[0] for said, name in RESOURCES.items()}
"""Domain of a resource → vendor."""

TAINTS: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "google": ("google.com/tpu",),
}
"""Vendor → keys of the taints that keep other pods off its nodes, beside one with the resource's own name, as the
admission plugin ExtendedResourceToleration expects it."""


@dataclass(frozen=True, slots=True)
class DraDriver:
    """How a vendor's DRA driver describes its devices."""

    device_class: str
    domain: str
    """Of its attributes and capacities."""
    model: str
    """The attribute that names the model."""
    driver: str | None = None
    """The attribute with the driver's version."""
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Software → attribute with its version."""
    kinds: tuple[str, ...] = ("gpu",)
    extra: str | None = None
    """A condition that all whole devices meet and others don't, as CEL."""


DRA_DRIVERS: Mapping[str, DraDriver] = {
    "nvidia": DraDriver(
        "gpu.nvidia.com", "gpu.nvidia.com", "productName", "driverVersion", {"cuda": "cudaDriverVersion"}
    ),
    "amd": DraDriver(
        "gpu.amd.com",
        "gpu.amd.com",
        "productName",
        "driverVersion",
        extra='device.attributes["gpu.amd.com"].type == "amdgpu"',
    ),
    "intel": DraDriver("gpu.intel.com", "gpu.intel.com", "model"),
    "google": DraDriver("tpu.google.com", "tpu.google.com", "accelerator", kinds=("tpu",)),
}

MIG_CLASS = "mig.nvidia.com"
"""The device class of NVIDIA's MIG instances, whose attributes have the domain of its GPUs."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The extended resource for an alternative."""

    name: str
    vendor: str
    is_model_specific: bool
    """Whether the name itself stands for the model that was asked for."""


def vendor_of(alternative: Alternative) -> str:
    """Whose devices a pod shall ask for.

    >>> vendor_of(Alternative(model="h100-pcie"))
    'nvidia'

    :raises RequestError: the request leaves it open, and no vendor is usual for the kind
    """
    tokens = model_tokens(alternative.model or "")
    known = (maker for model, (maker, _, _) in MODELS.items() if matches_model(model, tokens))
    vendor = alternative.vendor or DEFAULT_VENDORS.get(alternative.kind or "") or next(known, None)
    if vendor is None:
        raise RequestError(
            "device",
            alternative.device_text,
            found="no vendor, and a pod asks for the resource of one vendor",
            remedy='Name it, as in "nvidia/a100"',
        )
    return vendor


def resource_of(alternative: Alternative, configured: Mapping[str, str]) -> Resource:
    """The resource that stands for the devices of an alternative that is no CPU.

    :param configured: rows that come before those of `RESOURCES`
    :raises RequestError: none is known

    >>> resource_of(Alternative(vendor="nvidia", kind="gpu", partition="1g.10gb+me"), {}).name
    'nvidia.com/mig-1g.10gb.me'
    """
    own = configured.get(alternative.kind or "")
    if own is not None and alternative.vendor is None and alternative.model is None:
        return Resource(own, _DOMAINS.get(own.partition("/")[0], alternative.kind or ""), is_model_specific=True)
    vendor = vendor_of(alternative)
    kind = alternative.kind or VENDORS.get(vendor, "")
    exact = alternative.device_text if alternative.partition else f"{vendor}/{alternative.model}"
    for table in (configured, RESOURCES):
        if exact in table:
            return Resource(table[exact], vendor, is_model_specific=True)
        for name in () if alternative.partition else (f"{vendor}/{kind}", vendor):
            if name in table:
                return Resource(table[name], vendor, is_model_specific=False)
    if alternative.partition:
        # as the device plugin names it, which replaces the plus of a profile with media extensions
        made = f"nvidia.com/mig-{alternative.partition.replace('+', '.')}"
        if is_extended_resource(made):
            return Resource(made, vendor, is_model_specific=True)
    raise RequestError(
        "device",
        alternative.device_text,
        found="no known resource of Kubernetes for it",
        remedy=f'Name it in [hetero] kubernetes_resources, as in {{"{vendor}/{kind or alternative.model}": '
        '"example.com/device"}; `kubectl describe node` shows the names',
    )
