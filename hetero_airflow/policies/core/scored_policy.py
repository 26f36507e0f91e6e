"""What the policies share that place by a valuation: list scheduling, with a valuation made for the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from hetero_airflow.matching.packing.scorer import PackingMeasure, PackingScorer
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.reservation import (
    MakePreemptionPlan,
    MakeReservations,
    NoPreemption,
    ReservationsByNeed,
)

BasisT = TypeVar("BasisT")


class ScoredPolicy(Generic[BasisT]):
    """Placed by a valuation, which is made anew when what it is based on has changed.

    :param basis: what of a snapshot the valuation depends on
    :param value: the valuation for a basis
    :param order: class, weight, age unless said otherwise
    """

    def __init__(
        self,
        name: str,
        basis: Callable[[Snapshot], BasisT],
        value: Callable[[BasisT], PackingMeasure],
        *,
        order: QueueOrder = by_priority,
        reserve: MakeReservations = ReservationsByNeed,
        make_room: MakePreemptionPlan = NoPreemption,
    ) -> None:
        self.name = name
        self._basis_of, self._value = basis, value
        self._order, self._reserve, self._make_room = order, reserve, make_room
        self._known: tuple[BasisT, ListPolicy] | None = None

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        basis = self._basis_of(snapshot)
        if self._known is None or basis != self._known[0]:
            placement = PackingScorer(self._value(basis))
            greedy = ListPolicy(self.name, self._order, placement, reserve=self._reserve, make_room=self._make_room)
            self._known = basis, greedy
        return self._known[1].decide(snapshot, now)
