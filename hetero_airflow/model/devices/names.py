"""Names of devices: the well-known ones, and the grammar of a device text, ``[vendor/]device[:quantity]``.

====================== ====================================================
``gpu``                a kind: gpu, npu, tpu, hpu (Gaudi), neuron (Trainium, Inferentia), fpga, cpu
``gpu:2``              two whole devices; of ``cpu``, two cores
``gpu:0.5``            a share of one device
``nvidia``             any device of a vendor
``a100:2``             a model; every word of it must be part of the device's model name
``nvidia/a100-80gb:1`` vendor and model; any vendor and model may be named like this
``mig-1g.10gb``        a MIG instance of that profile
``amd/cpx-nps4``       a partition of an AMD GPU in that mode
====================== ====================================================

A model without a vendor (``a100:2``) must be in `PRODUCTS`, which names its vendor: a DAG file is read without a look
at the workers, so nothing else can tell a new model from a typo. Any other model works as ``vendor/model``. The table
also gives the memory of simulated devices, and Kubernetes' node labels.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from hetero_airflow.errors import RequestError
from hetero_airflow.validation import did_you_mean

KINDS = ("cpu", "gpu", "npu", "tpu", "fpga", "hpu", "neuron")
"""Kinds that need no vendor. A probe may add other kinds; a request names them as ``vendor/kind``.

Gaudi is an ``hpu`` (torch's device and Habana's label ``habana.ai/hpu``); Trainium and Inferentia are ``neuron``
(Amazon's resource ``aws.amazon.com/neuron``). Both need software of their own, so a request for a GPU or an NPU must
not match them.
"""

VENDORS: dict[str, str] = {
    "nvidia": "gpu",
    "amd": "gpu",
    "ascend": "npu",
    "google": "tpu",
    "intel": "gpu",
    "xilinx": "fpga",
    "habana": "hpu",
    "aws": "neuron",
    "furiosa": "npu",
    "rebellions": "npu",
}
"""Vendor → the kind of its devices where a request names no kind. Intel's FPGAs are ``intel/fpga``, or a model."""

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "x86-64": ("amd64", "x86_64", "x64"),
    "aarch64": ("arm64",),
    "ppc64le": (),
    "riscv64": (),
    "s390x": (),
    "loongarch64": ("loong64",),
}
"""CPU architecture, as Python's ``platform.machine()`` calls it, but for x86 → its other names. The first one is Go's,
which Kubernetes has in the label ``kubernetes.io/arch`` (go/build, syslist.go), where it differs."""

_INTEL_FPGA = re.compile(r"(?:.*-)?(?:arria|stratix|agilex|cyclone|pac-|n[356]\d{3}\b).*")
"""Models of Intel's FPGAs, and of the cards that have one (the ids in ``drivers/fpga/dfl-pci.c`` of the kernel)."""

_AMD_PARTITION = re.compile(r"[dtqc]px(?:-nps[1248])?")
_MIG_PROFILE = re.compile(r"[1-7]g\.[0-9]{1,3}gb(?:\+[a-z.]+)*")
_TPU_TYPE = re.compile(
    r"(?:tpu-?)?v?(?P<generation>[2-7](?:-?lite(?:pod)?|p|e|x)?)(?:-(?:pod)?slice)?(?:-(?P<size>[0-9]{1,5}))?"
)
_NO_MODEL = re.compile(r"[0-9]+gb|sxm[0-9]?|pcie|nvl|hbm[0-9]e?")
"""Words of a model's name that are true of many models."""

