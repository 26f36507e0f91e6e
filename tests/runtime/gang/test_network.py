import socket
from types import SimpleNamespace

import psutil
import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.runtime.gang import network
from hetero_airflow.runtime.gang.network import host_address, interface_of, network_settings


def test_a_worker_without_labels_sets_nothing():
    assert network_settings({}) == network_settings({"zone": "a", "nccl": "x", "evil/path": "x"}) == {}


def test_a_setting_of_its_own_goes_before_that_of_the_interface():
    labels = {"hetero/ifname": "eth0", "nccl/socket_ifname": "^docker", "hccl/connect_timeout": "300"}
    assert network_settings(labels) == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "^docker",
        "HCCL_SOCKET_IFNAME": "=eth0",
        "HCCL_CONNECT_TIMEOUT": "300",
    }


@pytest.mark.parametrize("label", ["nccl/LD_PRELOAD", "nccl/../x", "path/nccl/x", "nccl/a=b", "nccl/"])
def test_a_label_sets_no_variable_but_those_of_the_three(label):
    assert network_settings({label: "x"}) == {}


def test_the_address_is_one_of_this_host():
    address = host_address(None, is_for_other_hosts=False)
    assert interface_of(address) in psutil.net_if_addrs()
    assert host_address("lo", is_for_other_hosts=True) in ("127.0.0.1", "::1")


def test_an_interface_that_this_host_does_not_have_is_named():
    with pytest.raises(SettingsError, match=r"hetero/ifname=nope0 of this worker can't be used; found only .*lo"):
        host_address("nope0", is_for_other_hosts=True)


ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "bond0": ["fe80::1%bond0"],
    "ib0": ["10.0.0.7", "fe80::2%ib0"],
    "eth0": ["172.16.0.7"],
    "eth1": ["02:42:ac:11:00:02"],
}


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        (["lo", "bond0", "eth1", "ib0"], "10.0.0.7"),
        (["lo", "ib0", "eth0"], r"no default route, and ib0 \(10.0.0.7\), eth0 \(172.16.0.7\)\. .*hetero/ifname"),
        (["lo", "bond0"], r"no default route, and no address but loopback\. .*hetero/ifname"),
    ],
)
def test_without_a_default_route_other_hosts_get_an_address_that_they_can_reach_or_none(
    monkeypatch, interfaces, expected
):
    monkeypatch.setattr(network, "_UNUSED_ADDRESS", "255.255.255.255")  # a route to it is refused, as without one
    addresses = {name: [address(text) for text in ADDRESSES[name]] for name in interfaces}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert host_address(None, is_for_other_hosts=False) == "127.0.0.1", "the members are on one host"
    if expected in ADDRESSES["ib0"]:
        assert host_address(None, is_for_other_hosts=True) == expected
    else:
        with pytest.raises(SettingsError, match=expected):
            host_address(None, is_for_other_hosts=True)


def address(text):
    family = {0: socket.AF_INET, 5: socket.AF_PACKET}.get(text.count(":"), socket.AF_INET6)
    return SimpleNamespace(family=family, address=text)


def test_an_address_of_another_host_has_no_interface_here():
    assert interface_of("192.0.2.1") is None
