"""How the tasks of a gang find each other, and what they do if the others do not come."""

import socket

import pytest

from hetero_airflow.contract.notice import Stopped
from hetero_airflow.contract.task_lease import TaskGang
from hetero_airflow.operators import gang_rendezvous
from hetero_airflow.operators.gang_rendezvous import RENDEZVOUS_KEY, LeaderTimeout, Rendezvous, joined_rendezvous
from hetero_airflow.operators.rank_group import RankGroup
from hetero_airflow.settings import CONTROL_VARIABLE


class XComs:
    """What one task instance says to the others."""

    def __init__(self, values=None):
        self.values, self.pulled_indexes = values or {}, []

    def xcom_push(self, key, value):
        self.values[key] = value

    def xcom_pull(self, *, key, map_indexes):
        self.pulled_indexes.append(map_indexes)
        return self.values.get(key)


def a_gang(rank=0, hosts=("here", "here"), **fields):
    return TaskGang(name="g #1", rank=rank, hosts=hosts, leader="lease-0", first_index=4, **fields)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(gang_rendezvous, "WAIT_S", 0.2)
    monkeypatch.setattr(gang_rendezvous, "_POLL_INTERVALS_S", (0.01,))


def test_the_others_reach_the_port_that_the_leader_has_opened():
    xcoms = XComs()
    with (
        joined_rendezvous({"ti": xcoms}, a_gang(), "lease-0") as leader,
        joined_rendezvous({"ti": xcoms}, a_gang(1), "lease-1") as follower,
    ):
        assert follower.rendezvous == leader.rendezvous == Rendezvous.model_validate(xcoms.values[RENDEZVOUS_KEY])
        assert (follower.listener, xcoms.pulled_indexes) == (None, [4])
        socket.create_connection((follower.rendezvous.address, follower.rendezvous.port), 5).close()


def test_no_rank_uses_the_address_of_the_last_rendezvous(quick):
    xcoms = XComs({RENDEZVOUS_KEY: {"lease": "lease-of-before", "address": "127.0.0.1", "port": 1}})
    with (
        pytest.raises(LeaderTimeout, match="found nothing from far-away"),
        joined_rendezvous({"ti": xcoms}, a_gang(1, ("far-away", "here")), "lease-1"),
    ):
        pass


@pytest.mark.parametrize("value", ["text", {"lease": "lease-0"}, {"lease": "lease-0", "address": 1, "port": "x"}])
def test_a_word_that_can_not_be_read_is_none(quick, value):
    with pytest.raises(LeaderTimeout), joined_rendezvous({"ti": XComs({RENDEZVOUS_KEY: value})}, a_gang(1), "lease-1"):
        pass


def test_a_rank_that_gets_a_notice_stops_waiting(tmp_path, monkeypatch):
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    (tmp_path / "notice").touch()
    with (
        pytest.raises(Stopped, match="before gang g #1 had met"),
        joined_rendezvous({"ti": XComs()}, a_gang(1), "lease-1"),
    ):
        pass


def test_gloo_gets_the_interface_if_the_workers_are_on_several_hosts():
    with joined_rendezvous({"ti": XComs()}, a_gang(), "lease-0") as alone:
        assert alone.variables == {}
    with joined_rendezvous({"ti": XComs()}, a_gang(hosts=("here", "there")), "lease-0") as far:
        assert list(far.variables) == ["GLOO_SOCKET_IFNAME"]
    network = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "mlx5"}
    with joined_rendezvous({"ti": XComs()}, a_gang(hosts=("here", "there"), network=network), "lease-0") as labelled:
        assert (labelled.variables, labelled.address) == (network, "127.0.0.1")


def test_the_environment_counts_more_than_a_label():
    gang = a_gang(network={"GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "mlx5"})
    with (
        joined_rendezvous({"ti": XComs()}, gang, "lease-0") as rendezvous,
        RankGroup(["train.py"], 2, 3, {"NCCL_IB_HCA": "mine"}, None, rendezvous) as group,
    ):
        assert group._environment["NCCL_IB_HCA"] == "mine"
        assert group._environment["GLOO_SOCKET_IFNAME"] == "lo"