PRODUCTS: Mapping[str, Mapping[str, float | None]] = {
    # The driver's names with dashes for blanks, which gpu-feature-discovery writes into nvidia.com/gpu.product
    # (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery; NVIDIA/open-gpu-kernel-modules, "Compatible GPUs").
    # Memory: NVIDIA's data sheets. A K80 has two GPUs; GB10 shares the memory of its host.
    "nvidia": {
        "Tesla-K80": 12, "Tesla-M40": 24, "Tesla-M60": 8, "Tesla-P4": 8, "Tesla-P40": 24, "Tesla-P100-PCIE-12GB": 12,
        "Tesla-P100-PCIE-16GB": 16, "Tesla-P100-SXM2-16GB": 16, "Tesla-V100-PCIE-16GB": 16, "Tesla-V100-PCIE-32GB": 32,
        "Tesla-V100S-PCIE-32GB": 32, "Tesla-V100-SXM2-16GB": 16, "Tesla-V100-SXM2-32GB": 32,
        "Tesla-V100-SXM3-32GB": 32, "Tesla-V100-DGXS-32GB": 32, "Tesla-T4": 16,
        "NVIDIA-A2": 16, "NVIDIA-A10": 24, "NVIDIA-A10G": 24, "NVIDIA-A16": 16, "NVIDIA-A30": 24, "NVIDIA-A40": 48,
        "NVIDIA-A100-PCIE-40GB": 40, "NVIDIA-A100-SXM4-40GB": 40, "NVIDIA-A100-80GB-PCIe": 80,
        "NVIDIA-A100-SXM4-80GB": 80, "NVIDIA-A100-SXM-64GB": 64, "NVIDIA-A800-80GB-PCIe": 80,
        "NVIDIA-A800-SXM4-80GB": 80, "NVIDIA-L4": 24, "NVIDIA-L20": 48, "NVIDIA-L40": 48, "NVIDIA-L40S": 48,
        "NVIDIA-H100-PCIe": 80, "NVIDIA-H100-NVL": 94, "NVIDIA-H100-80GB-HBM3": 80, "NVIDIA-H800": 80,
        "NVIDIA-H800-PCIe": 80, "NVIDIA-H20": 96, "NVIDIA-H20-3e": 141, "NVIDIA-H200": 141, "NVIDIA-H200-NVL": 141,
        "NVIDIA-GH200-120GB": 96, "NVIDIA-GH200-480GB": 96, "NVIDIA-GH200-144G-HBM3e": 144, "NVIDIA-B200": 180,
        "NVIDIA-B300-SXM6-AC": 268, "NVIDIA-GB200": 186, "NVIDIA-GB300": 279, "NVIDIA-GB10": None,
        "NVIDIA-RTX-A2000": 6, "NVIDIA-RTX-A4000": 16, "NVIDIA-RTX-A4500": 20, "NVIDIA-RTX-A5000": 24,
        "NVIDIA-RTX-A6000": 48, "NVIDIA-RTX-4000-Ada-Generation": 20, "NVIDIA-RTX-5000-Ada-Generation": 32,
        "NVIDIA-RTX-6000-Ada-Generation": 48, "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": 96,
        "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition": 96, "Quadro-RTX-5000": 16, "Quadro-RTX-6000": 24,
        "Quadro-RTX-8000": 48, "NVIDIA-TITAN-V": 12, "NVIDIA-TITAN-Xp": 12, "NVIDIA-TITAN-RTX": 24,
        "NVIDIA-GeForce-GTX-1080-Ti": 11, "NVIDIA-GeForce-RTX-2080-Ti": 11, "NVIDIA-GeForce-RTX-3060": 12,
        "NVIDIA-GeForce-RTX-3070": 8, "NVIDIA-GeForce-RTX-3080": 10, "NVIDIA-GeForce-RTX-3080-Ti": 12,
        "NVIDIA-GeForce-RTX-3090": 24, "NVIDIA-GeForce-RTX-3090-Ti": 24, "NVIDIA-GeForce-RTX-4060-Ti": 16,
        "NVIDIA-GeForce-RTX-4070": 12, "NVIDIA-GeForce-RTX-4080": 16, "NVIDIA-GeForce-RTX-4080-SUPER": 16,
        "NVIDIA-GeForce-RTX-4090": 24, "NVIDIA-GeForce-RTX-4090-D": 24, "NVIDIA-GeForce-RTX-5070-Ti": 16,
        "NVIDIA-GeForce-RTX-5080": 16, "NVIDIA-GeForce-RTX-5090": 32, "NVIDIA-GeForce-RTX-5090-D": 32,
    },
    # The values of amd.com/gpu.product-name (ROCm/k8s-device-plugin, cmd/k8s-node-labeller), and amd-smi's names of
    # consumer cards. Memory: AMD's data sheets; of an MI250 or MI250X, that of one of its two GPUs.
    "amd": {
        "AMD_Instinct_MI100": 32, "AMD_Instinct_MI210": 64, "AMD_Instinct_MI250": 64, "AMD_Instinct_MI250X": 64,
        "AMD_Instinct_MI300A": 128, "AMD_Instinct_MI300X": 192, "AMD_Instinct_MI300X_OAM": 192,
        "AMD_Instinct_MI308X_OAM": 192, "AMD_Instinct_MI325X": 256, "AMD_Instinct_MI325X_OAM": 256,
        "AMD_Instinct_MI350X": 288, "AMD_Instinct_MI355X": 288, "AMD_Radeon_RX_7900_XTX": 24,
        "AMD_Radeon_RX_9070_XT": 16, "AMD_Radeon_PRO_W7900": 48, "AMD_Radeon_AI_PRO_R9700": 32,
    },
    # The chips that npu-smi prints, which are the values of node.kubernetes.io/npu.chip.name (MindCluster guide).
    "ascend": {
        "310B1": None, "310B4": None, "310P1": 24, "310P2": 24, "310P3": 24, "310P4": 24, "910A": 32,
        "910PremiumA": 32, "910ProA": 32, "910ProB": 32, "910B1": 64, "910B2": 64, "910B2C": 64, "910B3": 64,
        "910B4": 32, "910B4-1": 64, "910C": 64,
    },
    # Google, "TPU versions": HBM of a chip.
    "google": {"v2": 16, "v3": 32, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 192},
    # gpu.intel.com/product (intel/intel-device-plugins-for-kubernetes, cmd/gpu_plugin/labels.md), and Intel's names of
    # Arc cards and of FPGAs. Memory: Intel's data sheets.
    "intel": {
        "Flex_140": 6, "Flex_170": 16, "Max_1100": 48, "Max_1550": 128, "Arc_A770": 16, "Arc_B570": 10, "Arc_B580": 12,
        "Arc_Pro_B60": 24, "PAC-Arria-10": 8, "Stratix-10": 32, "N6000-Agilex": 16, "N6001-Agilex": 16,
    },
    # AMD's data sheets.
    "xilinx": {"Alveo-U200": 64, "Alveo-U250": 64, "Alveo-U280": 8, "Alveo-U50": 8, "Alveo-U55C": 16},
    # The values of habana.ai/hpu.product; Intel's data sheets.
    "habana": {"gaudi": 32, "gaudi2": 96, "gaudi3": 128},
    # AWS Neuron's documentation, "Neuron hardware": memory of a chip.
    "aws": {"inf1": 8, "inf2": 32, "trn1": 32, "trn2": 96},
    # The words in furiosa.ai/… and rebellions.ai/… (the makers' device plugins); their data sheets.
    "furiosa": {"rngd": 48, "warboy": 16},
    "rebellions": {"atom": 16},
}  # fmt: skip
"""Vendor → name of a product → its memory in GiB; None where it is the host's, or differs. The names stand as node
labels have them; `product_model` makes the model of each."""

