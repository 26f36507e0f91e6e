"""Relative training speeds of device models from the makers' data sheets, for pairs without measurements.

The figures are dense tensor throughput in FP16 or BF16 (FP32 where a device has no faster format), without sparsity,
and memory bandwidth. They are for one leasable device: one die of a K80, one GCD of an MI250X, one die of a 910C.

- NVIDIA: data sheets of Tesla K80, P40, P100, V100, T4 (2014 to 2018); of A10, A30, A40, A100, L4, L40S, H100,
  H200; white papers "NVIDIA Ada GPU Architecture" and "RTX Blackwell" for RTX; "DGX B200" for B200. AWS EC2 G5
  for A10G.
- AMD: data sheets of Instinct MI100, MI210, MI250X, MI300A, MI300X, MI325X, MI355X.
- Huawei: Ascend 310P, 910 (Hot Chips 31), 910B and 910C as published with Atlas 800 and CloudMatrix 384.
- Google: Cloud TPU documentation, "System architecture", versions v2 to v6e, and TPU7x.
"""

import re
from functools import lru_cache

from hetero_airflow.model.devices.names import best_matching_model

COMPUTE_WEIGHT = 0.25
"""Weight of the compute roof; the bandwidth roof has the rest, because memory limits most operators of a training step.
The value lies between two measurements. Gavel's table (26 jobs of 2019 on V100, P100 and K80, in FP32) fits best with
0.1; with 0.25 the median error is a factor of 1.6. MLPerf's training speeds up from A100 to H100 by 2.0 to 2.3 times;
0.25 gives 1.9 and 0.5 gives 2.3."""

DATA_SHEETS: dict[str, dict[str, tuple[float, float]]] = {
    "nvidia": {
        "k80": (4.37, 240), "m40": (6.8, 288), "p4": (5.5, 192), "p40": (11.8, 347), "p100": (21.2, 732),
        "v100": (125, 900), "t4": (65, 320), "a10": (125, 600), "a10g": (70, 600), "a16": (17.9, 200),
        "a30": (165, 933), "a40": (149.7, 696), "a100": (312, 1555), "a100-80gb": (312, 2039), "a800": (312, 2039),
        "l4": (121, 300), "l40": (181, 864), "l40s": (362, 864), "h20": (148, 4000), "h100": (989, 3350),
        "h100-pcie": (756, 2000), "h800": (989, 3350), "h200": (989, 4800), "gh200": (989, 4000), "b200": (2250, 8000),
        "rtx-2080ti": (53.8, 616), "rtx-3090": (71, 936), "rtx-4090": (165, 1008), "rtx-5090": (209.5, 1792),
        "rtx-a6000": (154.8, 768),
    },
    "amd": {
        "mi100": (184.6, 1229), "mi210": (181, 1638), "mi250": (181, 1638), "mi250x": (191.5, 1638),
        "mi300a": (980.6, 5300), "mi300x": (1307, 5300), "mi325x": (1307, 6000), "mi355x": (2517, 8000),
    },
    "ascend": {"310p": (70, 205), "910a": (256, 1200), "910b": (376, 1600), "910c": (376, 1600)},
    "google": {"v2": (46, 700), "v3": (123, 900), "v4": (275, 1228), "v5e": (197, 819), "v5p": (459, 2765),
               "v6e": (918, 1640), "v7x": (2307, 7380)},
}  # fmt: skip
"""Vendor → model → (dense 16-bit TFLOPS, memory bandwidth in GB/s)."""

_REFERENCE = DATA_SHEETS["nvidia"]["v100"]
_PROFILE = re.compile(r"(?P<slices>[1-9])g\.")
_SLICES = 7
"""Compute slices of a GPU in MIG mode."""


@lru_cache(maxsize=4096)
def data_sheet_speed(device_class: str) -> float | None:
    """Training speed of one device of that class relative to a V100; None for a model without a data sheet here.

    It is the weighted geometric mean of the two roofs of the roofline model (Williams et al., CACM 52(4), 2009), each
    divided by the V100's. If several models match the class, the one with the most words counts. The speed of a MIG
    instance is proportional to its compute slices.

    >>> [round(data_sheet_speed(name), 2) for name in ("nvidia/v100-sxm2-16gb", "nvidia/k80", "nvidia/h100-sxm5-80gb")]
    [1.0, 0.16, 4.49]
    >>> round(data_sheet_speed("nvidia/h100-80gb/1g.10gb") / data_sheet_speed("nvidia/h100-80gb"), 3)
    0.143
    >>> data_sheet_speed("acme/x1") is None
    True
    """
    vendor, _, rest = device_class.partition("/")
    model, _, partition = rest.partition("/")
    best = best_matching_model(DATA_SHEETS.get(vendor, {}), model)
    if best is None:
        return None
    tflops, bandwidth = DATA_SHEETS[vendor][best]
    roofs: float = (tflops / _REFERENCE[0]) ** COMPUTE_WEIGHT * (bandwidth / _REFERENCE[1]) ** (1 - COMPUTE_WEIGHT)
    profile = _PROFILE.match(partition)
    return roofs * int(profile["slices"]) / _SLICES if profile else roofs
