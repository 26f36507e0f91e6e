"""What a device computes fast, from what its probe reports: one rule for each architecture. Pure.

Types are those that the matrix units of an architecture take, from these sources:

- NVIDIA, by compute capability: CUDA Programming Guide, "Compute Capabilities", table of tensor cores' types (7.5 on);
  NVIDIA/cutlass, media/docs/functionality.md (7.0), LLVM D60279 (7.2). A GTX 16 has 7.5 and no tensor cores.
- AMD, by LLVM target: ROCm, "Data types and precision support"; llvm/llvm-project, BuiltinsAMDGPU.def and AMDGPU.td.
  ROCm's page ticks RDNA 2, which has no such instruction in LLVM, and TF32 of CDNA 4, which is emulated.
- Ascend, by series: CANN, "Mmad" and "aclnnMm"; Ascend/pytorch, NpuVariables.cpp. They disagree on BF16 of the 310B,
  which is left out. ``910b`` without a digit is unknown: some mean the first generation, others the second.
- TPU, by generation: jax-ml/jax, tpu_info.py, without the types that are no faster than BF16.
- CPU, by the flags of /proc/cpuinfo: uxlfoundation/oneDNN, doc/programming_model/data_types.md. Linux does not show
  AMX-FP16.

Inductor uses Triton from compute capability 7.0 on (torch/_inductor/scheduler.py), and on the AMD targets of
triton-lang/triton, TargetUtils.cpp.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from hetero_airflow.model.device import Device

FLAGS_KEY = "cpu_flags"
"""Key in a CPU's `details`: those of `CPU_FLAGS` that it has, with spaces between them."""

CPU_FLAGS = {
    "avx512_bf16": "bf16", "amx_bf16": "bf16", "avx512_vnni": "int8", "avx_vnni": "int8", "amx_int8": "int8",
    "bf16": "bf16", "i8mm": "int8",
}  # fmt: skip
"""Flag of /proc/cpuinfo → the type that it makes fast. The last two are Arm's."""