_SHORT_NAMES: Mapping[str, Mapping[str, int]] = {
    "nvidia": {
        "k80": 12, "p100": 16, "v100": 32, "v100-16gb": 16, "v100-32gb": 32, "t4": 16, "a10": 24, "a10g": 24,
        "a30": 24, "a40": 48, "a100": 40, "a100-40gb": 40, "a100-80gb": 80, "l4": 24, "l40s": 48, "h100": 80,
        "h100-80gb": 80, "h200": 141, "b200": 180, "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32,
    },
    "amd": {"mi210": 64, "mi250x": 64, "mi300a": 128, "mi300x": 192, "mi325x": 256, "mi355x": 288},
    "ascend": {"310p": 24, "910a": 32, "910b": 64, "910c": 64},
    "google": {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 192},
    "xilinx": {"u250": 64, "u280": 8},
    "intel": {"stratix-10": 32},
}  # fmt: skip
"""The names that people use most, with the memory of a simulated device."""

EXTRA_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("h100-80gb-hbm3", "h200", "h20"), ("sxm", "sxm5")), "b200": ("sxm", "sxm6"),
    **dict.fromkeys(("910premiuma", "910proa", "910prob"), ("910a",)), "910b2c": ("910b", "910b2"),
}  # fmt: skip
"""Whole model name, as the driver reports it → words that it leaves out: the form factor (NVIDIA's cards with another
one have it in their names, ``h100-pcie``), and the chip of which it is a version."""

VARIANTS = frozenset({"ti", "super", "laptop", "mobile", "design", "d", "display"})
"""Words that make another chip of a model: a device with one never matches a request without it. ``design`` ends the
names of laptop GPUs ("with Max-Q Design"), ``d`` those for China (RTX 4090 D), and a "DGX Display" computes nothing."""

VGPU = re.compile(r"[0-9]{1,3}[abcq]")
"""The last word of a vGPU, a part of a GPU: ``A40-8Q`` (NVIDIA's vGPU guide, "Virtual GPU types")."""


