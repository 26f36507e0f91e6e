"""Whom a problem line of a discovery concerns: it begins with the name of a vendor or a probe and a colon."""

import re

from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import VENDORS

EXCLUDE_PREFIX = "exclude_devices"
"""A line about the setting of that name. It concerns no device that could be missing."""

_OF_NODE = " the node "
"""How the text of a line about what a Kubernetes node offers begins."""

_KINDS: dict[str, frozenset[str]] = {
    **{vendor: frozenset({kind}) for vendor, kind in VENDORS.items()},
    "cpu": frozenset({"cpu"}),
    "fpga": frozenset({"fpga"}),
    "intel": frozenset({"gpu", "fpga"}),
    "xilinx": frozenset({"fpga"}),
    **dict.fromkeys(("hygon", "mthreads", "metax", "iluvatar", "biren"), frozenset({"gpu"})),
    **dict.fromkeys(("enflame", "kunlunxin", "graphcore", "groq", "hailo"), frozenset({"npu"})),
    **dict.fromkeys(("tenstorrent", "cambricon", "qualcomm", "sambanova", "d-matrix"), frozenset({"npu"})),
}
"""Vendor or probe → the kinds of devices that it may have."""


def concerns(line: str, vendor: str | None, kind: str | None) -> bool:
    """Whether devices of a vendor or kind may be missing because of a problem line; None stands for any.

    A line whose prefix is no known vendor, such as that of another package's probe, concerns all devices. One about a
    Kubernetes node always begins with a vendor.

    >>> concerns("amd: no answer within 10 s.", "nvidia", "gpu"), concerns("amd: no answer within 10 s.", None, "gpu")
    (False, True)
    >>> concerns("fpga: no answer within 10 s.", "xilinx", "fpga"), concerns("acme: raised OSError", "nvidia", "gpu")
    (True, True)
    """
    prefix, _, text = line.partition(":")
    if prefix == EXCLUDE_PREFIX:
        return False
    kinds = _KINDS.get(prefix)
    if kinds is None:
        return vendor in (None, prefix) or not text.startswith(_OF_NODE)
    if vendor is None or prefix in ("cpu", "fpga"):
        return kind is None or kind in kinds
    return vendor == prefix


def is_of_discovery(line: str) -> bool:
    """Whether a line begins with the name of a vendor, a probe or a setting, unlike the state of a cluster's node.

    >>> is_of_discovery("amd: no answer within 10 s."), is_of_discovery("the node is not ready: it reports no reason")
    (True, False)
    """
    return re.match(r"[a-z][a-z0-9_.-]*: ", line) is not None


def concerns_device(line: str, device: Device) -> bool:
    """Whether a device may be missing because of a problem line. A simulated one only by the simulation's line."""
    if device.simulated or line.startswith("simulated:"):
        return device.simulated and line.startswith("simulated:")
    return concerns(line, device.vendor, device.kind)
