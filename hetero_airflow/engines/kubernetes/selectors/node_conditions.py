"""The conditions on nodes for an alternative, in terms of the labels that feature discovery sets.

Labels: docs/gpu-feature-discovery and internal/lm of NVIDIA/k8s-device-plugin, cmd/k8s-node-labeller of
ROCm/k8s-device-plugin, the MindCluster guide of Ascend, "Plan TPUs in GKE" of Google, Node Feature Discovery for CPUs.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from packaging.specifiers import SpecifierSet

from hetero_airflow.engines.kubernetes.names import check_label, is_label_value
from hetero_airflow.engines.kubernetes.selectors import products
from hetero_airflow.engines.kubernetes.selectors.affinity import (
    ALWAYS,
    Requirement,
    Terms,
    all_of,
    in_range,
    is_in,
    not_in,
    term_of,
)
from hetero_airflow.engines.kubernetes.selectors.versions import version_terms
from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.names import ARCHITECTURES
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import SPOT_LABEL
from hetero_airflow.units import ByteRange, nominal_range

_MIB, _GIB = 2**20, 2**30

PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
SHARING = "nvidia.com/gpu.sharing-strategy"
REPLICAS = "nvidia.com/gpu.replicas"
INSTANCES = "nvidia.com/gpu.slices.gi"
"""Set if the MIG strategy ``single`` counts instances as whole GPUs."""
DRIVER = tuple(f"nvidia.com/cuda.driver-version.{part}" for part in ("major", "minor", "revision"))
CUDA = tuple(f"nvidia.com/cuda.runtime-version.{part}" for part in ("major", "minor"))
AMD_PRODUCT, AMD_MEMORY, AMD_DRIVER = (f"amd.com/gpu.{part}" for part in ("product-name", "vram", "driver-version"))
ARCHITECTURE = "kubernetes.io/arch"
CHIP = "node.kubernetes.io/npu.chip.name"
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
GKE_GPU, GKE_COUNT, GKE_SHARING, GKE_CLIENTS, GKE_PARTITION = (
    f"cloud.google.com/gke-{part}"
    for part in (
        "accelerator", "accelerator-count", "gpu-sharing-strategy", "max-shared-clients-per-gpu", "gpu-partition-size",
    )
)  # fmt: skip
"""Of GKE's nodes with GPUs, which have no feature discovery ("Run GPUs in GKE", "Share GPUs in GKE")."""
KARPENTER_GPU, KARPENTER_COUNT = (f"karpenter.k8s.aws/instance-gpu-{part}" for part in ("name", "count"))
"""Of nodes that Karpenter makes in AWS (aws/karpenter-provider-aws, "Scheduling", well-known labels)."""
INTEL_PRODUCT, INTEL_COUNT = "gpu.intel.com/product", "gpu.intel.com/device.count"
AMD_MODES = ("amd.com/gpu.compute-memory-partition", "amd.com/compute-memory-partition")
REGISTER = re.compile(r"^[a-z0-9.]+/node-.*register")
"""Annotations in which HAMi and Volcano keep the devices that they divide: ``hami.io/node-nvidia-register``."""
CPU_VENDOR = "feature.node.kubernetes.io/cpu-model.vendor_id"

_NOT_DIVIDED_BY_GKE = tuple(Requirement(label, "DoesNotExist") for label in (GKE_SHARING, GKE_CLIENTS, GKE_PARTITION))
_SHARED = ("mps", "time-slicing")
_AMD_SIZES = (4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 288, 432)
"""Memory sizes of AMD's GPUs in GiB. Their label is text, so the sizes can only be listed."""
_CPU_VENDORS = MappingProxyType({"intel": "Intel", "amd": "AMD", "arm": "ARM", "hygon": "Hygon"})


def label_terms(labels: Mapping[str, str]) -> Terms:
    """The conditions on the labels that the request itself names.

    >>> label_terms({"zone": "!7,8"})
    ((Requirement(key='zone', operator='NotIn', values=('7', '8')),),)

    :raises RequestError: Kubernetes accepts no such label
    """
    term: list[Requirement] = []
    for key, text in labels.items():
        values = [part.strip() for part in text[1:].split(",")] if text.startswith("!") else [text]
        for value in values:
            check_label(key, value)
        term.append(not_in(key, values) if text.startswith("!") else is_in(key, values))
    return (tuple(term),)


