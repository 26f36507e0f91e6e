"""The base of policies whose packing measure depends on the snapshot, and the request mix that most of them use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.matching.packing.scorer import PackingMeasure, PackingScorer
from hetero_airflow.matching.scoring import PlacementScorer, TightFitScorer
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.backfill import HeadReservation, MakeReservations
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.preemption import MakePreemptionPlan
from hetero_airflow.policies.core.queue_order import by_priority

BasisT = TypeVar("BasisT")


class ScorerByBasis(Generic[BasisT]):
    """Makes the scorer of a measure again when the basis of the measure changes.

    :param ties: see `PackingScorer`
    """

    def __init__(self, measure: Callable[[BasisT], PackingMeasure], ties: PlacementScorer | None = None) -> None:
        self._measure = measure
        self._ties = ties
        self._last: tuple[BasisT, PackingScorer] | None = None

    def __call__(self, basis: BasisT) -> PackingScorer:
        """The scorer; the same object for an equal basis."""
        if self._last is None or basis != self._last[0]:
            self._last = basis, PackingScorer(self._measure(basis), self._ties)
        return self._last[1]


class ScoredPolicy(ListPolicy, Generic[BasisT]):
    """Places requests by a packing measure.

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
        reservations: MakeReservations = HeadReservation,
        preemption: MakePreemptionPlan | None = None,
    ) -> None:
        super().__init__(name, order, TightFitScorer(), reservations=reservations, preemption=preemption)
        self._basis_of, self._scorer_by_basis = basis, ScorerByBasis(measure)

    def _scorer_for(self, snapshot: Snapshot) -> PlacementScorer:
        return self._scorer_by_basis(self._basis_of(snapshot))


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
        requests = [pending.request for pending in (*snapshot.pending, *snapshot.holders.values())]
        by_fingerprint = {request.fingerprint: request.alternatives[0] for request in requests}
        counts = Counter[Alternative]()
        for fingerprint, count in Counter(request.fingerprint for request in requests).items():
            counts[by_fingerprint[fingerprint]] += count
        mix = tuple((alternative, count / counts.total()) for alternative, count in counts.items())
    return tuple(sorted((entry for entry in mix if entry[1] > 0), key=lambda entry: entry[0].key))


def rounded_request_mix(snapshot: Snapshot) -> RequestMix:
    """The mix with its parts rounded to half octaves, so that a slowly changing mix stays equal for a while.

    For a measure that takes long to compute.
    """
    return tuple(
        (alternative, math.exp2(round(2 * math.log2(part)) / 2)) for alternative, part in request_mix(snapshot)
    )
