"""Well-known device words. A convenience, never a limit: any other model works as ``vendor/model``.

It is used to guess the vendor of a bare model (``a100:2``), to give simulated devices a memory
size, and to suggest the nearest word for a typo. Sizes are the makers' data sheets'.
"""

from __future__ import annotations

KINDS: dict[str, str] = {
    "cpu": "CPU cores",
    "gpu": "any GPU",
    "npu": "any neural processing unit",
    "tpu": "any TPU chip",
    "fpga": "any FPGA",
}
"""The kinds that need no vendor; a probe may add others, asked for as ``vendor/kind``."""

VENDORS: dict[str, str] = {
    "nvidia": "gpu",
    "amd": "gpu",
    "ascend": "npu",
    "google": "tpu",
    "intel": "fpga",
    "xilinx": "fpga",
}
"""Vendor → the kind of its devices where a request names none."""

_GIB = 2**30

MODELS: dict[str, tuple[str, str, int]] = {
    "k80": ("nvidia", "gpu", 12 * _GIB),
    "p100": ("nvidia", "gpu", 16 * _GIB),
    "v100": ("nvidia", "gpu", 32 * _GIB),
    "v100-16gb": ("nvidia", "gpu", 16 * _GIB),
    "v100-32gb": ("nvidia", "gpu", 32 * _GIB),
    "t4": ("nvidia", "gpu", 16 * _GIB),
    "a10": ("nvidia", "gpu", 24 * _GIB),
    "a10g": ("nvidia", "gpu", 24 * _GIB),
    "a30": ("nvidia", "gpu", 24 * _GIB),
    "a40": ("nvidia", "gpu", 48 * _GIB),
    "a100": ("nvidia", "gpu", 40 * _GIB),
    "a100-40gb": ("nvidia", "gpu", 40 * _GIB),
    "a100-80gb": ("nvidia", "gpu", 80 * _GIB),
    "l4": ("nvidia", "gpu", 24 * _GIB),
    "l40s": ("nvidia", "gpu", 48 * _GIB),
    "h100": ("nvidia", "gpu", 80 * _GIB),
    "h100-80gb": ("nvidia", "gpu", 80 * _GIB),
    "h200": ("nvidia", "gpu", 141 * _GIB),
    "b200": ("nvidia", "gpu", 180 * _GIB),
    "rtx-3090": ("nvidia", "gpu", 24 * _GIB),
    "rtx-4090": ("nvidia", "gpu", 24 * _GIB),
    "rtx-5090": ("nvidia", "gpu", 32 * _GIB),
    "mi210": ("amd", "gpu", 64 * _GIB),
    "mi250x": ("amd", "gpu", 64 * _GIB),
    "mi300a": ("amd", "gpu", 128 * _GIB),
    "mi300x": ("amd", "gpu", 192 * _GIB),
    "mi325x": ("amd", "gpu", 256 * _GIB),
    "mi355x": ("amd", "gpu", 288 * _GIB),
    "310p": ("ascend", "npu", 24 * _GIB),
    "910a": ("ascend", "npu", 32 * _GIB),
    "910b": ("ascend", "npu", 64 * _GIB),
    "910c": ("ascend", "npu", 64 * _GIB),
    "v4": ("google", "tpu", 32 * _GIB),
    "v5e": ("google", "tpu", 16 * _GIB),
    "v5p": ("google", "tpu", 95 * _GIB),
    "v6e": ("google", "tpu", 32 * _GIB),
    "u250": ("xilinx", "fpga", 64 * _GIB),
    "u280": ("xilinx", "fpga", 8 * _GIB),
    "stratix-10": ("intel", "fpga", 32 * _GIB),
}
"""Model → (vendor, kind, memory of one device in bytes)."""