MAKER_DOMAINS: Mapping[str, str] = {
    "nvidia.com": "nvidia", "amd.com": "amd", "xilinx.com": "xilinx", "huawei.com": "ascend", "habana.ai": "habana",
    "furiosa.ai": "furiosa", "rebellions.ai": "rebellions", "hygon.com": "hygon", "cambricon.com": "cambricon",
    "metax-tech.com": "metax", "iluvatar.ai": "iluvatar", "iluvatar.com": "iluvatar", "enflame.com": "enflame",
    "mthreads.com": "mthreads", "kunlunxin.com": "kunlunxin", "birentech.com": "biren", "graphcore.ai": "graphcore",
    "tenstorrent.com": "tenstorrent", "hailo.ai": "hailo", "intel.com": "intel", "amazon.com": "aws", "aws.com": "aws",
    "amazonaws.com": "aws", "google.com": "google", "moorethreads.com": "mthreads", "qualcomm.com": "qualcomm",
    "groq.com": "groq", "sambanova.ai": "sambanova", "d-matrix.ai": "d-matrix", "project-hami.io": "nvidia",
}  # fmt: skip
"""Domain → vendor, by the words of `hetero_airflow.discovery.unprobed` (charts/hami/values.yaml of Project-HAMi/HAMi,
and the makers' device plugins). HAMi's DRA driver, ``hami-core-gpu.project-hami.io``, divides NVIDIA's GPUs."""

AMD_CHIPS: Mapping[str, tuple[int, int]] = {
    "mi300x": (8, 192), "mi300a": (6, 128), "mi308x": (4, 192),
    "mi325x": (8, 256), "mi350x": (8, 288), "mi355x": (8, 288),
}  # fmt: skip
"""Chip that can be partitioned → its compute dies (XCDs) and its memory in GiB. AMD's data sheets; amdgpu_xcp of the
kernel's driver divides a chip into as many partitions as the mode says, ``cpx`` into one for each die."""

