"""What the policies share that place by a valuation: list scheduling, with a valuation made for the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from hetero_airflow.matching.valued import Valuation, Valued
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.queue import by_priority

BasisT = TypeVar("BasisT")


class Valuing(Generic[BasisT]):
    """Class, weight, age; placed by a valuation, which is made anew when what it is based on has changed.

    :param basis: what of a snapshot the valuation depends on
    :param value: the valuation for a basis
    """

    def __init__(self, name: str, basis: Callable[[Snapshot], BasisT], value: Callable[[BasisT], Valuation]) -> None:
        self.name = name
        self._basis_of, self._value = basis, value
        self._known: tuple[BasisT, Greedy] | None = None

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        basis = self._basis_of(snapshot)
        if self._known is None or basis != self._known[0]:
            self._known = basis, Greedy(self.name, by_priority, Valued(self._value(basis)))
        return self._known[1].decide(snapshot, now)
