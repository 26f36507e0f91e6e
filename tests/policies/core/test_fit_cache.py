"""Whether a request fits anywhere, against the ranking of all placements."""

from __future__ import annotations

from hypothesis import given, settings

from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.fit_cache import FitCache
from hetero_airflow.policies.core.list_scheduler import best_placement
from hetero_airflow.testing import a_cpu, a_device, a_lease, a_pending, a_worker, leased, snapshots


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_it_agrees_with_the_ranking(snapshot: Snapshot) -> None:
    index = WorkerIndex(Matcher(TightFitScorer()), snapshot)
    requests = [pending.request for pending in (*snapshot.pending, *snapshot.holders.values())]
    cache = FitCache(index)
    assert [cache.fits_anywhere(request) for request in requests] == [
        best_placement(index, request, None) is not None for request in requests
    ]


def test_a_share_finds_a_place_beside_another_and_a_core_beside_full_accelerators() -> None:
    worker = a_worker("a", (a_cpu(8), a_device("gpu-0"), a_device("gpu-1", index=1)))
    running = (
        (a_lease("whole", "a", **{"gpu-0": 1000}), a_pending("whole")),
        (a_lease("share", "a", **{"gpu-1": 700}), a_pending("share", "gpu:0.7")),
    )
    cache = FitCache(WorkerIndex(Matcher(TightFitScorer()), leased(Snapshot(1, (worker,)), *running)))
    texts = ("gpu:0.3", "gpu:0.4", "gpu", "cpu:8", "cpu:9")
    assert [cache.fits_anywhere(DeviceRequest.parse(text)) for text in texts] == [True, False, False, True, False]