AMD_MODES: Mapping[str, int] = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Compute partition mode → partitions of a chip (ROCm, "MI300X GPU partitioning"). ``cpx`` makes one of each die."""

_SYNONYMS = {
    "cuda": "nvidia", "rocm": "amd", "hip": "amd", "radeon": "amd", "instinct": "amd", "cann": "ascend",
    "huawei": "ascend", "geforce": "nvidia", "tesla": "nvidia", "core": "cpu", "cores": "cpu", "accelerator": "gpu",
    "graphics": "gpu", "mig": "mig-1g.10gb", "gaudi": "hpu", "trainium": "neuron", "inferentia": "neuron",
    "xpu": "intel/gpu", "arc": "intel/gpu", "dcu": "hygon/dcu",
}  # fmt: skip
"""Words that people write → a device text of this grammar that they can mean."""

_DEVICE_TEXT = re.compile(
    r"(?:(?P<vendor>[a-z0-9][a-z0-9_-]*)/)?(?P<word>[a-z0-9][a-z0-9._+-]*)(?::(?P<quantity>[^:]*))?"
)
_COUNT = re.compile(r"[0-9]{1,9}")
_SHARE = re.compile(r"0?\.[0-9]{1,9}")
_SEVERAL = re.compile(r"\s*(?:[,;|&+]|\bor\b|\band\b)\s*")
_COUNT_FIRST = re.compile(r"(?P<count>[0-9]{1,4})\s*[x×*:]?\s*(?P<device>[a-z].*)")
_COUNT_LAST = re.compile(r"(?P<device>[a-z][a-z0-9/._-]*?)\s*(?:[x×*=@(\[]|\s)\s*(?P<count>[0-9]{1,4})\s*[)\]]?")
MAX_TEXT = 256
MAX_COUNT = 4096
"""Devices or cores of one request."""
DEVICE_REMEDY = 'Write it as "gpu:2" or "nvidia/a100:1"'


class KnownProduct(NamedTuple):
    """A row of `PRODUCTS`."""

    vendor: str
    kind: str
    model: str
    memory_gib: float | None
    tokens: frozenset[str]
    """The words by which a request may name it."""


def product_model(vendor: str, name: str) -> str:
    """The model of a product, as `Device.model` has it.

    >>> product_model("nvidia", "NVIDIA-A100-SXM4-80GB"), product_model("amd", "AMD_Instinct_MI300X")
    ('a100-sxm4-80gb', 'instinct-mi300x')
    """
    return name.lower().replace("_", "-").removeprefix(f"{vendor}-")


def kind_of(vendor: str, model: str) -> str | None:
    """The kind of a vendor's model; None if the vendor is unknown.

    >>> kind_of("intel", "arc-b580"), kind_of("intel", "n6000-agilex"), kind_of("habana", "gaudi2")
    ('gpu', 'fpga', 'hpu')
    """
    return "fpga" if vendor == "intel" and _INTEL_FPGA.fullmatch(model) else VENDORS.get(vendor)


@lru_cache(maxsize=1)
def known_products() -> tuple[KnownProduct, ...]:
    """All rows of `PRODUCTS`, and the short names."""
    names: dict[tuple[str, str], float | None] = {
        (vendor, product_model(vendor, name)): gib for vendor, rows in PRODUCTS.items() for name, gib in rows.items()
    }
    short_names = {(vendor, name): gib for vendor, rows in _SHORT_NAMES.items() for name, gib in rows.items()}
    return tuple(
        KnownProduct(vendor, kind_of(vendor, model) or "", model, gib, _request_words(model, gib))
        for (vendor, model), gib in (short_names | names).items()
    )


def _request_words(model: str, gib: float | None) -> frozenset[str]:
    return model_tokens(model) | (frozenset() if gib is None else {f"{gib:g}gb"})


@lru_cache(maxsize=4096)
def known_vendors(model: str) -> tuple[str, ...]:
    """The vendors that have a known product of the model.

    >>> known_vendors("h100-sxm"), known_vendors("a100-80gb"), known_vendors("h100-sxm9"), known_vendors("titan-rtx")
    (('nvidia',), ('nvidia',), (), ('nvidia',))
    """
    if not model[:1].isalnum():
        return ()  # as in "gpu:" and "gpu:-1"
    return tuple(dict.fromkeys(row.vendor for row in known_products() if matches_model(model, row.tokens)))


def other_names(product: KnownProduct) -> list[str]:
    """The short names, and the words that the driver leaves out, that a request may use for a product as well.

    >>> other_names(next(product for product in known_products() if product.model == "h100-80gb-hbm3"))
    ['h100', 'h100-80gb', 'sxm', 'sxm5']
    """
    names = [name for name, (vendor, *_) in MODELS.items() if vendor == product.vendor]
    short = [name for name in names if name != product.model and matches_model(name, product.tokens)]
    return [*short, *EXTRA_WORDS.get(product.model, ())]


MODELS: dict[str, tuple[str, str, int]] = {
    model: (vendor, kind_of(vendor, model) or "", gib * 2**30)
    for vendor, sizes in _SHORT_NAMES.items()
    for model, gib in sizes.items()
}
"""Short name → (vendor, kind, memory of one simulated device in bytes)."""


# -- words -------------------------------------------------------------------------------------------------------------


def model_tokens(model: str) -> frozenset[str]:
    """The words of a model name that a request may use: also pairs of neighbouring words, joined, and `EXTRA_WORDS`.

    A word with a ``!`` before it names the words of which a request must have one, because the model is a variant.

    >>> sorted(model_tokens("rtx-4090")), sorted(model_tokens("h200"))
    (['4090', 'rtx', 'rtx4090'], ['h200', 'sxm', 'sxm5'])
    >>> sorted(model_tokens("rtx-4090-d"))
    ['!d,4090d', '4090', '4090d', 'd', 'rtx', 'rtx4090']
    """
    parts = model.split("-")
    extra_words = EXTRA_WORDS.get(model.removeprefix("nvidia-"), ())
    return frozenset({*parts, *(a + b for a, b in pairwise(parts)), *extra_words, *_variant_marks(parts)})


def _variant_marks(parts: list[str]) -> Iterator[str]:
    for number, word in enumerate(parts):
        is_vgpu = number > 0 and number == len(parts) - 1 and VGPU.fullmatch(word)
        if is_vgpu or (word in VARIANTS and number > 0):
            yield f"!{word},{parts[number - 1]}{word}"


def matches_model(requested: str, tokens: frozenset[str]) -> bool:
    """Whether a device with these `model_tokens` is of the requested model.

    Every dash-separated word must appear. A word that ends with a letter also matches if only digits follow
    (``910b`` matches ``910b3``, ``sxm`` matches ``sxm4``; ``a10`` never matches ``a100``). A variant matches only if
    the request names it: ``rtx-4090`` is no ``rtx-4090-d``, and ``a40`` no ``a40-8q``.

    >>> matches_model("a100-80gb", model_tokens("a100-sxm4-80gb")), matches_model("a10", model_tokens("a100-40gb"))
    (True, False)
    >>> matches_model("910b", model_tokens("910b3")), matches_model("rtx-3090", model_tokens("geforce-rtx-3090-ti"))
    (True, False)
    """
    words = [word for word in requested.split("-") if word]
    return all(_has_word(tokens, word) for word in words) and all(
        not mark.startswith("!") or any(variant in words for variant in mark[1:].split(",")) for mark in tokens
    )


def _has_word(tokens: frozenset[str], word: str) -> bool:
    return word in tokens or (
        is_stem(word) and any(token.startswith(word) and token[len(word) :].isdigit() for token in tokens)
    )


def is_stem(word: str) -> bool:
    """Whether a requested word also stands for the words that continue it with digits.

    >>> is_stem("910b"), is_stem("sxm"), is_stem("a10"), is_stem("rtx")
    (True, True, False, False)
    """
    return word[-1].isalpha() and (word == "sxm" or any(character.isdigit() for character in word))


def amd_chip(model: str) -> tuple[int, int] | None:
    """The row of `AMD_CHIPS` for a model; None for a chip that can't be partitioned, or is not known.

    >>> amd_chip("instinct-mi308x-oam"), amd_chip("instinct-mi210")
    ((4, 192), None)
    """
    tokens = model_tokens(model)
    return next((row for name, row in AMD_CHIPS.items() if matches_model(name, tokens)), None)


def is_display_only(model: str) -> bool:
    """Whether a model is an adapter on which nothing computes, such as the DGX Station's.

    >>> is_display_only("dgx-display"), is_display_only("a100-sxm4-80gb")
    (True, False)
    """
    return "display" in model.split("-")


def best_matching_model(models: Iterable[str], model: str) -> str | None:
    """Of the requested models that match a device's model, the one with the most words; None if none matches.

    >>> best_matching_model(["a10", "a100", "a100-80gb"], "a100-sxm4-80gb")
    'a100-80gb'
    """
    tokens = model_tokens(model)
    matching = (name for name in models if matches_model(name, tokens))
    return max(matching, key=lambda name: (name.count("-"), len(name), name), default=None)


def architecture_of(name: str) -> str | None:
    """The architecture of a name; None if it is not known.

    >>> architecture_of("AMD64"), architecture_of("arm64"), architecture_of("sparc")
    ('x86-64', 'aarch64', None)
    """
    word = name.strip().lower()
    return next((known for known, others in ARCHITECTURES.items() if word in (known, *others)), None)


# -- the grammar -------------------------------------------------------------------------------------------------------


def parse_device(text: object) -> dict[str, object]:
    """The fields of an `Alternative` that a device text stands for.

    >>> parse_device("nvidia/a100-80gb:2")
    {'vendor': 'nvidia', 'kind': 'gpu', 'model': 'a100-80gb', 'count': 2}
    >>> parse_device("gpu:0.5"), parse_device("mig-1g.10gb")
    ({'kind': 'gpu', 'share': 0.5}, {'vendor': 'nvidia', 'kind': 'gpu', 'partition': '1g.10gb'})

    :raises RequestError: not in the grammar, or a word that is neither a kind, a vendor nor a model
    """
    if not isinstance(text, str):
        raise RequestError("device", text, found=f"a value of the type {type(text).__name__}", remedy=DEVICE_REMEDY)
    if len(text) > MAX_TEXT:
        found = f"{len(text)} characters, above the limit of {MAX_TEXT}"
        raise RequestError("device", text, found=found, remedy=DEVICE_REMEDY)
    match = _DEVICE_TEXT.fullmatch(text.strip().lower().replace("_", "-"))
    if match is None or (match["vendor"] is None and match["word"].isdigit()):
        raise _no_device(text)
    return _read_word(text, match["vendor"], match["word"]) | _read_quantity(text, match["word"], match["quantity"])


def _read_partition(text: str, vendor: str | None, word: str) -> dict[str, object]:
    if vendor == "amd" and not word.startswith("mig-"):
        return {"vendor": vendor, "kind": "gpu", "partition": word}
    if vendor not in (None, "nvidia"):
        remedy = 'Only NVIDIA has MIG: write "mig-1g.10gb"'
        raise RequestError("device", text, found=f"a MIG profile of {vendor}", remedy=remedy)
    return {"vendor": "nvidia", "kind": "gpu", "partition": word.removeprefix("mig-")}


def _no_device(text: str) -> RequestError:
    """The error for a text outside of the grammar, with what its writer can have meant."""
    words = text.strip().lower()
    parts = [part for part in _SEVERAL.split(words) if part]
    if len(parts) > 1 and all(_DEVICE_TEXT.fullmatch(part) for part in parts):
        remedy = f"Write a list, in order of preference: {json.dumps(parts)}"
        return RequestError("device", text, found="several devices in one text", remedy=remedy)
    guess = next(_guesses(words), "")
    hint = f'Did you mean "{guess}"? ' if guess != words and _DEVICE_TEXT.fullmatch(guess) else ""
    return RequestError("device", text, found="no device text", remedy=f"{hint}{DEVICE_REMEDY}")


def _guesses(words: str) -> Iterator[str]:
    """What a text of another tool's grammar may mean, the likeliest first."""
    close = re.sub(r"\s*([:/])\s*", r"\1", words)
    if close != words and _DEVICE_TEXT.fullmatch(close):  # gpu : 2
        yield close
    domain, slash, resource = words.partition("/")
    if slash and "." in domain:  # a Kubernetes resource: nvidia.com/gpu:1
        name, colon, count = resource.partition(":")
        yield _device_of_resource(domain, name) + colon + count
    of_kind = re.fullmatch(rf"(?:gres/)?(?:{'|'.join(KINDS)}):([a-z][^:]*|[0-9]+[a-z][^:]*)(:[0-9]+)?", words)
    if of_kind:  # Slurm's gpu:a100:2
        yield of_kind[1] + (of_kind[2] or "")
    joined = "-".join(words.split())
    if known_vendors(joined.partition(":")[0]):  # rtx 4090
        yield joined
    meant = _COUNT_FIRST.fullmatch(words) or _COUNT_LAST.fullmatch(words)
    yield f"{meant['device']}:{meant['count']}" if meant else joined


