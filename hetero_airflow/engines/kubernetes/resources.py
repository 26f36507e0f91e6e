"""The extended resources of a cluster for each kind of device, with their taints and DRA drivers.

Sources: NVIDIA/k8s-device-plugin (README; MIG resources of the strategy ``mixed``), ROCm/k8s-device-plugin (README),
intel/intel-device-plugins-for-kubernetes (cmd/gpu_plugin), Ascend's MindCluster guide (its device plugin counts 910A,
910B and 910C all as ``huawei.com/Ascend910``), Google's "Deploy TPU workloads in GKE". Plugins for FPGAs name a
resource by its shell or its function (Xilinx/FPGA_as_a_Service: ``xilinx.com/fpga-xilinx_u200_xdma_201820_1-153571``,
intel_fpga: ``fpga.intel.com/af-…``), so only the cluster's owner knows them.

DRA: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go), ROCm/k8s-gpu-dra-driver
(docs/driver-attributes.md), intel/intel-resource-drivers-for-kubernetes (doc/gpu, doc/gaudi),
kubernetes-sigs/dra-driver-google-tpu (cmd/tpu-dra-kubeletplugin/state.go), and "AWS Neuron Dynamic Resource
Allocation".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_airflow.engines.kubernetes.names import is_extended_resource
from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.names import MAKER_DOMAINS, VENDORS, known_vendors
from hetero_airflow.model.request import Alternative

CPU = "cpu"

DEFAULT_VENDORS: Mapping[str, str] = {
    "gpu": "nvidia", "npu": "ascend", "tpu": "google", "hpu": "habana", "neuron": "aws",
}  # fmt: skip
"""Kind → vendor if a request names none: a pod asks for the resource of one vendor."""

RESOURCES: Mapping[str, str] = {
    "nvidia/gpu": "nvidia.com/gpu",
    "amd/gpu": "amd.com/gpu",
    "intel/gpu": "gpu.intel.com/i915",
    "ascend/npu": "huawei.com/Ascend910",
    "ascend/310p": "huawei.com/Ascend310P",
    "google/tpu": "google.com/tpu",
    "habana/hpu": "habana.ai/gaudi",
    "aws/neuron": "aws.amazon.com/neuron",
}
"""Device part of a request → extended resource. ``[hetero] kubernetes_resources`` adds and replaces rows. The most
specific row counts: ``nvidia/a100``, ``mig-1g.10gb``, then ``nvidia/gpu``, ``nvidia``, ``gpu``."""

DOMAINS = {name.partition("/")[0]: device.partition("/")[0] for device, name in RESOURCES.items()}
"""Domain of a resource → vendor."""

_MIXED_MAKERS = frozenset({"intel", "aws", "google"})
"""Makers with many resources that are no accelerators: only an accelerator's word in the name counts."""

_ACCELERATOR_WORD = re.compile(
    r"(?<![a-z])[vspqc]?(gpu|npu|tpu|xpu|vpu|dcu|mlu|hpu|gcu|ppu|fpga|neuron|gaudi|cuda|ascend|qaic|accelerator)"
)
_OTHER_WORD = re.compile(
    r"(?<![a-z])(rdma|roce|ib|infiniband|sriov|vfs?|v?nics?|hca|mlnx[a-z]*|hostdev|dpdk|kvm|tun|vhost|fuse|csi|ebs|eni|efa"
    r"|volumes?|sgx|epc|tpm|usb|qat|dsa|iaa|dlb|compute-domain|monitoring|sev|tdx|nitro)(?![a-z])"
)
"""Words of resources and DRA drivers that are surely no accelerators: networks, volumes, virtual machines, crypto."""

TAINTS: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "google": ("google.com/tpu",),
}
"""Vendor → keys of the taints that keep other pods off its nodes. The resource's own name is a further key, which the
admission plugin ExtendedResourceToleration expects."""


