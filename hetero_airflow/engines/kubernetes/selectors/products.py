"""The product names in the labels of feature discovery, and which of them a requested model means.

Node affinity compares whole texts, so the names must be known. NVIDIA's are those that its driver reports, with
dashes for blanks (docs/gpu-feature-discovery of NVIDIA/k8s-device-plugin); AMD's are from cmd/k8s-node-labeller in
ROCm/k8s-device-plugin and its example outputs; Ascend's of the label ``node.kubernetes.io/npu.chip.name`` in the
MindCluster guide; Google's of ``cloud.google.com/gke-tpu-accelerator`` in "Plan TPUs in GKE".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import matches_model, model_tokens

NVIDIA: tuple[str, ...] = (
    "Tesla-K80", "Tesla-M40", "Tesla-M60", "Tesla-P4", "Tesla-P40",
    "Tesla-P100-PCIE-12GB", "Tesla-P100-PCIE-16GB", "Tesla-P100-SXM2-16GB",
    "Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-32GB", "Tesla-V100S-PCIE-32GB",
    "Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-SXM3-32GB", "Tesla-T4",
    "NVIDIA-A2", "NVIDIA-A10", "NVIDIA-A10G", "NVIDIA-A16", "NVIDIA-A30", "NVIDIA-A40",
    "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-A800-80GB-PCIe", "NVIDIA-A800-SXM4-80GB",
    "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H800", "NVIDIA-H800-PCIe",
    "NVIDIA-H20", "NVIDIA-H200", "NVIDIA-H200-NVL", "NVIDIA-GH200-120GB", "NVIDIA-GH200-480GB",
    "NVIDIA-B200", "NVIDIA-B300-SXM6-AC", "NVIDIA-GB200", "NVIDIA-GB300", "NVIDIA-GB10",
    "NVIDIA-L4", "NVIDIA-L20", "NVIDIA-L40", "NVIDIA-L40S",
    "NVIDIA-RTX-A4000", "NVIDIA-RTX-A5000", "NVIDIA-RTX-A6000", "NVIDIA-RTX-6000-Ada-Generation",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "Quadro-RTX-6000", "Quadro-RTX-8000",
    "NVIDIA-GeForce-RTX-2080-Ti", "NVIDIA-GeForce-RTX-3080", "NVIDIA-GeForce-RTX-3090",
    "NVIDIA-GeForce-RTX-4080", "NVIDIA-GeForce-RTX-4090", "NVIDIA-GeForce-RTX-5080", "NVIDIA-GeForce-RTX-5090",
)  # fmt: skip

AMD: tuple[str, ...] = (
    "AMD_Instinct_MI100", "AMD_Instinct_MI210", "AMD_Instinct_MI250", "AMD_Instinct_MI250X",
    "AMD_Instinct_MI300A", "AMD_Instinct_MI300X", "AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI308X_OAM",
    "AMD_Instinct_MI325X", "AMD_Instinct_MI325X_OAM", "AMD_Instinct_MI350X", "AMD_Instinct_MI355X",
)  # fmt: skip

INTEL: tuple[str, ...] = ("Flex_140", "Flex_170", "Max_1100", "Max_1550")
"""Values of ``gpu.intel.com/product`` (intel/intel-device-plugins-for-kubernetes, cmd/gpu_plugin/labels.md)."""

AMD_CHIPS: Mapping[str, tuple[int, int]] = {
    "mi300x": (8, 192), "mi300a": (6, 128), "mi308x": (4, 192),
    "mi325x": (8, 256), "mi350x": (8, 288), "mi355x": (8, 288),
}  # fmt: skip
"""Chip that can be partitioned → its compute dies (XCDs) and its memory in GiB. AMD's data sheets; amdgpu_xcp of the
kernel's driver divides a chip into as many partitions as the mode says, ``cpx`` into one for each die."""

AMD_MODES: Mapping[str, int] = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Compute partition mode → partitions of a chip (ROCm, "MI300X GPU partitioning"). ``cpx`` makes one of each die."""

ASCEND: Mapping[str, tuple[str, ...]] = {
    "910a": ("910A", "910PremiumA", "910ProA", "910ProB"),
    "910b": ("910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1"),
    "910b1": ("910B1",),
    "910b2": ("910B2", "910B2C"),
    "910b3": ("910B3",),
    "910b4": ("910B4", "910B4-1"),
    "310p": ("310P1", "310P2", "310P3", "310P4"),
}

GOOGLE: Mapping[str, str] = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "v7x": "tpu7x",
}

TPU_TOPOLOGIES: Mapping[str, Mapping[int, str]] = {
    "v4": {4: "2x2x1"},
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4"},
    "v5p": {4: "2x2x1"},
    "v6e": {1: "1x1", 4: "2x2", 8: "2x4"},
    "v7x": {1: "1x1x1", 4: "2x2x1"},
}
"""Model → number of chips on one host → topology of a slice on that host."""

_SIZE = re.compile(r"(\d{1,4})gb")


def products_of(model: str, products: tuple[str, ...]) -> tuple[str, ...]:
    """The known names of a model's products.

    >>> products_of("a100-80gb", NVIDIA), products_of("mi300x", AMD)
    (('NVIDIA-A100-80GB-PCIe', 'NVIDIA-A100-SXM4-80GB'), ('AMD_Instinct_MI300X', 'AMD_Instinct_MI300X_OAM'))
    """
    return tuple(name for name in products if matches_model(model, model_tokens(name.lower().replace("_", "-"))))


def split_size(model: str) -> tuple[str, int | None]:
    """The model without the memory size in its name, and that size in GiB. Product names often leave the size out.

    >>> split_size("h100-80gb"), split_size("t4")
    (('h100', 80), ('t4', None))
    """
    model_words = [word for word in model.split("-") if word]
    sizes = [int(match[1]) for word in model_words if (match := _SIZE.fullmatch(word))]
    name = "-".join(word for word in model_words if not _SIZE.fullmatch(word))
    return (name, sizes[0]) if len(sizes) == 1 and name else (model, None)


def is_unknown_variant(model: str, vendor: str) -> bool:
    """Whether products of the model's first word are known, but none with its other words.

    Devices of the model exist nowhere, so a claim for them would wait for ever. A claim may ask for a model whose first
    word is unknown: the driver may name a new one.

    >>> is_unknown_variant("h100-sxm9", "nvidia"), is_unknown_variant("h100-80gb", "nvidia")
    (True, False)
    >>> is_unknown_variant("x1000", "nvidia")
    False
    """
    products = {"nvidia": NVIDIA, "amd": AMD}.get(vendor, ())
    model_name, _ = split_size(model)
    return bool(products_of(model.split("-")[0], products)) and not products_of(model_name, products)


def unknown_model(vendor: str, model: str, label: str) -> RequestError:
    """The error for a model without known product names."""
    return RequestError(
        "device",
        f"{vendor}/{model}",
        found=f"no known value of the node label {label} for it",
        remedy=f'Ask for "{vendor}" and name the value: labels={{"{label}": "..."}}; '
        "`kubectl get nodes --show-labels` shows it",
    )