def _device_of_resource(domain: str, name: str) -> str:
    """The device that a Kubernetes resource's name stands for.

    >>> _device_of_resource("huawei.com", "ascend910b4"), _device_of_resource("gpu.intel.com", "xe")
    ('ascend/910b4', 'intel/gpu')
    """
    labels = domain.split(".")
    vendor = MAKER_DOMAINS.get(".".join(labels[-2:]), labels[-2])
    model = name.removeprefix(vendor)
    if name.startswith("mig-"):
        return name
    is_named = name in KINDS or vendor not in VENDORS or vendor in known_vendors(model)
    return f"{vendor}/{model if is_named else VENDORS[vendor]}"


def _read_word(text: str, vendor: str | None, word: str) -> dict[str, object]:
    if word.startswith("mig-") or _MIG_PROFILE.fullmatch(word) or (vendor == "amd" and _AMD_PARTITION.fullmatch(word)):
        return _read_partition(text, vendor, word)
    if word in KINDS:
        return {"kind": word} if vendor is None else {"vendor": vendor, "kind": word}
    if vendor is None and word in VENDORS:
        return {"vendor": word, "kind": VENDORS[word]}
    if vendor is None:
        vendor, word = _vendor_and_model(text, word)
    _check_vendor(text, vendor, word)
    kind = kind_of(vendor, word)
    fields: dict[str, object] = {"vendor": vendor}
    return fields | ({"kind": kind} if kind else {}) | {"model": word}


