"""The right of one task try to hold devices, its life, and its fencing token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hetero_airflow.errors import InvalidTransition


class LeaseState(StrEnum):
    """The life of a lease."""

    GRANTED = "granted"
    """Committed; the engine has the task, its process is not known to run yet."""
    ACTIVE = "active"
    """The task runs and its holder renews the lease."""
    PREEMPTED = "preempted"
    """Its holder has been told to save and end, for another task or to move; it holds its devices until then."""
    EXPIRED = "expired"
    """Not renewed in time. The devices stay held: the process may still be there."""
    RELEASED = "released"
    """The task ended and its process is gone; the devices are free."""
    EVICTED = "evicted"
    """Taken back because the task or its worker was lost and its process is known to be gone."""


TERMINAL = frozenset({LeaseState.RELEASED, LeaseState.EVICTED})
"""States in which a lease holds nothing."""

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
    """Refuse a change of state that `TRANSITIONS` does not have.

    :raises InvalidTransition: no such change
    """
    if (current, to) not in TRANSITIONS:
        allowed = sorted(b for a, b in TRANSITIONS if a == current)
        raise InvalidTransition(
            f"lease {lease_id} to become {to}",
            found=f"it is {current}",
            remedy=f"From there it may become {', '.join(allowed)}" if allowed else "It has ended; ask for a new one",
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """How much of one device: thousandths of it, bytes of its memory, and for a CPU which cores.

    A share claims its part of the memory; a whole accelerator all of it. Of a CPU device,
    `memory_bytes` is host memory.
    """

    __pydantic_config__ = ConfigDict(serialize_by_alias=True)

    device_id: str
    share_milli: Annotated[int, Field(alias="milli")]
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    """Filled in by the store when it commits: ids of the cores that the lease alone may use."""


class Lease(BaseModel):
    """A committed placement. `token` is greater than that of every lease granted before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    request_id: str
    worker_id: str
    alternative: int
    """Which of the request's alternatives was placed, from 0."""
    claims: tuple[Claim, ...]
    token: int
    state: LeaseState
    granted_at: datetime
    expires_at: datetime
    saved_at: datetime | None = None
    """When its task last published a checkpoint under it; None for not yet."""