def worker_terms(alternative: Alternative) -> Terms:
    """The conditions on nodes for the labels, the CPU architecture and the refusal of spot nodes of an alternative.

    :raises RequestError: Kubernetes accepts no such label
    """
    terms = label_terms(alternative.labels)
    if alternative.architecture is not None:
        name = (*ARCHITECTURES[alternative.architecture], alternative.architecture)[0]
        terms = all_of(terms, term_of(is_in(ARCHITECTURE, [name])))
    if not alternative.spot:
        terms = all_of(terms, ((Requirement(SPOT_LABEL, "DoesNotExist"),), (is_in(SPOT_LABEL, ["false"]),)))
    return terms


def device_terms(alternative: Alternative, vendor: str, *, is_model_specific: bool) -> Terms:
    """The conditions on nodes that have the devices of an alternative.

    :param is_model_specific: the resource's name already stands for the model
    :raises RequestError: a condition that no label of that vendor's nodes shows
    """
    if alternative.topology is not None and alternative.topology.level.is_within_worker:
        raise _unsupported(vendor, "topology", str(alternative.topology))
    vendor_terms = _VENDORS.get(vendor)
    if vendor_terms is not None:
        return vendor_terms(alternative, is_model_specific)
    _refuse_set(alternative, vendor, "share", "memory", "driver")
    if alternative.model is not None and not is_model_specific:
        raise _unsupported(vendor, "device", alternative.device_text)
    return ALWAYS


def unchecked_conditions(alternative: Alternative, vendor: str) -> tuple[str, ...]:
    """The conditions that nodes can't show: they concern the image or a gang.

    >>> unchecked_conditions(Alternative(kind="cpu", count=2, runtime={"torch": ">=2.8"}), "cpu")
    ('torch>=2.8',)
    """
    checked = {"cuda"} if vendor == "nvidia" else set()
    software = [f"{name}{specifier}" for name, specifier in alternative.runtime.items() if name not in checked]
    is_for_gang = alternative.topology is not None and not alternative.topology.level.is_within_worker
    return (*software, *([f"topology={alternative.topology}"] if is_for_gang else []))


def cpu_terms(alternative: Alternative) -> Terms:
    """The conditions on nodes for an alternative of CPU cores.

    :raises RequestError: a model, or a vendor that Node Feature Discovery has no name for
    """
    if alternative.model is not None or (alternative.vendor or "intel") not in _CPU_VENDORS:
        raise _unsupported(alternative.vendor or "cpu", "device", alternative.device_text)
    return ALWAYS if alternative.vendor is None else term_of(is_in(CPU_VENDOR, [_CPU_VENDORS[alternative.vendor]]))


def _nvidia(alternative: Alternative, is_model_specific: bool) -> Terms:
    driver = version_terms("driver", alternative.driver, DRIVER) if alternative.driver else ALWAYS
    cuda = alternative.runtime.get("cuda")
    runtime = version_terms("runtime['cuda']", cuda, CUDA) if cuda else ALWAYS
    if alternative.partition:
        label = f"nvidia.com/mig-{alternative.partition.replace('+', '.')}.memory"
        return all_of(_memory(alternative.memory, label, 1), driver, runtime)
    divisor = 1
    if alternative.share is None:
        kind = term_of(Requirement(INSTANCES, "DoesNotExist"), not_in(SHARING, _SHARED), *_NOT_DIVIDED_BY_GKE)
    else:
        divisor = 1000 // alternative.share_milli
        if divisor < 2:
            raise RequestError(
                "share",
                alternative.share,
                found="time-slicing and MPS, which give at most half a GPU",
                remedy="Ask for a share of 0.5 or less, or for a whole GPU",
            )
        kind = term_of(is_in(SHARING, _SHARED), *in_range(REPLICAS, 2, divisor))
    model = _nvidia_model(alternative) if alternative.model and not is_model_specific else ALWAYS
    return all_of(kind, model, _memory(alternative.memory, MEMORY, divisor), driver, runtime)


def _nvidia_model(alternative: Alternative) -> Terms:
    model = alternative.model or ""
    suffix = "" if alternative.share is None else "-SHARED"  # GFD's suffix for a shared product
    exact = products.products_of(model, products.NVIDIA)
    terms = term_of(is_in(PRODUCT, [name + suffix for name in exact])) if exact else ()
    model_name, size = products.split_size(model)
    if size is not None:
        sizeless = [name for name in products.products_of(model_name, products.NVIDIA) if name not in exact]
        (about,) = _memory(nominal_range(size), MEMORY, 1)
        terms += term_of(is_in(PRODUCT, [name + suffix for name in sizeless]), *about) if sizeless else ()
    if not terms:
        raise products.unknown_model("nvidia", model, PRODUCT)
    return terms


