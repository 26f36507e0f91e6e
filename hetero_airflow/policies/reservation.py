"""What happens beside a request that has to wait: what is kept from those behind it, and how room is made.

Two plug-in points of `Greedy`, each a function that makes one object a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from hetero_airflow.matching.fleet import Fleet, Keep
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.model.plan import Preempt, Reason
from hetero_airflow.model.snapshot import Pending, Snapshot


class Reservation(Protocol):
    """What is kept for the requests that wait, during one decision."""

    def place(self, pending: Pending, worker: int, alternative: int, fit: Fit) -> None:
        """Take note that a request was placed on the worker of that number; called in the order of the queue."""
        ...

    def wait(self, unit: Sequence[Pending]) -> None:
        """Take note that a request, or a gang, has to wait for running work; called in the order of the queue."""
        ...

    def against(self, pending: Pending) -> Keep | None:
        """What is kept from a request further back in the queue; the same object where it is the same."""
        ...


Reserve = Callable[[Fleet, Snapshot, datetime], Reservation]
"""The plug-in point: a reservation for one decision, in which nobody waits yet."""


class Room(Protocol):
    """How room is made for requests that have to wait, during one decision."""

    until: datetime | None
    """When more room may be made though nothing but the time has changed."""

    def make(self, unit: Sequence[Pending], keep: Keep | None) -> Reason | None:
        """Why a request or gang that fits nowhere waits if room is made for it; called in the order of the queue.

        None if it is to wait for work to end. What it is to get, nobody else does from then on.
        """
        ...

    def covers(self, unit: Sequence[Pending]) -> bool:
        """Whether all that requests behind it may get can be taken back for it, so that nothing need be kept."""
        ...

    def preemptions(self) -> Sequence[Preempt]:
        """The leases to take back for all for which room was made."""
        ...


MakeRoom = Callable[[Fleet, Snapshot, datetime], Room]
"""The plug-in point: whoever makes room during one decision."""


class KeepByNeed:
    """Whatever the head could ever use is left free for it, and nothing for the others.

    No durations are known, so this is the one form of backfill that can't delay the head (EASY,
    Lifka 1995, with a shadow time of "any moment").
    """

    def __init__(self, fleet: Fleet, snapshot: Snapshot, now: datetime) -> None:
        self._fleet = fleet
        self._keep: Keep | None = None

    def place(self, pending: Pending, worker: int, alternative: int, fit: Fit) -> None:
        """What is placed is of no account."""

    def wait(self, unit: Sequence[Pending]) -> None:
        """The first that waits is the head."""
        if self._keep is None:
            alternatives = tuple(alternative for one in unit for alternative in one.request.alternatives)
            self._keep = self._fleet.keep_for(alternatives, len(unit))

    def against(self, pending: Pending) -> Keep | None:
        """What is kept for the head, from everybody."""
        return self._keep


class MakeNoRoom:
    """Nothing is taken back: who does not fit waits for work to end."""

    until: datetime | None = None

    def __init__(self, fleet: Fleet, snapshot: Snapshot, now: datetime) -> None:
        pass

    def make(self, unit: Sequence[Pending], keep: Keep | None) -> Reason | None:
        """For nobody."""
        return None

    def covers(self, unit: Sequence[Pending]) -> bool:
        """No."""
        return False

    def preemptions(self) -> Sequence[Preempt]:
        """None."""
        return ()