def _vendor_and_model(text: str, word: str) -> tuple[str, str]:
    """The vendor of a bare model, which may stand before it: ``ascend910b``.

    :raises RequestError: a model that is not in `PRODUCTS`, or that several vendors have
    """
    is_general = all(part in VARIANTS or _NO_MODEL.fullmatch(part) for part in word.split("-"))
    vendors = () if is_general else known_vendors(word)
    if len(vendors) == 1:
        return vendors[0], word
    for vendor in VENDORS:
        model = word.removeprefix(vendor).lstrip("-")
        if model and model != word and vendor in known_vendors(model):
            return vendor, model
    meant = _COUNT_FIRST.fullmatch(word)
    if meant and (meant["device"] in (*KINDS, *VENDORS) or known_vendors(meant["device"])):
        raise _no_device(text)
    if vendors:
        remedy = f"Write {' or '.join(json.dumps(f'{vendor}/{word}') for vendor in vendors)}"
        raise RequestError("device", text, found=f"a model of {' and of '.join(vendors)}", remedy=remedy)
    hint = _slice_hint(word) or (f'Did you mean "{_SYNONYMS[word]}"? ' if word in _SYNONYMS else "")
    names = [*KINDS, *VENDORS, *MODELS, *(product.model for product in known_products())]
    known = _nearest_model(word)
    hint = hint or (f'Did you mean "{known}"? ' if known else did_you_mean(word, names, cutoff=0.6))
    _, _, quantity = text.strip().partition(":")
    if ":" not in hint and (_SHARE.fullmatch(quantity) or (_COUNT.fullmatch(quantity) and int(quantity) > 0)):
        hint = hint.replace('"? ', f':{quantity}"? ')
    remedy = (
        f"{hint}Use a kind ({', '.join(KINDS)}), a model that `airflow hetero models` lists, or name another "
        f'model with its vendor: "vendor/{word}"'
    )
    raise RequestError("device", text, found="an unknown device", remedy=remedy)


