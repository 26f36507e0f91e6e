"""The mix of requests that a policy goes by."""

from __future__ import annotations

import math
from collections import Counter

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.model.snapshot import Snapshot


def request_mix(snapshot: Snapshot) -> RequestMix:
    """What is asked for and how often: what the past says, and while it says nothing, what waits and what runs.

    Ordered by what is asked.

    >>> from hetero_airflow.testing import a_pending
    >>> [(str(one), part) for one, part in request_mix(Snapshot(1, pending=(a_pending(device="gpu:2"),)))]
    [('2 × gpu', 1.0)]
    """
    mix = snapshot.estimates.mix
    if not mix:
        asked = Counter(pending.request.alternatives[0] for pending in (*snapshot.pending, *snapshot.holders.values()))
        mix = tuple((alternative, number / asked.total()) for alternative, number in asked.items())
    return tuple(sorted(((one, part) for one, part in mix if part > 0), key=lambda item: item[0].key))


def rounded_request_mix(snapshot: Snapshot) -> RequestMix:
    """The mix with its parts rounded to half octaves: a mix that drifts is the same for a while.

    For what takes long to work out from a mix.
    """
    return tuple((one, math.exp2(round(2 * math.log2(part)) / 2)) for one, part in request_mix(snapshot))