_TRAINED_ON_CPUS = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags with which a CPU trains in BF16."""

TRITON, CPP, XLA, NONE, UNKNOWN = "Inductor (Triton)", "Inductor (C++)", "OpenXLA", "none", "unknown"


class DeviceFeatures(NamedTuple):
    """What a framework can use of a device."""

    architecture: str
    dtypes: tuple[str, ...]
    """What it computes fast, beside FP32: ``tf32``, ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``int8``, ``int4``."""
    matrix_units: str | None
    """Their name; None if it has none, or they are not known."""
    compiler: str
    """The back end of torch.compile, ``none``, or ``unknown``."""
    collectives: str
    """The library that ranks on such devices exchange tensors with, or ``unknown``."""
    unknown: str | None = None
    """Why nothing is known; None for a known device."""
    training_dtype: str = "fp32"
    """The type for mixed precision: ``bf16``, else ``fp16`` with a scaled loss, else ``fp32``, which is none. FP8 is
    never chosen, since it needs layers of its own."""


class Architecture(NamedTuple):
    """A rule: what devices whose key fits have."""

    vendor: str
    key: re.Pattern[str]
    """The whole compute capability, target, series or generation."""
    name: str
    dtypes: str
    matrix_units: str | None
    compiler: str
    collectives: str


def _rules(vendor: str, units: str, collectives: str, *rows: tuple[str, str, str, str]) -> list[Architecture]:
    return [
        Architecture(vendor, re.compile(key), name, dtypes, units if dtypes else None, compiler, collectives)
        for key, name, dtypes, compiler in rows
    ]


ARCHITECTURES: tuple[Architecture, ...] = (
    *_rules(
        "nvidia", "Tensor Cores", "NCCL",
        (r"[3-6]\.\d", "Kepler, Maxwell, Pascal", "", NONE),
        (r"7\.0", "Volta", "fp16", TRITON),
        (r"7\.2", "Volta (Xavier)", "fp16 int8", TRITON),
        (r"7\.5 gtx", "Turing without Tensor Cores", "", TRITON),
        (r"7\.5", "Turing", "fp16 int8 int4", TRITON),
        (r"8\.[067]", "Ampere", "tf32 bf16 fp16 int8 int4", TRITON),
        (r"8\.9", "Ada", "tf32 bf16 fp16 fp8 int8 int4", TRITON),
        (r"9\.0", "Hopper", "tf32 bf16 fp16 fp8 int8", TRITON),
        (r"1[0-2]\.\d", "Blackwell", "tf32 bf16 fp16 fp8 fp4 int8", TRITON),
    ),
    *_rules(
        "amd", "Matrix Cores", "RCCL",
        (r"gfx90[06]", "Vega", "", NONE),
        (r"gfx908|gfx90a", "CDNA, CDNA 2", "bf16 fp16 int8", TRITON),
        (r"gfx942", "CDNA 3", "tf32 bf16 fp16 fp8 int8", TRITON),
        (r"gfx950", "CDNA 4", "bf16 fp16 fp8 fp4 int8", TRITON),
        (r"gfx10[13][0-6]", "RDNA, RDNA 2", "", TRITON),
        (r"gfx110[0-3]|gfx115[0-3]", "RDNA 3", "bf16 fp16 int8 int4", TRITON),
        (r"gfx120[01]", "RDNA 4", "bf16 fp16 fp8 int8 int4", TRITON),
    ),
    *_rules(
        "ascend", "Cube units", "HCCL",
        (r"910|910a|910premiuma|910pro[ab]", "Ascend 910", "fp16 int8", UNKNOWN),
        (r"310", "Ascend 310", "fp16 int8", UNKNOWN),
        (r"310[bp]\d?", "Ascend 310B, 310P", "fp16 int8 int4", UNKNOWN),
        (r"910b\d.*|910c|910-93\d\d", "Ascend 910B, 910C", "bf16 fp16 int8 int4", UNKNOWN),
    ),
    *_rules(
        "google", "MXUs", "XLA",
        (r"v[234]", "TPU v2 to v4", "bf16", XLA),
        (r"v5[ep]|v6e", "TPU v5, v6", "bf16 int8 int4", XLA),
        (r"v7x", "TPU v7", "bf16 fp8", XLA),
    ),
)  # fmt: skip
"""The rules, of which the first that fits a device holds."""

_KEYS = {"nvidia": "compute capability", "amd": "target", "ascend": "series", "google": "generation"}


def device_features(device: Device) -> DeviceFeatures:
    """The features of a device as its probe reports it.

    >>> from hetero_airflow.testing import a_device
    >>> features = device_features(a_device(model="h100-sxm5-80gb", capability="9.0"))
    >>> features.architecture, features.training_dtype, features.dtypes
    ('Hopper', 'bf16', ('tf32', 'bf16', 'fp16', 'fp8', 'int8'))
    >>> device_features(a_device(model="x1", capability="99.0")).unknown
    'no rule for its compute capability 99.0'
    """
    if device.kind == "cpu":
        flags = device.details.get(FLAGS_KEY)
        return cpu_features(None if flags is None else str(flags))
    key = device.capability if device.vendor in ("nvidia", "amd") else device.model
    return accelerator_features(device.vendor, key, device.model)


def accelerator_features(vendor: str, key: str | None, model: str = "") -> DeviceFeatures:
    """The features of an accelerator.

    :param key: NVIDIA's compute capability, AMD's target, the series of an NPU, the generation of a TPU
    :param model: as the probe names it
    """
    if vendor not in _KEYS:
        return _unknown(f"no rules for the vendor {vendor}")
    if not key:
        return _unknown(f"its probe reports no {_KEYS[vendor]}")
    texts = [f"{key} gtx", key] if "gtx" in model.split("-") else [key]
    for rule in ARCHITECTURES:
        if rule.vendor == vendor and any(rule.key.fullmatch(text) for text in texts):
            dtypes = tuple(rule.dtypes.split())
            chosen = accelerator_dtype(dtypes)
            return DeviceFeatures(
                rule.name, dtypes, rule.matrix_units, rule.compiler, rule.collectives, training_dtype=chosen
            )
    return _unknown(f"no rule for its {_KEYS[vendor]} {key}")


def accelerator_dtype(dtypes: Collection[str]) -> str:
    """What to train in, of the types that an accelerator computes fast."""
    return next((dtype for dtype in ("bf16", "fp16") if dtype in dtypes), "fp32")


def cpu_features(text: str | None) -> DeviceFeatures:
    """The features of a CPU with these flags, of `CPU_FLAGS`; None if its kernel shows no flags.

    >>> cpu_features("avx512_bf16 avx512_vnni").dtypes, cpu_features(None).unknown
    (('bf16', 'int8'), 'its kernel shows no flags')
    """
    if text is None:
        return _unknown("its kernel shows no flags")
    flags = text.split()
    found = dict.fromkeys(CPU_FLAGS[flag] for flag in flags)
    units = "AMX" if any(flag.startswith("amx_") for flag in flags) else None
    chosen = "bf16" if _TRAINED_ON_CPUS.intersection(flags) else "fp32"
    return DeviceFeatures("CPU", tuple(found), units, CPP, "Gloo", training_dtype=chosen)


def _unknown(why: str) -> DeviceFeatures:
    return DeviceFeatures(UNKNOWN, (), None, UNKNOWN, UNKNOWN, unknown=why)