@dataclass(frozen=True, slots=True)
class DraDriver:
    """How a vendor's DRA driver describes its devices."""

    device_class: str
    domain: str
    """Domain of its attributes and capacities."""
    model: str
    """The attribute that names the model."""
    driver: str | None = None
    """The attribute with the driver's version."""
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Software → attribute with its version."""
    kinds: tuple[str, ...] = ("gpu",)
    extra: str | None = None
    """A CEL condition that only whole devices meet."""


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
    "habana": DraDriver("gaudi.intel.com", "gaudi.intel.com", "model", kinds=("hpu",)),
    "aws": DraDriver("neuron.aws.com", "neuron.aws.com", "instanceType", kinds=("neuron",)),
}

MIG_CLASS = "mig.nvidia.com"
"""The device class of NVIDIA's MIG instances. Their attributes have the domain of its GPUs."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The extended resource for an alternative."""

    name: str
    vendor: str
    is_model_specific: bool
    """Whether the name itself stands for the requested model."""


def vendor_of(alternative: Alternative) -> str:
    """The vendor whose devices a pod asks for.

    >>> vendor_of(Alternative(model="h100-pcie"))
    'nvidia'

    :raises RequestError: the request names no vendor, and the kind has no default one
    """
    makers = known_vendors(alternative.model) if alternative.model else ()
    vendor = alternative.vendor or DEFAULT_VENDORS.get(alternative.kind or "") or next(iter(makers), None)
    if vendor is None:
        raise RequestError(
            "device",
            alternative.device_text,
            found="no vendor, and a pod asks for the resource of one vendor",
            remedy='Name the vendor, as in "nvidia/a100"',
        )
    return vendor


def resource_of(alternative: Alternative, configured: Mapping[str, str]) -> Resource:
    """The resource for the devices of an alternative, which is no CPU.

    :param configured: rows with precedence over `RESOURCES`
    :raises RequestError: no resource is known

    >>> resource_of(Alternative(vendor="nvidia", kind="gpu", partition="1g.10gb+me"), {}).name
    'nvidia.com/mig-1g.10gb.me'
    """
    generic = configured.get(alternative.kind or "")
    if generic is not None and alternative.vendor is None and alternative.model is None:
        return Resource(generic, DOMAINS.get(generic.partition("/")[0], alternative.kind or ""), is_model_specific=True)
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
        name = _partition_resource(vendor, alternative.partition)
        if is_extended_resource(name):
            return Resource(name, vendor, is_model_specific=True)
    raise RequestError(
        "device",
        alternative.device_text,
        found="no known Kubernetes resource for it",
        remedy=f'Name it in [hetero] kubernetes_resources, as in {{"{vendor}/{kind or alternative.model}": '
        '"example.com/device"}; `kubectl describe node` shows the names',
    )


def _partition_resource(vendor: str, partition: str) -> str:
    """The resource of a partition; empty if the vendor's plugin names none by a rule.

    NVIDIA's plugin replaces the plus in a profile with media extensions. AMD's names the mode if its naming strategy is
    ``mixed`` (ROCm/k8s-device-plugin, docs/user-guide/configuration.md).
    """
    if vendor == "nvidia":
        return f"nvidia.com/mig-{partition.replace('+', '.')}"
    return f"amd.com/{partition.replace('-', '_')}" if vendor == "amd" else ""


def maker_of(name: str) -> str | None:
    """The vendor of a resource or a DRA driver whose name is an accelerator's; None if it is none.

    >>> maker_of("nvidia.com/GRID_A40-8Q"), maker_of("npu.acme.io"), maker_of("qat.intel.com/generic")
    ('nvidia', 'acme', None)
    """
    text = name.lower()
    labels = text.partition("/")[0].split(".")
    maker = MAKER_DOMAINS.get(".".join(labels[-2:]))
    if _OTHER_WORD.search(text):
        return None
    if maker is not None and maker not in _MIXED_MAKERS:
        return maker
    return (maker or labels[-2:][0]) if _ACCELERATOR_WORD.search(text) else None


def accelerator_word(name: str) -> str | None:
    """The accelerator's word in a name: ``gpu``, ``dcu``.

    >>> accelerator_word("dcu.hygon.com"), accelerator_word("hygon.com/vdcunum"), accelerator_word("dra.net")
    ('dcu', 'dcu', None)
    """
    match = _ACCELERATOR_WORD.search(name.lower())
    return match[1] if match else None