def _memory(memory: ByteRange | None, label: str, divisor: int) -> Terms:
    """GFD writes MiB, rounded down. For a shared GPU it writes the whole memory."""
    if memory is None:
        return ALWAYS
    low = None if memory.minimum is None else math.ceil(memory.minimum * divisor / _MIB)
    high = None if memory.maximum is None else memory.maximum * divisor // _MIB
    return (in_range(label, low, high),)


def _amd(alternative: Alternative, is_model_specific: bool) -> Terms:
    _refuse_set(alternative, "amd", "share")
    modes = [alternative.partition.replace("-", "_") if alternative.partition else "spx_nps1"]
    conditions: list[Terms] = [((Requirement(key, "DoesNotExist"),), (is_in(key, modes),)) for key in AMD_MODES]
    if alternative.model and not is_model_specific:
        names = products.products_of(alternative.model, products.AMD)
        if not names:
            raise products.unknown_model("amd", alternative.model, AMD_PRODUCT)
        conditions.append(term_of(is_in(AMD_PRODUCT, names)))
    if alternative.memory is not None:
        sizes = [f"{size}G" for size in _AMD_SIZES if alternative.memory.holds(size * _GIB)]
        if not sizes:
            raise RequestError(
                "memory", str(alternative.memory), found="no AMD GPU of that size", remedy="Widen the range"
            )
        conditions.append(term_of(is_in(AMD_MEMORY, sizes)))
    if alternative.driver is not None:
        only = list(SpecifierSet(alternative.driver))
        exact = only[0].version if len(only) == 1 and only[0].operator == "==" else ""
        if not exact or not is_label_value(exact):
            raise _unsupported("amd", "driver", alternative.driver)
        conditions.append(term_of(is_in(AMD_DRIVER, [exact])))
    return all_of(*conditions)


def _by_product(
    vendor: str, known: tuple[str, ...], label: str, alternative: Alternative, is_model_specific: bool
) -> Terms:
    """For a vendor of which one label names the model, and no label anything else."""
    _refuse_set(alternative, vendor, "share", "memory", "driver")
    if alternative.model is None or is_model_specific:
        return ALWAYS
    names = products.products_of(alternative.model, known)
    if not names:
        raise products.unknown_model(vendor, alternative.model, label)
    return term_of(is_in(label, names))


def _google(alternative: Alternative, is_model_specific: bool) -> Terms:
    _refuse_set(alternative, "google", "share", "memory", "driver")
    if alternative.model is None or is_model_specific:
        return ALWAYS
    if alternative.model not in products.GOOGLE:
        raise products.unknown_model("google", alternative.model, ACCELERATOR)
    term = [is_in(ACCELERATOR, [products.GOOGLE[alternative.model]])]
    if TPU_TOPOLOGY not in alternative.labels:
        shapes = products.TPU_TOPOLOGIES[alternative.model]
        if alternative.count not in shapes:
            raise RequestError(
                "count",
                alternative.count,
                found=f"hosts of {', '.join(map(str, shapes))} chips of google/{alternative.model}",
                remedy=f'Ask for one of these counts, or name the slice: labels={{"{TPU_TOPOLOGY}": "4x4"}}',
            )
        term.append(is_in(TPU_TOPOLOGY, [shapes[alternative.count]]))
    return (tuple(term),)


_VENDORS: Mapping[str, Callable[[Alternative, bool], Terms]] = MappingProxyType(
    {
        "nvidia": _nvidia,
        "amd": _amd,
        "google": _google,
        "ascend": partial(_by_product, "ascend", products.ASCEND, CHIP),
        "intel": partial(_by_product, "intel", products.INTEL, INTEL_PRODUCT),
    }
)

_REMEDIES = {
    "topology": "Leave it out: the kubelet's topology manager and the device plugin choose close devices",
    "share": "Ask for a whole device: only NVIDIA's plugin shares devices, by time-slicing or MPS",
    "driver": "Leave it out, or pin the nodes by a label of your own: labels={...}",
    "memory": "Name a model instead, or pin the nodes by a label of your own: labels={...}",
    "device": "Leave the model out and pin the nodes by a label: labels={...}",
}


def _refuse_set(alternative: Alternative, vendor: str, *names: str) -> None:
    for name in names:
        if getattr(alternative, name) is not None:
            raise _unsupported(vendor, name, str(getattr(alternative, name)))


def _unsupported(vendor: str, name: str, value: str) -> RequestError:
    return RequestError(name, value, found=f"no node label of {vendor} devices that shows it", remedy=_REMEDIES[name])
