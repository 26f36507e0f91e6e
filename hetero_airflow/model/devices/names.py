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

The tables of names are a convenience, not a limit: any other model works as ``vendor/model``. They give the vendor of
a bare model (``a100:2``), the memory size of a simulated device (from the makers' data sheets), and the nearest name
for a typo.
"""

from __future__ import annotations

import json
import re

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
}
"""Vendor → the kind of its devices where a request names no kind. Intel's FPGAs are ``intel/fpga``, or a model."""

_INTEL_FPGA = re.compile(r"(?:.*-)?(?:arria|stratix|agilex|cyclone|pac-|n[356]\d{3}\b).*")
"""Models of Intel's FPGAs, and of the cards that have one (the ids in ``drivers/fpga/dfl-pci.c`` of the kernel)."""

_AMD_PARTITION = re.compile(r"[dtqc]px(?:-nps[1248])?")

_MEMORY_GIB: dict[tuple[str, str], dict[str, int]] = {
    ("nvidia", "gpu"): {
        "k80": 12, "p100": 16, "v100": 32, "v100-16gb": 16, "v100-32gb": 32, "t4": 16, "a10": 24, "a10g": 24,
        "a30": 24, "a40": 48, "a100": 40, "a100-40gb": 40, "a100-80gb": 80, "l4": 24, "l40s": 48, "h100": 80,
        "h100-80gb": 80, "h200": 141, "b200": 180, "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32,
    },
    ("amd", "gpu"): {"mi210": 64, "mi250x": 64, "mi300a": 128, "mi300x": 192, "mi325x": 256, "mi355x": 288},
    ("ascend", "npu"): {"310p": 24, "910a": 32, "910b": 64, "910c": 64},
    ("google", "tpu"): {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 192},
    ("xilinx", "fpga"): {"u250": 64, "u280": 8},
    ("intel", "fpga"): {"stratix-10": 32},
}  # fmt: skip

MODELS: dict[str, tuple[str, str, int]] = {
    model: (vendor, kind, gib * 2**30) for (vendor, kind), sizes in _MEMORY_GIB.items() for model, gib in sizes.items()
}
"""Model → (vendor, kind, memory of one device in bytes)."""

FORM_FACTORS: dict[str, str] = {"h100-80gb-hbm3": "sxm5", "h200": "sxm5", "h20": "sxm5", "b200": "sxm6"}
"""Whole model name, as NVIDIA's driver reports it → the form factor that the name leaves out. Names of cards with
another form factor have it: ``h100-pcie``, ``h200-nvl``."""

_SYNONYMS = {
    "cuda": "nvidia", "rocm": "amd", "hip": "amd", "radeon": "amd", "instinct": "amd", "cann": "ascend",
    "huawei": "ascend", "geforce": "nvidia", "tesla": "nvidia", "core": "cpu", "cores": "cpu", "accelerator": "gpu",
    "graphics": "gpu", "mig": "mig-1g.10gb", "gaudi": "hpu", "trainium": "neuron", "inferentia": "neuron",
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
DEVICE_REMEDY = 'Write it as "gpu:2" or "nvidia/a100:1"'


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
    match = _DEVICE_TEXT.fullmatch(text.strip().lower())
    if match is None or (match["vendor"] is None and match["word"].isdigit()):
        raise _no_device(text)
    return _read_word(text, match["vendor"], match["word"]) | _read_quantity(text, match["word"], match["quantity"])


def _read_partition(text: str, vendor: str | None, word: str) -> dict[str, object]:
    if not word.startswith("mig-"):
        return {"vendor": vendor, "kind": "gpu", "partition": word}
    if vendor not in (None, "nvidia"):
        remedy = 'Only NVIDIA has MIG: write "mig-1g.10gb"'
        raise RequestError("device", text, found=f"a MIG profile of {vendor}", remedy=remedy)
    return {"vendor": "nvidia", "kind": "gpu", "partition": word.removeprefix("mig-")}


def kind_of(vendor: str, model: str) -> str | None:
    """The kind of a vendor's model; None if the vendor is unknown.

    >>> kind_of("intel", "arc-b580"), kind_of("intel", "n6000-agilex"), kind_of("habana", "gaudi2")
    ('gpu', 'fpga', 'hpu')
    """
    if model in MODELS:
        return MODELS[model][1]
    return "fpga" if vendor == "intel" and _INTEL_FPGA.fullmatch(model) else VENDORS.get(vendor)


def _no_device(text: str) -> RequestError:
    """The error for a text outside of the grammar, with what its writer can have meant."""
    words = text.strip().lower()
    parts = [part for part in _SEVERAL.split(words) if part]
    if len(parts) > 1 and all(_DEVICE_TEXT.fullmatch(part) for part in parts):
        remedy = f"Write a list, in order of preference: {json.dumps(parts)}"
        return RequestError("device", text, found="several devices in one text", remedy=remedy)
    meant = _COUNT_FIRST.fullmatch(words) or _COUNT_LAST.fullmatch(words)
    guess = f"{meant['device']}:{meant['count']}" if meant else "-".join(words.split())
    hint = f'Did you mean "{guess}"? ' if guess != words and _DEVICE_TEXT.fullmatch(guess) else ""
    return RequestError("device", text, found="no device text", remedy=f"{hint}{DEVICE_REMEDY}")


def _read_word(text: str, vendor: str | None, word: str) -> dict[str, object]:
    if word.startswith("mig-") or (vendor == "amd" and _AMD_PARTITION.fullmatch(word)):
        return _read_partition(text, vendor, word)
    if word in KINDS:
        return {"kind": word} if vendor is None else {"vendor": vendor, "kind": word}
    if vendor is not None:
        _check_vendor(text, vendor, word)
        kind = kind_of(vendor, word)
        fields: dict[str, object] = {"vendor": vendor}
        return fields | ({"kind": kind} if kind else {}) | {"model": word}
    if word in VENDORS:
        return {"vendor": word, "kind": VENDORS[word]}
    if word in MODELS:
        return {"vendor": MODELS[word][0], "kind": MODELS[word][1], "model": word}
    if any(character.isdigit() for character in word):
        return {"model": _model(text, word)}
    hint = f'Did you mean "{_SYNONYMS[word]}"? ' if word in _SYNONYMS else ""
    hint = hint or did_you_mean(word, [*KINDS, *VENDORS, *MODELS], cutoff=0.5)
    remedy = f"{hint}Use a kind ({', '.join(KINDS)}), a model (a100), or name a new one as vendor/model"
    raise RequestError("device", text, found="an unknown device", remedy=remedy)


def _model(text: str, word: str) -> str:
    """The word as a new model, unless it is a known one with a count before it, such as 2xa100."""
    meant = _COUNT_FIRST.fullmatch(word)
    if meant and meant["device"] in (*KINDS, *VENDORS, *MODELS):
        raise _no_device(text)
    return word


def _check_vendor(text: str, vendor: str, model: str) -> None:
    """Refuse a known model of another vendor, and a vendor whose name is nearly a known one.

    A new vendor with such a name is still possible as a mapping: ``{"vendor": "amdx", "model": "x1"}``.
    """
    maker = MODELS[model][0] if model in MODELS else vendor
    if vendor in VENDORS and maker != vendor:
        found, remedy = f"a model of {maker}", f'Did you mean "{maker}/{model}"?'
        raise RequestError("device", text, found=found, remedy=remedy)
    hint = "" if vendor in VENDORS else did_you_mean(vendor, VENDORS, cutoff=0.8)
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
    remedy = f'Give a whole number of devices ("{word}:2") or a share of one below 1 ("gpu:0.5")'
    raise RequestError("device", text, found=f"the quantity {quantity[:40]!r}", remedy=remedy)
