"""How the members of a gang reach each other: network settings from worker labels, and the address of a host."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from contextlib import suppress

import psutil

from hetero_airflow.errors import SettingsError

INTERFACE_LABEL = "hetero/ifname"
"""Label of a worker: the network interface by which it reaches the other workers of a gang."""

_SETTING = re.compile(r"(nccl|gloo|hccl)/([a-z0-9_]{1,64})")
_UNUSED_ADDRESS = "192.0.2.1"
"""Reserved by RFC 5737. Connecting a datagram socket to it sends nothing, and selects the default route's interface."""


def network_settings(labels: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a worker's labels define: the interface, and settings of NCCL, Gloo and HCCL.

    >>> network_settings({"hetero/ifname": "ib0", "nccl/ib_hca": "mlx5_0", "zone": "a"})
    {'GLOO_SOCKET_IFNAME': 'ib0', 'NCCL_SOCKET_IFNAME': '=ib0', 'HCCL_SOCKET_IFNAME': '=ib0', 'NCCL_IB_HCA': 'mlx5_0'}
    """
    variables = {}
    name = labels.get(INTERFACE_LABEL)
    if name:  # with =, NCCL and HCCL match the exact name, not a prefix
        variables = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}", "HCCL_SOCKET_IFNAME": f"={name}"}
    for label, value in sorted(labels.items()):
        setting = _SETTING.fullmatch(label)
        if setting is not None:
            variables[f"{setting[1]}_{setting[2]}".upper()] = value
    return variables


def host_address(interface: str | None, *, is_for_other_hosts: bool) -> str:
    """The address by which the members of a gang reach this host.

    That is the address of the interface, else of the default route's, else of the only interface that has one. Loopback
    serves a gang on one host alone.

    :raises SettingsError: this host has no such interface, the interface has no address, or other hosts need one and
        it can't be told which they reach
    """
    if interface is not None:
        addresses = _addresses().get(interface, [])
        if addresses:
            return addresses[0]
        raise SettingsError(
            f"the label {INTERFACE_LABEL}={interface} of this worker",
            found="an interface without an address" if interface in psutil.net_if_addrs()
            else f"only {', '.join(psutil.net_if_addrs())}",
            remedy="Name the interface by which the workers of a gang reach each other",
        )  # fmt: skip
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, suppress(OSError):
        datagrams.connect((_UNUSED_ADDRESS, 9))
        return str(datagrams.getsockname()[0])
    if not is_for_other_hosts:
        return "127.0.0.1"
    reachable = {name: list(filter(_is_reachable, addresses)) for name, addresses in _addresses().items()}
    candidates = {name: addresses[0] for name, addresses in reachable.items() if addresses}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    found = ", ".join(f"{name} ({address})" for name, address in candidates.items()) or "no address but loopback"
    raise SettingsError(
        "the address of this worker for the other hosts of its gang",
        found=f"no default route, and {found}",
        remedy=f"Name the interface by which they reach each other in the label {INTERFACE_LABEL} of each of them",
    )


def _addresses() -> dict[str, list[str]]:
    """Interface → its addresses, IPv4 first."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [str(address.address) for family in families for address in addresses if address.family == family]
        for name, addresses in psutil.net_if_addrs().items()
    }


def _is_reachable(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_link_local)


def interface_of(address: str) -> str | None:
    """The name of this host's interface with the address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address == address for candidate in addresses):
            return name
    return None
