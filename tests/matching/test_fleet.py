from __future__ import annotations

from hetero_airflow.matching.fleet import Fleet
from hetero_airflow.matching.matcher import Fit, Matcher
from hetero_airflow.matching.scoring import Tight
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import Snapshot, Usage
from hetero_airflow.testing import EPOCH, a_device, a_worker

GIB = 2**30


def an_alternative(device: object) -> Alternative:
    return DeviceRequest.parse(device).alternatives[0]


class CountingMatcher(Matcher):
    asked = 0

    def _outcome(self, *args: object) -> object:  # type: ignore[override]
        self.asked += 1
        return super()._outcome(*args)  # type: ignore[arg-type]


def test_equal_workers_are_asked_about_once() -> None:
    matcher = CountingMatcher(Tight())
    snapshot = Snapshot(1, tuple(a_worker(f"w{number:03}") for number in range(500)))
    fleet = Fleet(matcher, snapshot)
    assert fleet.ranking(an_alternative("gpu")).best()[0][0] == 0
    assert matcher.asked == 1
    worker, fit = fleet.ranking(an_alternative("gpu")).best()[0]
    fleet.take(worker, fit, EPOCH)
    fleet.ranking(an_alternative("gpu")).best()
    assert matcher.asked == 2


def test_an_outcome_is_remembered_by_the_next_decision() -> None:
    matcher = CountingMatcher(Tight())
    workers = tuple(a_worker(f"w{number}") for number in range(9))
    for sequence in range(3):
        usage = {(f"w{sequence}", "GPU-0"): Usage(1000, 40 * GIB)}
        assert Fleet(matcher, Snapshot(sequence, workers, usage)).ranking(an_alternative("gpu")).best() != []
    assert matcher.asked == 2


def test_forgetting_changes_no_answer() -> None:
    matcher = Matcher(Tight())
    snapshot = Snapshot(1, (a_worker("a"), a_worker("b")))
    before = Fleet(matcher, snapshot).ranking(an_alternative("gpu")).best(2)
    matcher._outcomes = 10**9
    matcher.trim()
    assert matcher._outcomes == 0
    assert Fleet(matcher, snapshot).ranking(an_alternative("gpu")).best(2) == before


def test_a_ranking_follows_what_is_placed() -> None:
    fleet = Fleet(Matcher(Tight()), Snapshot(1, (a_worker("a"), a_worker("b"))))
    taken: list[tuple[int, tuple[int, ...]]] = []
    while found := fleet.ranking(an_alternative("gpu")).best():
        worker, fit = found[0]
        taken.append((worker, fit.chosen))
        fleet.take(worker, fit, EPOCH)
    assert taken == [(0, (0,)), (0, (2,)), (1, (0,)), (1, (2,))]
    filtered = fleet.census(an_alternative("gpu")).filtered()
    assert {str(reason): workers for reason, workers in filtered.items()} == {
        "busy: asked 1 × gpu, found 0 of 2 free": 2
    }


def test_the_nearest_worker_is_the_one_with_most_of_what_is_asked() -> None:
    workers = (a_worker("a", (a_device(),)), a_worker("b"), a_worker("c"))
    fleet = Fleet(Matcher(Tight()), Snapshot(1, workers))
    nearest = fleet.census(an_alternative("gpu:4")).nearest()
    assert nearest is not None
    assert (nearest[0], str(nearest[1].reason)) == (1, "count: asked 4 × gpu, found 2")


def test_claims_name_the_devices_of_the_worker_that_was_chosen() -> None:
    workers = (a_worker("a", ()), a_worker("b", (a_device("GPU-x"), a_device("GPU-y", index=1))))
    fleet = Fleet(Matcher(Tight()), Snapshot(1, workers))
    [(worker, fit)] = fleet.ranking(an_alternative("gpu:2")).best()
    assert isinstance(fit, Fit)
    assert fleet.claims(worker, fit) == (
        Claim(device_id="GPU-x", milli=1000, memory_bytes=40 * GIB),
        Claim(device_id="GPU-y", milli=1000, memory_bytes=40 * GIB),
    )


def test_a_worker_that_changed_gets_another_shape() -> None:
    shapes = Shapes()
    one = shapes.seat(a_worker("a"))
    assert shapes.seat(a_worker("a", labels={"zone": "eu"})).shape is not one.shape
    assert shapes.seat(a_worker("a")).shape is one.shape
    swapped = shapes.seat(a_worker("b", (a_device("GPU-1", index=1), a_device("GPU-0"))))
    assert swapped.device_ids == ("GPU-0", "GPU-1")


def test_links_are_part_of_the_shape_ids_are_not() -> None:
    shapes = Shapes()

    def a_pair(first: str, second: str, *, linked: bool) -> object:
        peers = (second,) if linked else ()
        return shapes.seat(a_worker(first, (a_device(first, peers=peers), a_device(second, index=1)))).shape

    assert a_pair("x", "y", linked=True) is a_pair("u", "v", linked=True)
    assert a_pair("x", "y", linked=True) is not a_pair("u", "v", linked=False)


def test_what_was_leased_or_freed_since_the_last_decision_is_seen() -> None:
    matcher = Matcher(Tight())
    workers = tuple(a_worker(f"w{number}") for number in range(3))
    taken, full = Usage(1000, 40 * GIB), Usage(500, 20 * GIB)
    steps: list[dict[tuple[str, str], Usage]] = [
        {},
        {("w0", "GPU-0"): taken},
        {("w0", "GPU-0"): taken, ("w1", "GPU-0"): full},
        {("w1", "GPU-0"): full},
        {("w1", "GPU-0"): taken, ("w2", "GPU-1"): taken},
        {},
    ]
    for sequence, usage in enumerate(steps):
        present = workers if sequence != 4 else (*workers[:2], a_worker("w2", labels={"zone": "eu"}))
        snapshot = Snapshot(sequence, present, usage)
        warm, cold = Fleet(matcher, snapshot), Fleet(Matcher(Tight()), snapshot)
        assert [state.held for state in warm.states] == [state.held for state in cold.states]
        assert [state.shape.labels for state in warm.states] == [worker.labels for worker in present]
