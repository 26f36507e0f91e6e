"""The rendezvous of a gang's tasks: the leader opens a free port on its host and publishes it by XCom.

XCom is Airflow's only way from one task to another, and it needs no port that is fixed in advance. Airflow removes a
task's XComs when it starts again, and the value names the leader's lease, so no member uses an earlier rendezvous.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context
from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.contract.notice import Stopped
from hetero_airflow.contract.task_lease import TaskGang
from hetero_airflow.errors import HeteroError
from hetero_airflow.operators.requeue import has_preemption_notice
from hetero_airflow.runtime.gang.network import host_address, interface_of

RENDEZVOUS_KEY = "hetero_meeting"
"""Key of the leader's XCom; its value is a `Rendezvous`."""

WAIT_S = 600.0
"""How long the others wait for the leader. A member with a preemption notice stops before."""

_POLL_INTERVALS_S = (0.05, 0.1, 0.2, 0.4)
"""Waits between reads; the last one repeats."""


class LeaderTimeout(HeteroError, ConnectionError):
    """The leader of a gang has not published the rendezvous in time."""


class Rendezvous(BaseModel):
    """The address where the leader listens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease: str
    """Id of the leader's lease."""
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class RendezvousMember:
    """What a member's torchrun needs to reach the others."""

    gang: TaskGang
    rendezvous: Rendezvous
    address: str
    """Address of this host."""
    variables: dict[str, str]
    """Environment variables of the ranks."""
    listener: socket.socket | None
    """The leader's open socket, which its torchrun inherits; None for other members."""


@contextmanager
def joined_rendezvous(context: Context, gang: TaskGang, lease: str) -> Iterator[RendezvousMember]:
    """Yields what this member needs to reach the others. The leader publishes the rendezvous.

    :param lease: id of this task's lease
    :raises LeaderTimeout: the leader did not start in time
    :raises Stopped: this task got a preemption notice before the leader started
    """
    ti: Any = context["ti"]
    several = len(set(gang.hosts)) > 1
    address = host_address(gang.network.get("GLOO_SOCKET_IFNAME"), is_for_other_hosts=several)
    variables = _variables(gang, address)
    if gang.rank > 0:
        yield RendezvousMember(gang, _wait_for_leader(ti, gang), address, variables, None)
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        rendezvous = Rendezvous(lease=lease, address=address, port=listener.getsockname()[1])
        ti.xcom_push(key=RENDEZVOUS_KEY, value=rendezvous.model_dump())
        yield RendezvousMember(gang, rendezvous, address, variables, listener)


def _variables(gang: TaskGang, address: str) -> dict[str, str]:
    """The network settings. By default Gloo resolves the host's name, which may work on that host alone."""
    interface = interface_of(address) if len(set(gang.hosts)) > 1 else None
    return ({"GLOO_SOCKET_IFNAME": interface} if interface else {}) | gang.network


def _wait_for_leader(ti: Any, gang: TaskGang) -> Rendezvous:
    end = time.monotonic() + WAIT_S
    number = 0
    while not has_preemption_notice():
        try:
            rendezvous = Rendezvous.model_validate(ti.xcom_pull(key=RENDEZVOUS_KEY, map_indexes=gang.first_index))
            if rendezvous.lease == gang.leader:
                return rendezvous
        except ValidationError:  # not published yet
            pass
        if time.monotonic() > end:
            raise LeaderTimeout(
                f"to learn the address of rank 0 of gang {gang.name} within {WAIT_S:g} s",
                found=f"nothing from {gang.hosts[0]}",
                remedy="See the log of rank 0 for why it did not start",
            )
        time.sleep(_POLL_INTERVALS_S[min(number, len(_POLL_INTERVALS_S) - 1)])
        number += 1
    raise Stopped(step=None, cause=f"preempted before gang {gang.name} had met")
