"""Failures: the record of a run that ended before its work was done, as the task state store keeps it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

MAX_FAILURES = 50
"""Number of failures of one class that are kept; no rule counts further."""

MAX_EVIDENCE = 300
"""Characters."""


class FailureClass(StrEnum):
    """Why a run ended before its work was done."""

    DEVICE_MEMORY = "device_memory"
    """The device had too little memory."""
    HOST_MEMORY = "host_memory"
    """The host had too little memory or shared memory."""
    HARDWARE = "hardware"
    """A device is broken, or unusable until it is reset."""
    WORKER = "worker"
    """The host is broken, not the task: its runtime finds no usable device, a disk is full, a mount is stale."""
    NETWORK = "network"
    """The task's processes lost each other, or the task could not reach its checkpoint store."""
    LOST_WORKER = "lost_worker"
    """The worker or the process disappeared, or was killed from outside."""
    PREEMPTED = "preempted"
    """The task was asked to stop, for another task or to migrate."""
    HUNG = "hung"
    """The task made no progress for too long."""
    NO_START = "no_start"
    """The cluster did not start the task in time, or refused it."""
    USER_ERROR = "user_error"
    """The task gave up, or its code can't be imported or asks for the impossible: a new run can't change that."""
    CODE_ERROR = "code_error"
    """The task's own code raised an error that may depend on its data."""
    UNKNOWN = "unknown"
    """No other class fits."""

    @property
    def description(self) -> str:
        """What happened, as a part of a sentence.

        >>> FailureClass.DEVICE_MEMORY.description
        'ran out of device memory'
        """
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    FailureClass.DEVICE_MEMORY: "ran out of device memory",
    FailureClass.HOST_MEMORY: "ran out of host memory",
    FailureClass.HARDWARE: "had a hardware error",
    FailureClass.WORKER: "found its worker broken",
    FailureClass.NETWORK: "had a network failure",
    FailureClass.LOST_WORKER: "lost its worker or was killed",
    FailureClass.PREEMPTED: "was preempted",
    FailureClass.HUNG: "hung",
    FailureClass.NO_START: "was not started by its cluster",
    FailureClass.USER_ERROR: "had an error in its own code that a new run can't fix",
    FailureClass.CODE_ERROR: "had an error in its own code",
    FailureClass.UNKNOWN: "failed",
}


class Failure(BaseModel):
    """One failed run: the class, the evidence for it, and where it ran.

    >>> from datetime import UTC, datetime
    >>> failure = Failure(failure_class="hardware", evidence="Xid 79 on GPU-1", worker="host-a",
    ...                   device_ids=("GPU-1",), at=datetime(2026, 1, 1, tzinfo=UTC), epoch=0, token=7)
    >>> Failure.model_validate_json(failure.model_dump_json()) == failure
    True
    """

    model_config = ConfigDict(frozen=True)

    failure_class: FailureClass
    evidence: str = Field(max_length=MAX_EVIDENCE)
    """The matched text and its place; never a whole message, since it may hold secrets."""
    worker: str | None = None
    device_ids: tuple[str, ...] = ()
    """The leased devices."""
    is_of_host: bool = False
    """Whether the evidence is about the host, such as a full disk, and not about the devices."""
    at: AwareDatetime
    epoch: int = Field(ge=0)
    """The task instance's `max_tries`: a clear raises it, a retry does not."""
    token: int | None = None
    """Fencing token of the lease: each run has its own, so a failure that is reported twice counts once."""
    memory_bytes: int | None = Field(default=None, gt=0)
    """The memory of each leased device, or of the leased share. None: not known, or a CPU."""
    host_memory_bytes: int | None = Field(default=None, gt=0)
    """Limit of host memory, or the memory in use."""

    def is_same_run(self, other: "Failure") -> bool:
        """Whether both are about the same run."""
        return self == other or (self.token is not None and self.token == other.token)


def load_failures(stored: object) -> tuple[Failure, ...]:
    """The failures in a state store's value, oldest first; unreadable records are left out.

    >>> load_failures(None), load_failures([{"failure_class": "meteor"}])
    ((), ())
    """
    records = stored if isinstance(stored, list) else []
    return tuple(failure for record in records if (failure := _read(record)) is not None)


def keep_failure(stored: object, failure: Failure) -> list[dict[str, Any]]:
    """The new value for the state store: `stored` with this failure at its end, unless its run is in there already.

    Failures before the last clear are dropped, and all but the last `MAX_FAILURES` of each class.
    """
    failures = load_failures(stored)
    if not any(map(failure.is_same_run, failures)):
        failures = (*failures, failure)
    return _as_json(_last_of_each_class(failures, max(earlier.epoch for earlier in failures)))


def replace_failure(stored: object, failure: Failure) -> list[dict[str, Any]]:
    """The new value for the state store: `stored` with this failure in place of the earlier record of its run."""
    return _as_json(failure if earlier.is_same_run(failure) else earlier for earlier in load_failures(stored))


def failures_of_epoch(failures: Iterable[Failure], epoch: int) -> tuple[Failure, ...]:
    """The failures since the last clear, each run once, in their order."""
    recent: list[Failure] = []
    for failure in failures:
        if failure.epoch == epoch and not any(map(failure.is_same_run, recent)):
            recent.append(failure)
    return tuple(recent)


def _as_json(failures: Iterable[Failure]) -> list[dict[str, Any]]:
    return [failure.model_dump(mode="json", exclude_defaults=True) for failure in failures]


def _last_of_each_class(failures: tuple[Failure, ...], epoch: int) -> list[Failure]:
    room = dict.fromkeys(FailureClass, MAX_FAILURES)
    chosen = []
    for failure in reversed(failures):
        if failure.epoch == epoch and room[failure.failure_class] > 0:
            room[failure.failure_class] -= 1
            chosen.append(failure)
    return chosen[::-1]


def _read(record: object) -> Failure | None:
    try:
        return Failure.model_validate(record)
    except (ValidationError, RecursionError):
        return None
