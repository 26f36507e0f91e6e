"""Placement that looks ahead at the mix of requests to come, see `matching.packing.expected_fill`."""

import math
from collections import Counter

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.matching.packing.scorer import PackingScorer
from hetero_airflow.matching.scoring import PlacementScorer
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.share_prices import share_prices


class ScorerByMix:
    """Places where the amount of accelerators that a worker is still expected to lease falls least.

    :param ties: see `PackingScorer`
    """

    def __init__(self, ties: PlacementScorer | None = None) -> None:
        self._ties = ties
        self._last: tuple[RequestMix, PackingScorer] | None = None

    def __call__(self, mix: RequestMix) -> PackingScorer:
        """The scorer for a mix; the same object for an equal mix."""
        if self._last is None or mix != self._last[0]:
            self._last = mix, PackingScorer(ExpectedFillMeasure(mix, share_prices(mix)), self._ties)
        return self._last[1]


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