def _nearest_model(word: str) -> str | None:
    """The known model with the same letters, or the known start of the word; a variant needs its vendor.

    >>> _nearest_model("rtx3090ti"), _nearest_model("h100-sxm9"), _nearest_model("a40-8q")
    ('geforce-rtx-3090-ti', 'h100', 'nvidia/a40-8q')
    """
    letters = word.replace("-", "")
    for product in known_products() if len(letters) > 3 else ():
        if product.model.replace("-", "").endswith(letters):
            return product.model
    start, rest = word.rpartition("-")[::2]
    while start and not known_vendors(start):
        start, _, last = start.rpartition("-")
        rest = f"{last}-{rest}"
    if start and all(part in VARIANTS or VGPU.fullmatch(part) for part in rest.split("-")):
        return f"{known_vendors(start)[0]}/{word}"
    return start or None


def _slice_hint(word: str) -> str:
    """For a type of a TPU slice, such as ``tpu-v5litepod-4``. Google counts chips in some types and cores in others."""
    match = _TPU_TYPE.fullmatch(word)
    if match is None:
        return ""
    generation = match["generation"].replace("-", "")
    model = {"5lite": "v5e", "5litepod": "v5e", "7": "v7x"}.get(generation, f"v{generation}")
    size = int(match["size"] or 0)
    count = f":{size if model in ('v5e', 'v6e') else max(1, size // 2)}" if size else ""
    return f'Did you mean "google/{model}{count}"? ' if known_vendors(model) == ("google",) else ""


def check_device(fields: Mapping[str, object]) -> None:
    """Refuse vendor, kind, model and partition of a mapping that contradict each other, or are nearly known ones.

    Any other vendor may have any kind, model or partition.

    :raises RequestError: such a field
    """
    vendor, kind, model, partition = (
        value if isinstance(value := fields.get(name), str) else "" for name in ("vendor", "kind", "model", "partition")
    )
    makers = known_vendors(model) if model else ()
    if kind and not vendor and kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        remedy = f"{hint}Use {', '.join(KINDS)}; any other kind needs its vendor"
        raise RequestError("kind", kind, found="an unknown kind", remedy=remedy)
    if vendor in VENDORS and makers and vendor not in makers:
        remedy = f'Did you mean "{makers[0]}"?'
        raise RequestError("vendor", vendor, found=f"a model of {makers[0]}", remedy=remedy)
    kinds = {kind_of(maker, model) for maker in makers}
    if kind and kinds and kind not in kinds and vendor in ("", *makers):
        remedy = f'Did you mean "{min(map(str, kinds))}"?'
        raise RequestError("kind", kind, found=f"the model {model} beside it", remedy=remedy)
    is_known = _MIG_PROFILE.fullmatch(partition) or _AMD_PARTITION.fullmatch(partition)
    if partition and vendor in ("", "nvidia", "amd") and not is_known:
        remedy = 'Write a MIG profile such as "1g.10gb", or the mode of an AMD GPU such as "cpx-nps4"'
        raise RequestError("partition", partition, found="no known form of a partition", remedy=remedy)


def _check_vendor(text: str, vendor: str, model: str) -> None:
    """Refuse a known model of another vendor, and a vendor whose name is nearly a known one.

    A new vendor with such a name is still possible as a mapping: ``{"vendor": "amdx", "model": "x1"}``.
    """
    makers = known_vendors(model)
    if vendor in VENDORS and makers and vendor not in makers:
        found, remedy = f"a model of {makers[0]}", f'Did you mean "{makers[0]}/{model}"?'
        raise RequestError("device", text, found=found, remedy=remedy)
    meant = [_SYNONYMS[vendor]] if _SYNONYMS.get(vendor) in VENDORS else VENDORS
    hint = "" if vendor in VENDORS else did_you_mean(_SYNONYMS.get(vendor, vendor), meant, cutoff=0.8)
    if hint:
        remedy = hint.strip().replace('"?', f'/{model}"?')
        raise RequestError("device", text, found="an unknown vendor", remedy=remedy)


def _read_quantity(text: str, word: str, quantity: str | None) -> dict[str, object]:
    if quantity is None:
        return {}
    if _COUNT.fullmatch(quantity) and int(quantity) > 0:
        return {"count": int(quantity)}
    if _SHARE.fullmatch(quantity) and float(quantity) > 0:
        return {"share": float(quantity)}
    if quantity != quantity.strip():
        raise _no_device(text)
    if quantity.isdecimal() and int(quantity) > MAX_COUNT:
        found = f"{quantity[:40]} devices, above the limit of {MAX_COUNT}"
        raise RequestError("device", text, found=found, remedy="Ask for fewer devices")
    model = quantity.strip()[:64]
    hint = f'Did you mean "{known_vendors(model)[0]}/{model}"? ' if known_vendors(model) else ""
    remedy = f'{hint}Give a whole number of devices ("{word}:2") or a share of one below 1 ("gpu:0.5")'
    raise RequestError("device", text, found=f"the quantity {quantity[:40]!r}", remedy=remedy)
