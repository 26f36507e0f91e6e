"""The exceptions that this package raises, each with what was asked, what was found, and what to do.

::

    HeteroError
    ├── RequestError(ValueError)       a device request that can't be read or contradicts itself
    ├── SettingsError(ValueError)      an option in [hetero] that can't be read
    ├── RegistryError(LookupError)     a policy, probe or engine name that no table row has
    ├── ProbeError                     a vendor's library or tool that answers with nonsense
    ├── NoLeaseError(RuntimeError)     the process runs without a device lease
    ├── TraceError(ValueError)         a trace or workload that can't be read or contradicts itself
    ├── ClusterError(ValueError)       a pretend cluster that can't be read or can't run the workload
    ├── EngineError                    a placed task that its engine can't take
    ├── IdentityError                  a worker's key, secret or token that does not let it speak
    ├── CheckpointError
    │   ├── InvalidCheckpoint(ValueError)  a name, manifest, file or state that can't be trusted or read
    │   ├── CheckpointStoreUnavailable     the store does not answer, is full, or refuses us
    │   └── FencedOut                      another run of the task has begun since: this one can't publish
    └── StoreError
        ├── StoreUnavailable           the database is down, locked or not migrated
        ├── LeaseNotFound(LookupError) a lease id that the store does not know
        ├── LeaseLost                  a fencing token that is older than the lease's
        └── InvalidTransition          a lease state change that the table does not allow
"""

from __future__ import annotations


class HeteroError(Exception):
    """Root of the tree; the three parts of its text are fields too.

    >>> print(HeteroError("4 GPUs", found="2 on the largest worker", remedy="Ask for 2"))
    4 GPUs; found 2 on the largest worker. Ask for 2.
    """

    def __init__(self, asked: str, *, found: str, remedy: str) -> None:
        self.asked = asked
        self.found = found
        self.remedy = remedy
        super().__init__(f"{asked}; found {found}. {remedy.rstrip('.')}.")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__, str(self)))


def _rebuild(cls: type[HeteroError], fields: dict[str, object], text: str) -> HeteroError:
    error = cls.__new__(cls)
    Exception.__init__(error, text)
    error.__dict__.update(fields)
    return error


class RequestError(HeteroError, ValueError):
    """A device request that can't be read, contradicts itself or goes past a limit.

    `field` is the argument that is wrong, `value` its (shortened) text.
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
    """A vendor's library or tool that answered with something its parser can't read."""


class NoLeaseError(HeteroError, RuntimeError):
    """The process asks for its lease but runs without one."""


class TraceError(HeteroError, ValueError):
    """A trace or workload that can't be read or contradicts itself; says the line and the field, where there are."""

    def __init__(
        self, asked: str, *, found: str, remedy: str, line: int | None = None, field: str | None = None
    ) -> None:
        self.line = line
        self.field = field
        super().__init__(asked, found=found, remedy=remedy)


class ClusterError(HeteroError, ValueError):
    """A pretend cluster that can't be read, or that can't run the workload."""


class EngineError(HeteroError):
    """A placed task that its engine can't take."""


class IdentityError(HeteroError):
    """A worker's key, enrolment secret or token that does not let its agent speak for it."""


class CheckpointError(HeteroError):
    """A checkpoint can't be saved or loaded."""


class InvalidCheckpoint(CheckpointError, ValueError):
    """A name, a manifest, a file or a state that can't be trusted, or that can't be kept without pickling."""


class CheckpointStoreUnavailable(CheckpointError):
    """The store does not answer, is full, or refuses us."""


class FencedOut(CheckpointError):
    """Another run of the task has begun since with a greater fencing token: this one can't publish any more."""


class StoreError(HeteroError):
    """The store can't do what it was asked."""


class StoreUnavailable(StoreError):
    """The database is down, locked, or its tables are missing."""


class LeaseNotFound(StoreError, LookupError):
    """A lease id that the store does not know."""


class LeaseLost(StoreError):
    """A fencing token that is not the lease's own: the lease was granted anew or ended."""


class InvalidTransition(StoreError):
    """A lease state change that `model.lease.TRANSITIONS` does not have."""


def shorten(value: object, limit: int = 80) -> str:
    """The value's repr in at most `limit` characters, so that no value can flood an error or break it.

    A value whose repr fails (nested too deep, an integer of 5000 digits) is shown by its type.

    >>> shorten("a" * 1000, limit=12)
    "'aaaaaaa...'"
    """
    try:
        text = repr(value[: limit * 2] if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001  a foreign repr may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"
