"""What happens beside a request that has to wait: reservations against later requests, and preemption for it.

Both are plug-in points of `ListPolicy`. Each is a function that makes one object for each decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Preempt, Reason
from hetero_airflow.model.snapshot import PendingRequest, Snapshot


class Reservations(Protocol):
    """What is reserved for waiting requests during one decision. Calls come in the order of the queue."""

    def note_placed(self, pending: PendingRequest, worker: int, alternative: int, fit: Fit) -> None:
        """Take into account that a request is placed on the worker with that number."""
        ...

    def note_waiting(self, unit: Sequence[PendingRequest]) -> None:
        """Take into account that a request, or a gang, has to wait for running work."""
        ...

    def reserved_from(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What a later request must leave free. Equal answers are the same object."""
        ...


MakeReservations = Callable[[WorkerIndex, Snapshot, datetime], Reservations]
"""The plug-in point: the reservations of one decision, empty at first."""


class PreemptionPlan(Protocol):
    """Which leases are taken back for waiting requests during one decision."""

    @property
    def until(self) -> datetime | None:
        """When more may be preempted although nothing but the time has changed."""
        ...

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """The wait reason, if leases are preempted for this request or gang. None: nothing is preempted for it.

        Called in the order of the queue. What the request is to get is withheld from all later requests.
        """
        ...

    def can_reclaim(self, unit: Sequence[PendingRequest]) -> bool:
        """Whether it can take back everything that later requests may get, so that it needs no reservation."""
        ...

    def preemptions(self) -> Sequence[Preempt]:
        """The leases to take back."""
        ...


MakePreemptionPlan = Callable[[WorkerIndex, Snapshot, datetime], PreemptionPlan]
"""The plug-in point: the preemption plan of one decision, where leases can be taken back; empty at first."""


class NoPreemption:
    """Takes no lease back: a request that does not fit waits for work to end."""

    until: datetime | None = None

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """None: no lease ends for it."""
        return None

    def can_reclaim(self, unit: Sequence[PendingRequest]) -> bool:
        """False: it needs its reservation."""
        return False

    def preemptions(self) -> Sequence[Preempt]:
        """No leases."""
        return ()
