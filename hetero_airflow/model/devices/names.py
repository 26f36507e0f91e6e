"""Names of devices: the well-known ones, and the grammar of a device text, ``[vendor/]device[:quantity]``.

====================== ====================================================
``gpu``                a kind: gpu, npu, tpu, fpga, cpu
``gpu:2``              two whole devices; of ``cpu``, two cores
``gpu:0.5``            a share of one device
``nvidia``             any device of a vendor
``a100:2``             a model; every word of it must be part of the device's model name
``nvidia/a100-80gb:1`` vendor and model; any vendor and model may be named like this
``mig-1g.10gb``        a MIG instance of that profile
====================== ====================================================

The tables of names are a convenience, not a limit: any other model works as ``vendor/model``. They give the vendor of
a bare model (``a100:2``), the memory size of a simulated device (from the makers' data sheets), and the nearest name
for a typo.
"""

from __future__ import annotations

import difflib
import re

from hetero_airflow.errors import RequestError

KINDS = ("cpu", "gpu", "npu", "tpu", "fpga")
"""Kinds that need no vendor. A probe may add other kinds; a request names them as ``vendor/kind``."""

VENDORS: dict[str, str] = {
    "nvidia": "gpu",
    "amd": "gpu",
    "ascend": "npu",
    "google": "tpu",
    "intel": "fpga",
    "xilinx": "fpga",
}
"""Vendor → the kind of its devices where a request names no kind."""

_MEMORY_GIB: dict[tuple[str, str], dict[str, int]] = {
    ("nvidia", "gpu"): {
        "k80": 12, "p100": 16, "v100": 32, "v100-16gb": 16, "v100-32gb": 32, "t4": 16, "a10": 24, "a10g": 24,
        "a30": 24, "a40": 48, "a100": 40, "a100-40gb": 40, "a100-80gb": 80, "l4": 24, "l40s": 48, "h100": 80,
        "h100-80gb": 80, "h200": 141, "b200": 180, "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32,
    },
    ("amd", "gpu"): {"mi210": 64, "mi250x": 64, "mi300a": 128, "mi300x": 192, "mi325x": 256, "mi355x": 288},
    ("ascend", "npu"): {"310p": 24, "910a": 32, "910b": 64, "910c": 64},
    ("google", "tpu"): {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32},
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

_DEVICE_TEXT = re.compile(
    r"(?:(?P<vendor>[a-z0-9][a-z0-9_-]*)/)?(?P<word>[a-z0-9][a-z0-9._+-]*)(?::(?P<quantity>[^:]*))?"
)
_COUNT = re.compile(r"[0-9]{1,9}")
_SHARE = re.compile(r"0?\.[0-9]{1,9}")
MAX_TEXT = 256


def parse_device(text: object) -> dict[str, object]:
    """The fields of an `Alternative` that a device text stands for.

    >>> parse_device("nvidia/a100-80gb:2")
    {'vendor': 'nvidia', 'kind': 'gpu', 'model': 'a100-80gb', 'count': 2}
    >>> parse_device("gpu:0.5"), parse_device("mig-1g.10gb")
    ({'kind': 'gpu', 'share': 0.5}, {'vendor': 'nvidia', 'kind': 'gpu', 'partition': '1g.10gb'})

    :raises RequestError: not in the grammar, or a word that is neither a kind, a vendor nor a model
    """
    if not isinstance(text, str):
        raise RequestError("device", text, found=type(text).__name__, remedy='Give a text such as "gpu:2"')
    if len(text) > MAX_TEXT:
        remedy = f'Give at most {MAX_TEXT}, such as "gpu:2"'
        raise RequestError("device", text, found=f"{len(text)} characters", remedy=remedy)
    match = _DEVICE_TEXT.fullmatch(text.strip().lower())
    if match is None:
        raise RequestError("device", text, found="no device text", remedy='Write it as "gpu:2" or "nvidia/a100:1"')
    return _read_word(text, match["vendor"], match["word"]) | _read_quantity(text, match["quantity"])


def _read_word(text: str, vendor: str | None, word: str) -> dict[str, object]:
    if word.startswith("mig-"):
        if vendor not in (None, "nvidia"):
            remedy = 'Only NVIDIA has MIG: write "mig-1g.10gb"'
            raise RequestError("device", text, found=f"a MIG profile of {vendor}", remedy=remedy)
        return {"vendor": "nvidia", "kind": "gpu", "partition": word.removeprefix("mig-")}
    if word in KINDS:
        return {"kind": word} if vendor is None else {"vendor": vendor, "kind": word}
    if vendor is not None:
        kind = MODELS[word][1] if word in MODELS else VENDORS.get(vendor)
        fields: dict[str, object] = {"vendor": vendor}
        return fields | ({"kind": kind} if kind else {}) | {"model": word}
    if word in VENDORS:
        return {"vendor": word, "kind": VENDORS[word]}
    if word in MODELS:
        return {"vendor": MODELS[word][0], "kind": MODELS[word][1], "model": word}
    if any(character.isdigit() for character in word) and not word.isdigit():
        return {"model": word}
    near = difflib.get_close_matches(word, [*KINDS, *VENDORS, *MODELS], n=1, cutoff=0.5)
    hint = f'Did you mean "{near[0]}"? ' if near else ""
    remedy = f"{hint}Use a kind ({', '.join(KINDS)}), a model (a100), or name a new one as vendor/model"
    raise RequestError("device", text, found="an unknown device word", remedy=remedy)


def _read_quantity(text: str, quantity: str | None) -> dict[str, object]:
    if quantity is None:
        return {}
    if _COUNT.fullmatch(quantity) and int(quantity) > 0:
        return {"count": int(quantity)}
    if _SHARE.fullmatch(quantity) and float(quantity) > 0:
        return {"share": float(quantity)}
    remedy = 'Give a whole number of devices ("gpu:2") or a share of one below 1 ("gpu:0.5")'
    raise RequestError("device", text, found=f"the quantity {quantity[:40]!r}", remedy=remedy)
