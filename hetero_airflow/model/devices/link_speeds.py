"""Bandwidth between devices and between hosts without measurements, in bytes per second and one direction.

The figures come from the makers' data sheets and from standards:

- NVLink: white papers of Tesla P100 and V100 (20 and 25 GB/s a link; the sheets count both directions), A100, H100 and
  Blackwell architectures; data sheets of the bridges of A30, A40, RTX 3090, RTX A6000. With a switch, a
  pair of GPUs has all links; with cables (P100, V100) it has at least one.
- xGMI: data sheets of AMD Instinct MI100 to MI355X, one link of a pair. HCCS: Huawei, Hot Chips 31 (910), and Atlas
  800T A2 (910B: 392 GB/s in both directions to seven neighbours).
- PCI Express base specifications 1.0 to 6.0, per lane after encoding.
- Between sockets: one UPI link of 10.4 GT/s, Intel Xeon Scalable. Traffic of a network card may cross it too, because
  the card's socket is unknown.
- Network: 100 Gbit/s per host, unless a label gives another value. Between racks a quarter of it: a middle value of the
  ratios from 2.5:1 to 8:1 that Al-Fares et al. (SIGCOMM 2008, section 2.1.2) call typical. Between sites 10 Gbit/s,
  an assumption, unless labels give the bandwidth of the sites' links.
"""

from collections.abc import Mapping
from functools import lru_cache

from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import best_matching_model
from hetero_airflow.model.topology import NETWORK_LABEL, WIDE_AREA_LABEL

_GB = 1e9

DIRECT_GB_S: dict[str, dict[str, float]] = {
    "nvidia": {
        "p100": 20, "v100": 25, "a30": 100, "a40": 56.25, "a100": 300, "a800": 200, "h100": 450, "h100-pcie": 300,
        "h800": 200, "h20": 450, "h200": 450, "gh200": 450, "b200": 900, "rtx-2080ti": 50, "rtx-3090": 56.25,
        "rtx-a6000": 56.25,
    },
    "amd": {
        "mi100": 46, "mi210": 50, "mi250": 50, "mi250x": 50, "mi300a": 64, "mi300x": 64, "mi325x": 64, "mi355x": 76.8,
    },
    "ascend": {"910a": 30, "910b": 28},
}  # fmt: skip
"""Vendor → model → GB/s between two devices with a direct link."""

DEFAULT_DIRECT_GB_S = 25.0
"""For a model without a row: one link of NVLink 2."""

LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCIe generation → GB/s per lane."""

DEFAULT_PCIE = (3, 16)
"""Generation and lanes of a device whose probe gives none."""

SOCKET_BYTES_PER_S = 20.8 * _GB
DEFAULT_NETWORK_GBPS = 100.0
MAX_NETWORK_GBPS = 100_000.0
OVERSUBSCRIPTION = 4.0
DEFAULT_WIDE_AREA_GBPS = 10.0


@lru_cache(maxsize=4096)
def direct_link_bytes_per_s(vendor: str, model: str) -> float:
    """Bandwidth between two devices of that model with a direct link; the matching row with the most words counts.

    >>> speed = direct_link_bytes_per_s
    >>> speed("nvidia", "h100-80gb-hbm3"), speed("nvidia", "h100-pcie"), speed("acme", "x1")
    (450000000000.0, 300000000000.0, 25000000000.0)
    """
    rows = DIRECT_GB_S.get(vendor, {})
    best = best_matching_model(rows, model)
    return (DEFAULT_DIRECT_GB_S if best is None else rows[best]) * _GB


def pcie_bytes_per_s(device: Device) -> float:
    """Bandwidth between a device and its host, from the PCIe details of its probe; for a CPU, between its sockets.

    >>> from hetero_airflow.testing import a_device
    >>> f"{pcie_bytes_per_s(a_device(details={'pcie_generation': 4, 'pcie_width': 8})) / 1e9:.2f} GB/s"
    '15.75 GB/s'
    """
    if device.kind == "cpu":
        return SOCKET_BYTES_PER_S
    generation, lanes = device.details.get("pcie_generation"), device.details.get("pcie_width")
    lane = LANE_GB_S.get(generation) if isinstance(generation, int) else None
    width = lanes if isinstance(lanes, int) and 0 < lanes <= 32 else DEFAULT_PCIE[1]
    return (LANE_GB_S[DEFAULT_PCIE[0]] if lane is None else lane) * width * _GB


def network_bytes_per_s(labels: Mapping[str, str]) -> float:
    """Bandwidth of a worker's network card, from its label; a label without a usable number is ignored.

    >>> network_bytes_per_s({"hetero/network_gbps": "25"}), network_bytes_per_s({"hetero/network_gbps": "fast"})
    (3125000000.0, 12500000000.0)
    """
    return _label_bytes_per_s(labels, NETWORK_LABEL, DEFAULT_NETWORK_GBPS)


def wide_area_bytes_per_s(labels: Mapping[str, str]) -> float:
    """Bandwidth of the link from a worker's site to other sites, from its label, in the same way.

    >>> wide_area_bytes_per_s({"hetero/site_gbps": "1"}), wide_area_bytes_per_s({})
    (125000000.0, 1250000000.0)
    """
    return _label_bytes_per_s(labels, WIDE_AREA_LABEL, DEFAULT_WIDE_AREA_GBPS)


def _label_bytes_per_s(labels: Mapping[str, str], label: str, default: float) -> float:
    try:
        gbps = float(labels.get(label, default))
    except ValueError:
        gbps = default
    return (gbps if 0 < gbps <= MAX_NETWORK_GBPS else default) * _GB / 8
