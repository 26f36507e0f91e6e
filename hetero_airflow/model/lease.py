"""A lease: the right of one task try to hold devices, with its states and its fencing token."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from hetero_airflow.errors import InvalidTransition


class LeaseState(StrEnum):
    """The states of a lease."""

    GRANTED = "granted"
    """Committed. The engine has the task; its process is not known to run yet."""
    ACTIVE = "active"
    """The task runs and renews the lease."""
    PREEMPTED = "preempted"
    """The task must save and end, for another task or to move. It holds its devices until then."""
    EXPIRED = "expired"
    """Not renewed in time. The devices stay held, because the process may still run."""
    RELEASED = "released"
    """The task ended and its process is gone. The devices are free."""
    EVICTED = "evicted"
    """Taken back because the task or its worker was lost, and the process is known to be gone."""


TERMINAL = frozenset({LeaseState.RELEASED, LeaseState.EVICTED})
"""States in which a lease holds no device."""

TRANSITIONS: dict[tuple[LeaseState, LeaseState], str] = {
    (LeaseState.GRANTED, LeaseState.ACTIVE): "the task's process runs",
    (LeaseState.GRANTED, LeaseState.EXPIRED): "not renewed in time",
    (LeaseState.GRANTED, LeaseState.RELEASED): "ended or withdrawn before it ran",
    (LeaseState.GRANTED, LeaseState.EVICTED): "lost before it ran",
    (LeaseState.ACTIVE, LeaseState.EXPIRED): "not renewed in time",
    (LeaseState.ACTIVE, LeaseState.RELEASED): "the task ended",
    (LeaseState.ACTIVE, LeaseState.EVICTED): "the task's process was lost",
    (LeaseState.GRANTED, LeaseState.PREEMPTED): "taken back before it ran",
    (LeaseState.ACTIVE, LeaseState.PREEMPTED): "taken back for another task",
    (LeaseState.PREEMPTED, LeaseState.EXPIRED): "not renewed in time",
    (LeaseState.PREEMPTED, LeaseState.RELEASED): "the task saved and ended",
    (LeaseState.PREEMPTED, LeaseState.EVICTED): "the task's process was lost",
    (LeaseState.EXPIRED, LeaseState.ACTIVE): "renewed late; the devices were never given away",
    (LeaseState.EXPIRED, LeaseState.RELEASED): "the task ended",
    (LeaseState.EXPIRED, LeaseState.EVICTED): "the process is known to be gone",
}


def check_transition(lease_id: str, current: LeaseState, to: LeaseState) -> None:
    """Check a change of state against `TRANSITIONS`.

    :raises InvalidTransition: the change is not allowed
    """
    if (current, to) not in TRANSITIONS:
        allowed = sorted(b for a, b in TRANSITIONS if a == current)
        raise InvalidTransition(
            f"to change lease {lease_id} to {to}",
            found=f"that it is {current}",
            remedy=f"From there it may become {', '.join(allowed)}" if allowed else "It has ended; ask for a new one",
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """The amount of one device that a lease takes: thousandths of it (or of CPU cores), and bytes of memory.

    A share takes its part of the memory, a whole accelerator all of it. For a CPU, `memory_bytes` is host memory.
    """

    device_id: str
    share_milli: int
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    """Ids of the CPU cores that only this lease may use. The store fills them in when it commits."""


class Lease(BaseModel):
    """A committed placement. `token` is greater than the token of every earlier lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    request_id: str
    worker_id: str
    alternative: int
    """Number of the request's alternative that was placed, from 0."""
    claims: tuple[Claim, ...]
    token: int
    state: LeaseState
    granted_at: datetime
    expires_at: datetime
    saved_at: datetime | None = None
    """When its task last published a checkpoint under this lease; None if it has not."""
    starter: str | None = None
    """The only scheduler that starts its task; None until the scheduler with which the task waits claims the start."""
