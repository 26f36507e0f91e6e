"""What happens beside a request that has to wait: what is kept from those behind it, and how room is made.

Two plug-in points of `ListPolicy`, each a function that makes one object a decision.
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
    """What is kept for the requests that wait, during one decision."""

    def place(self, pending: PendingRequest, worker: int, alternative: int, fit: Fit) -> None:
        """Take note that a request was placed on the worker of that number; called in the order of the queue."""
        ...

    def wait(self, unit: Sequence[PendingRequest]) -> None:
        """Take note that a request, or a gang, has to wait for running work; called in the order of the queue."""
        ...

    def against(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What is kept from a request further back in the queue; the same object where it is the same."""
        ...


MakeReservations = Callable[[WorkerIndex, Snapshot, datetime], Reservations]
"""The plug-in point: a reservation for one decision, in which nobody waits yet."""


class PreemptionPlan(Protocol):
    """How room is made for requests that have to wait, during one decision."""

    until: datetime | None
    """When more room may be made though nothing but the time has changed."""

    def make(self, unit: Sequence[PendingRequest], keep: ReservedCapacity | None) -> Reason | None:
        """Why a request or gang that fits nowhere waits if room is made for it; called in the order of the queue.

        None if it is to wait for work to end. What it is to get, nobody else does from then on.
        """
        ...

    def covers(self, unit: Sequence[PendingRequest]) -> bool:
        """Whether all that requests behind it may get can be taken back for it, so that nothing need be kept."""
        ...

    def preemptions(self) -> Sequence[Preempt]:
        """The leases to take back for all for which room was made."""
        ...


MakePreemptionPlan = Callable[[WorkerIndex, Snapshot, datetime], PreemptionPlan]
"""The plug-in point: whoever makes room during one decision."""


class ReservationsByNeed:
    """Whatever the head could ever use is left free for it, and nothing for the others.

    No durations are known, so this is the one form of backfill that can't delay the head (EASY,
    Lifka 1995, with a shadow time of "any moment").
    """

    def __init__(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        self._fleet = fleet
        self._keep: ReservedCapacity | None = None

    def place(self, pending: PendingRequest, worker: int, alternative: int, fit: Fit) -> None:
        """What is placed is of no account."""

    def wait(self, unit: Sequence[PendingRequest]) -> None:
        """The first that waits is the head."""
        if self._keep is None:
            alternatives = tuple(alternative for one in unit for alternative in one.request.alternatives)
            self._keep = self._fleet.reserved_capacity_for(alternatives, len(unit))

    def against(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What is kept for the head, from everybody."""
        return self._keep


class NoPreemption:
    """Nothing is taken back: who does not fit waits for work to end."""

    until: datetime | None = None

    def __init__(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        pass

    def make(self, unit: Sequence[PendingRequest], keep: ReservedCapacity | None) -> Reason | None:
        """For nobody."""
        return None

    def covers(self, unit: Sequence[PendingRequest]) -> bool:
        """No."""
        return False

    def preemptions(self) -> Sequence[Preempt]:
        """None."""
        return ()
