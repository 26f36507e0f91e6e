"""The port of an engine: an existing Airflow executor that runs what was placed."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from hetero_airflow.model.lease import Lease


class Liveness(StrEnum):
    """Whether the process that uses a lease is there."""

    ALIVE = "alive"
    """A process of the lease was seen just now."""
    GONE = "gone"
    """It is known that no process of the lease runs."""
    UNKNOWN = "unknown"
    """The engine can't tell, or the worker does not answer."""


class Engine(Protocol):
    """Takes placements. What it reports of their end, the driver reads; the cycle does not."""

    def dispatch(self, lease: Lease) -> None:
        """Hand over the work of a lease that was just granted. Does not wait for it to start."""
        ...

    def is_ours(self, request_id: str) -> bool:
        """Whether this engine has the work of a request; another scheduler's requests are decided, but left to it."""
        ...

    def reaches(self, worker_id: str) -> bool:
        """Whether what is dispatched here can run on that worker."""
        ...

    def open_slots(self) -> int | None:
        """How many more placements could start at once; None for any number. More would hold their devices idle."""
        ...

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        ...
