"""The exceptions that this package raises. Each says what was asked, what was found, and what to do."""

from collections.abc import Mapping
from typing import TypeVar

_Error = TypeVar("_Error", bound="HeteroError")


class HeteroError(Exception):
    """Root of all errors of this package; the three parts of its text are fields too.

    `asked` is a thing that can't be used, or an action that begins with "to".

    >>> print(HeteroError("4 GPUs", found="2 on the largest worker", remedy="Ask for 2"))
    4 GPUs can't be used; found 2 on the largest worker. Ask for 2.
    >>> print(HeteroError("to forget worker a", found="that it is online", remedy="Stop it first"))
    hetero_airflow can't forget worker a; found that it is online. Stop it first.
    """

    def __init__(self, asked: str, *, found: str, remedy: str) -> None:
        self.asked = asked
        self.found = found
        self.remedy = remedy
        super().__init__(f"{_statement(asked)}; found {found}. {as_sentence(remedy)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (rebuild_error, (type(self), self.__dict__, str(self)))


def as_sentence(text: str) -> str:
    """The text with its full stop; a question has none.

    >>> as_sentence("Ask for 2"), as_sentence('Did you mean "gpu"?')
    ('Ask for 2.', 'Did you mean "gpu"?')
    """
    return text if text.endswith("?") else f"{text.rstrip('.')}."


def _statement(asked: str) -> str:
    """A sentence with a subject and a verb. It begins with a capital letter, unless it begins with a name or code."""
    if asked.startswith("to "):
        return f"hetero_airflow can't {asked.removeprefix('to ')}"
    word, space, rest = asked.partition(" ")
    return f"{word[:1].upper() + word[1:] if word.isalpha() and rest else word}{space}{rest} can't be used"


def rebuild_error(cls: type[_Error], fields: Mapping[str, object], text: str) -> _Error:
    """The error with these fields and this text, as another process raised it."""
    error = cls.__new__(cls)
    Exception.__init__(error, text)
    error.__dict__.update(fields)
    return error


class RequestError(HeteroError, ValueError):
    """A device request that can't be read, contradicts itself or exceeds a limit.

    `field` is the wrong argument, `value` its (shortened) text.
    """

    def __init__(self, field: str, value: object, *, found: str, remedy: str) -> None:
        self.field = field
        self.value = shorten(value)
        super().__init__(f"{field}={self.value}", found=found, remedy=remedy)


class SettingsError(HeteroError, ValueError):
    """An option in the section [hetero] that can't be read."""


class RegistryError(HeteroError, LookupError):
    """A policy, probe or engine name that neither the tables nor an entry point has."""


class ProbeError(HeteroError):
    """A vendor's library or tool returned something that its parser can't read."""


class NoLeaseError(HeteroError, RuntimeError):
    """The process asks for its device lease but has none."""


class DeviceUnavailable(HeteroError, RuntimeError):
    """A local run asks for devices that this machine does not have, or that were not free in time."""


class OutOfMemory(HeteroError, MemoryError):
    """The leased device has no memory for what a task asks of it."""


class TraceError(HeteroError, ValueError):
    """A trace or workload that can't be read or contradicts itself; names the line and the field where it can."""

    def __init__(
        self, asked: str, *, found: str, remedy: str, line: int | None = None, field: str | None = None
    ) -> None:
        self.line = line
        self.field = field
        super().__init__(asked, found=found, remedy=remedy)


class ClusterError(HeteroError, ValueError):
    """A simulated cluster that can't be read, or that can't run the workload."""


class EngineError(HeteroError):
    """A placed task that its engine can't run."""


class IdentityError(HeteroError):
    """A worker's key, enrolment secret or token that does not authenticate its agent."""


class CheckpointError(HeteroError):
    """A checkpoint can't be saved or loaded."""


class InvalidCheckpoint(CheckpointError, ValueError):
    """A name, manifest, file or state that can't be trusted, or that can't be saved without pickling."""


class CheckpointStoreUnavailable(CheckpointError):
    """The store does not answer, is full, or refuses access."""


class DataError(HeteroError):
    """Data of an object store that can't be read."""


class FencedOut(CheckpointError):
    """A later run of the task has a greater fencing token, so this run can't publish any more."""


class GrantRefused(CheckpointError):
    """A lease's token that no scheduler has signed for this task, or a grant that has ended."""


class StoreError(HeteroError):
    """The store can't do what the caller asked."""


class StoreUnavailable(StoreError):
    """The database is down, locked, or its tables are missing."""


class LeaseNotFound(StoreError, LookupError):
    """A lease id that the store does not know."""


class LeaseLost(StoreError):
    """A fencing token that the lease does not have: the lease was granted again or has ended."""


class InvalidTransition(StoreError):
    """A lease state change that `model.lease.TRANSITIONS` does not have."""


def shorten(value: object, limit: int = 80) -> str:
    """The value's repr in at most `limit` characters, so that no value can make an error too long or break it.

    A value whose repr fails (nested too deep, an integer of 5000 digits) is shown by its type.

    >>> shorten("a" * 1000, limit=12)
    "'aaaaaaa...'"
    """
    try:
        text = repr(value[: limit * 2] if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001  a foreign repr can raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"
