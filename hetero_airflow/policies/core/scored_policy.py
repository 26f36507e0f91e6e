"""The base of policies whose packing measure depends on the snapshot, and the request mix that most of them use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.matching.packing.scorer import PackingMeasure, PackingScorer
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.reservation import MakePreemptionPlan, MakeReservations, ReservationsByNeed

BasisT = TypeVar("BasisT")


class ScoredPolicy(Generic[BasisT]):
    """Places requests by a packing measure, which is made again when its basis changes.

    :param basis: what the measure depends on in a snapshot
    :param measure: the measure for a basis
    """

    def __init__(
        self,
        name: str,
        basis: Callable[[Snapshot], BasisT],
        measure: Callable[[BasisT], PackingMeasure],
        *,
        order: QueueOrder = by_priority,
        reservations: MakeReservations = ReservationsByNeed,
        preemption: MakePreemptionPlan | None = None,
    ) -> None:
        self.name = name
        self._basis_of, self._measure = basis, measure
        self._order, self._reservations, self._preemption = order, reservations, preemption
        self._last: tuple[BasisT, ListPolicy] | None = None

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        basis = self._basis_of(snapshot)
        if self._last is None or basis != self._last[0]:
            scorer = PackingScorer(self._measure(basis))
            reservations, preemption = self._reservations, self._preemption
            policy = ListPolicy(self.name, self._order, scorer, reservations=reservations, preemption=preemption)
            self._last = basis, policy
        return self._last[1].decide(snapshot, now)


def request_mix(snapshot: Snapshot) -> RequestMix:
    """(alternative, its part of all requests), ordered by alternative.

    The parts come from past requests. Without a past they come from the requests that wait or run now.

    >>> from hetero_airflow.testing import a_pending
    >>> mix = request_mix(Snapshot(1, pending=(a_pending(device="gpu:2"),)))
    >>> [(str(alternative), part) for alternative, part in mix]
    [('2 × gpu', 1.0)]
    """
    mix = snapshot.estimates.mix
    if not mix:
        counts = Counter(pending.request.alternatives[0] for pending in (*snapshot.pending, *snapshot.holders.values()))
        mix = tuple((alternative, count / counts.total()) for alternative, count in counts.items())
    return tuple(sorted((entry for entry in mix if entry[1] > 0), key=lambda entry: entry[0].key))


def rounded_request_mix(snapshot: Snapshot) -> RequestMix:
    """The mix with its parts rounded to half octaves, so that a slowly changing mix stays equal for a while.

    For a measure that takes long to compute.
    """
    return tuple(
        (alternative, math.exp2(round(2 * math.log2(part)) / 2)) for alternative, part in request_mix(snapshot)
    )
