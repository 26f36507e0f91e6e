"""How the members of a gang reach each other: settings from the labels of their workers, and their own addresses."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import suppress

import psutil

from hetero_airflow.errors import SettingsError

INTERFACE_LABEL = "hetero/ifname"
"""Label of a worker: the network interface by which it reaches the workers of a gang."""

_SETTING = re.compile(r"(nccl|gloo|hccl)/([a-z0-9_]{1,64})")
_ELSEWHERE = "192.0.2.1"
"""RFC 5737: nobody's. To connect a datagram socket to it sends nothing, and chooses the default route's interface."""


def network_settings(labels: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a worker's labels make: the interface, and any of NCCL's, Gloo's and HCCL's own.

    >>> network_settings({"hetero/ifname": "ib0", "nccl/ib_hca": "mlx5_0", "zone": "a"})
    {'GLOO_SOCKET_IFNAME': 'ib0', 'NCCL_SOCKET_IFNAME': '=ib0', 'HCCL_SOCKET_IFNAME': '=ib0', 'NCCL_IB_HCA': 'mlx5_0'}
    """
    found = {}
    name = labels.get(INTERFACE_LABEL)
    if name:  # with =, the two take the name for itself and not for the beginning of names
        found = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}", "HCCL_SOCKET_IFNAME": f"={name}"}
    for label, value in sorted(labels.items()):
        setting = _SETTING.fullmatch(label)
        if setting is not None:
            found[f"{setting[1]}_{setting[2]}".upper()] = value
    return found


def host_address(interface: str | None) -> str:
    """The address by which others reach this host: of that interface, else of the default route, else loopback.

    :raises SettingsError: this host has no such interface, or it has no address
    """
    if interface is not None:
        addresses = psutil.net_if_addrs().get(interface, [])
        for family in (socket.AF_INET, socket.AF_INET6):
            for one in addresses:
                if one.family == family:
                    return str(one.address)
        raise SettingsError(
            f"the label {INTERFACE_LABEL}={interface} of this worker",
            found="an interface without an address" if addresses else f"only {', '.join(psutil.net_if_addrs())}",
            remedy="Name the interface by which the workers of a gang reach each other",
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((_ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The name of the interface of this host that has the address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return None
