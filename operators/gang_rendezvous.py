"""Where the tasks of a gang meet: the leader opens a port that is free on its host, and tells the others by XCom.

It is XCom because Airflow gives one task no other way to tell another one something, and because it needs no port to be
agreed on before anyone has looked whether it is free. Airflow removes a task's XComs when it starts again, and what is
told names the leader's lease: nobody goes where the gang met the last time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context
from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.errors import HeteroError
from hetero_airflow.operators.stopping import has_preemption_notice
from hetero_airflow.runtime.gang.network import host_address, interface_of
from hetero_airflow.runtime.notice import Stopped
from hetero_airflow.runtime.task_lease import TaskGang

RENDEZVOUS_KEY = "hetero_meeting"
"""The XCom's key; its value is a `Rendezvous` of the leader's."""

WAIT_S = 600.0
"""For so long the others wait for the leader to begin. Who is told to stop meanwhile, stops."""

_POLL_INTERVALS_S = (0.05, 0.1, 0.2, 0.4)
"""Between two looks; from the fourth on, the last."""


class LeaderTimeout(HeteroError, ConnectionError):
    """The leader of a gang has not said where to meet it."""


class Rendezvous(BaseModel):
    """Where a leader is met."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease: str
    """The leader's."""
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class RendezvousMember:
    """What a torchrun needs to meet those of the other members."""

    gang: TaskGang
    meeting: Rendezvous
    address: str
    """Of this host."""
    variables: dict[str, str]
    """For the environment of the ranks."""
    listener: socket.socket | None
    """The leader's; open, and inherited by its torchrun."""


@contextmanager
def joined_rendezvous(context: Context, gang: TaskGang, lease: str) -> Iterator[RendezvousMember]:
    """Within: this member knows where to meet, and the others will find it there.

    :param lease: this task's own
    :raises LeaderTimeout: the leader did not begin in time
    :raises Stopped: this task was told to stop before the leader began
    """
    ti: Any = context["ti"]
    address = host_address(gang.network.get("GLOO_SOCKET_IFNAME"))
    variables = _variables(gang, address)
    if gang.rank > 0:
        yield RendezvousMember(gang, _wait_for_leader(ti, gang), address, variables, None)
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        meeting = Rendezvous(lease=lease, address=address, port=listener.getsockname()[1])
        ti.xcom_push(key=RENDEZVOUS_KEY, value=meeting.model_dump())
        yield RendezvousMember(gang, meeting, address, variables, listener)


def _variables(gang: TaskGang, address: str) -> dict[str, str]:
    """The settings of the labels. Gloo asks the host's name for its address, which may be known to the host alone."""
    interface = interface_of(address) if len(set(gang.hosts)) > 1 else None
    return ({"GLOO_SOCKET_IFNAME": interface} if interface else {}) | gang.network


def _wait_for_leader(ti: Any, gang: TaskGang) -> Rendezvous:
    end = time.monotonic() + WAIT_S
    number = 0
    while not has_preemption_notice():
        try:
            meeting = Rendezvous.model_validate(ti.xcom_pull(key=RENDEZVOUS_KEY, map_indexes=gang.first_index))
            if meeting.lease == gang.leader:
                return meeting
        except ValidationError:  # nothing there yet
            pass
        if time.monotonic() > end:
            raise LeaderTimeout(
                f"to hear within {WAIT_S:g} s where rank 0 of gang {gang.name} is met",
                found=f"nothing from {gang.hosts[0]}",
                remedy="The log of rank 0 says why it did not begin",
            )
        time.sleep(_POLL_INTERVALS_S[min(number, len(_POLL_INTERVALS_S) - 1)])
        number += 1
    raise Stopped(step=None, cause=f"told to before gang {gang.name} had met")
