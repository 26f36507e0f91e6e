"""A plan: the decisions of one cycle, each with the account of how it was made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from hetero_airflow.model.lease import Claim


class ReasonCode(StrEnum):
    """Why a device, a worker or a whole request does not fit, in the order in which it is checked."""

    KIND = "kind"
    """No device of the vendor or kind."""
    MODEL = "model"
    """A different model."""
    PARTITION = "partition"
    """A different MIG profile, or a MIG instance where the request is for a whole device."""
    MEMORY = "memory"
    """The device's memory is outside the range."""
    DRIVER = "driver"
    """The driver version does not match the specifier, or is unknown."""
    RUNTIME = "runtime"
    """The software is missing, or its version does not match the specifier."""
    LABELS = "labels"
    """A label of the worker is missing or different."""
    HEALTH = "health"
    """The device reports a problem and is not leasable."""
    LOST = "lost"
    """The worker's heartbeat stopped."""
    COUNT = "count"
    """The worker has too few such devices, even when idle."""
    CPUS = "cpus"
    """The host has too few cores, even when idle."""
    HOST_MEMORY = "host_memory"
    """The host has too little memory, even when idle."""
    TOPOLOGY = "topology"
    """The worker's devices are not linked as requested, even when idle."""
    BUSY = "busy"
    """It fits, but too much of it is leased now."""
    SCATTERED = "scattered"
    """Enough devices are free, but they are too far apart."""
    RESERVED = "reserved"
    """It fits and is free, but is reserved for an earlier request."""
    PREEMPTING = "preempting"
    """It fits after the end of leases that are being preempted for it; its place is reserved."""
    SOONER = "sooner"
    """It fits and is free, but the task would probably end sooner on other devices that are not free yet."""
    QUOTA = "quota"
    """Its team, or its namespace in a cluster, has as many devices as its quota allows."""
    SLOTS = "slots"
    """It fits and is free, but the engine has no free process for the task."""
    API_SERVER = "api_server"
    """It fits and is free, but no API server of Airflow answers, so no task can start."""
    GANG = "gang"
    """Some members of its gang are missing, or not all can be placed at the same time."""
    PAUSED = "paused"
    """A person has paused the task."""
    UNPROBED = "unprobed"
    """No known device fits, but a probe failed, so there may be unknown devices."""
    NO_WORKER = "no_worker"
    """No worker is known yet."""


TRANSIENT = frozenset(
    {
        ReasonCode.LOST,
        ReasonCode.HEALTH,
        ReasonCode.BUSY,
        ReasonCode.SCATTERED,
        ReasonCode.RESERVED,
        ReasonCode.PREEMPTING,
        ReasonCode.SOONER,
        ReasonCode.QUOTA,
        ReasonCode.SLOTS,
        ReasonCode.API_SERVER,
        ReasonCode.GANG,
        ReasonCode.UNPROBED,
        ReasonCode.NO_WORKER,
    }
)
"""Reasons that can end by themselves."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a request is not placed: what was asked and what was found."""

    code: ReasonCode
    asked: str
    found: str
    until: datetime | None = None
    """When the wait for it ends by itself."""
    then: str | None = None
    """What happens at that time; None if there is no such time."""

    @property
    def is_transient(self) -> bool:
        """Whether the reason can end by itself."""
        return self.code in TRANSIENT

    def __str__(self) -> str:
        ends = "" if self.until is None else f"; after {self.until:%Y-%m-%d %H:%M:%S} UTC {self.then}"
        return f"{self.code}: asked {self.asked}, found {self.found}{ends}"


PAUSED = Reason(ReasonCode.PAUSED, "devices", "a pause by a person; `airflow hetero unpause` ends it")


@dataclass(frozen=True, slots=True)
class CandidateAccount:
    """One possible placement, with its score and the terms of the score."""

    worker_id: str
    device_ids: tuple[str, ...]
    score: float
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlternativeAccount:
    """The result for one alternative: the number of workers evaluated, why workers were ruled out, and what was left.

    Equal requests of a cycle with equal results share one account. It shows the state at the decision of the first of
    them; some candidates are no longer free for the later ones.
    """

    asked: str
    evaluated: int
    filtered: tuple[tuple[int, Reason], ...]
    """(number of workers, one example of their reasons), the most frequent first."""
    candidates: tuple[CandidateAccount, ...] = ()
    """The best few, best first."""


@dataclass(frozen=True, slots=True)
class Account:
    """Why a decision was made; the store keeps it with the decision."""

    policy: str
    summary: str
    alternatives: tuple[AlternativeAccount, ...] = ()
    chosen: CandidateAccount | None = None
    """For a placement: the chosen devices, with their score."""


# A cycle makes one of the following three for each request. A tuple takes a third of the time of a frozen dataclass
# (0.23 instead of 0.61 µs with Python 3.11).


class Place(NamedTuple):
    """Lease these devices of this worker to the request."""

    request_id: str
    worker_id: str
    alternative: int
    claims: tuple[Claim, ...]
    account: Account
    starter: str | None = None
    """The scheduler that starts the task as soon as the lease is granted. The cycle sets it; policies leave it."""


class Wait(NamedTuple):
    """Leave the request pending; `position` in the queue counts from 1."""

    request_id: str
    position: int
    reason: Reason
    account: Account


class Refuse(NamedTuple):
    """No known worker could run the request, even when idle; `nearest` describes the closest one."""

    request_id: str
    reason: Reason
    nearest: str
    account: Account


Decision = Place | Wait | Refuse


def numbered(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """The decisions, with the positions of those that wait counted from 1."""
    positions = count(1)
    return tuple(d._replace(position=next(positions)) if isinstance(d, Wait) else d for d in decisions)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Ask the task of a lease to save and end. Its request waits again with its old submission time, and resumes."""

    lease_id: str
    token: int
    request_id: str
    """The request that holds the lease."""
    beneficiary: str | None
    """Id of the request that gets the devices; None if the holder itself moves to better ones, or if no single request
    gets them."""
    cause: str
    """A text for the task's log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of one cycle, in the order in which they were made."""

    decisions: tuple[Decision, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    """Leases to take back first. The request that gets their devices waits until they are free."""
    until: datetime | None = None
    """The time from which the decisions can change although nothing else changes; None for never."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The placements to commit."""
        return tuple(decision for decision in self.decisions if isinstance(decision, Place))
