"""What ended a run before its work was done, as it is kept in the task state store."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

MAX_FAILURES = 50
"""Failures of one class that are remembered; no rule counts further."""

MAX_EVIDENCE = 300
"""Characters."""


class FailureClass(StrEnum):
    """Why a run ended before its work was done."""

    DEVICE_MEMORY = "device_memory"
    """The device's memory did not suffice."""
    HOST_MEMORY = "host_memory"
    """The host's memory, or its shared memory, did not suffice."""
    HARDWARE = "hardware"
    """A device is broken, or can't be used until it is reset."""
    NETWORK = "network"
    """Processes of the task lost each other, or it could not reach its checkpoint store."""
    LOST_WORKER = "lost_worker"
    """The worker or the process went away, or was killed from outside."""
    PREEMPTED = "preempted"
    """It was asked to stop, for another task or to move."""
    HUNG = "hung"
    """It made no progress for longer than it may."""
    USER_ERROR = "user_error"
    """The task's own code is wrong in a way that running it again can't cure."""
    UNKNOWN = "unknown"
    """Nothing in the evidence says why."""

    @property
    def words(self) -> str:
        """What happened, for people, as a part of a sentence.

        >>> FailureClass.DEVICE_MEMORY.words
        'ran out of device memory'
        """
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    FailureClass.DEVICE_MEMORY: "ran out of device memory",
    FailureClass.HOST_MEMORY: "ran out of host memory",
    FailureClass.HARDWARE: "met a hardware error",
    FailureClass.NETWORK: "met a network failure",
    FailureClass.LOST_WORKER: "lost its worker or was killed",
    FailureClass.PREEMPTED: "was preempted",
    FailureClass.HUNG: "hung",
    FailureClass.USER_ERROR: "met an error of its own that running again can't cure",
    FailureClass.UNKNOWN: "failed for an unknown reason",
}


class Failure(BaseModel):
    """One run that failed: the class, what says so, and where it ran.

    >>> from datetime import UTC, datetime
    >>> failure = Failure(failure_class="hardware", evidence="Xid 79 on GPU-1", worker="host-a",
    ...                   device_ids=("GPU-1",), at=datetime(2026, 1, 1, tzinfo=UTC), epoch=0, token=7)
    >>> Failure.model_validate_json(failure.model_dump_json()) == failure
    True
    """

    model_config = ConfigDict(frozen=True)

    failure_class: FailureClass
    evidence: str = Field(max_length=MAX_EVIDENCE)
    """The text that was matched and where it was found; never a whole message, which may hold secrets."""
    worker: str | None = None
    device_ids: tuple[str, ...] = ()
    """Of the lease."""
    at: AwareDatetime
    epoch: int = Field(ge=0)
    """The task instance's `max_tries`: a clear raises it, a retry does not."""
    token: int | None = None
    """Fencing token of the lease: one run has one, so that a failure told twice counts once."""
    memory_bytes: int | None = Field(default=None, gt=0)
    """Of each device it had; of a share, what the share came to. None: not known, or a CPU."""
    host_memory_bytes: int | None = Field(default=None, gt=0)
    """Host memory that it might use, or had come to use."""
    step: int | None = Field(default=None, ge=0)
    """The last step that was done."""

    def is_same_run(self, other: Failure) -> bool:
        """Whether both tell of one run."""
        return self == other or (self.token is not None and self.token == other.token)


def load_failures(kept: object) -> tuple[Failure, ...]:
    """The failures that a state store holds, oldest first; what can't be read is left out.

    >>> load_failures(None), load_failures([{"failure_class": "meteor"}])
    ((), ())
    """
    records = kept if isinstance(kept, list) else []
    return tuple(failure for record in records if (failure := _read(record)) is not None)


def keep_failure(kept: object, failure: Failure) -> list[dict[str, Any]]:
    """What to put into the state store in place of `kept`, with this failure at its end.

    Failures before the last clear are forgotten, as are all but the last `MAX_KEPT` of each class. A run that
    is in there already is not told again.
    """
    known = load_failures(kept)
    if not any(failure.is_same_run(one) for one in known):
        known = (*known, failure)
    epoch = max(one.epoch for one in known)
    return [one.model_dump(mode="json", exclude_defaults=True) for one in _last_of_each(known, epoch)]


def replace_failure(kept: object, failure: Failure) -> list[dict[str, Any]]:
    """What to put into the state store in place of `kept`, where more is known of a run that is in there."""
    known = (failure if one.is_same_run(failure) else one for one in load_failures(kept))
    return [one.model_dump(mode="json", exclude_defaults=True) for one in known]


def failures_of_epoch(failures: Iterable[Failure], epoch: int) -> tuple[Failure, ...]:
    """Those since the last clear, each run once, in their order."""
    told: list[Failure] = []
    for failure in failures:
        if failure.epoch == epoch and not any(failure.is_same_run(one) for one in told):
            told.append(failure)
    return tuple(told)


def _last_of_each(failures: tuple[Failure, ...], epoch: int) -> list[Failure]:
    left = dict.fromkeys(FailureClass, MAX_FAILURES)
    chosen = []
    for failure in reversed(failures):
        if failure.epoch == epoch and left[failure.failure_class] > 0:
            left[failure.failure_class] -= 1
            chosen.append(failure)
    return chosen[::-1]


def _read(record: object) -> Failure | None:
    try:
        return Failure.model_validate(record)
    except (ValidationError, RecursionError):
        return None
