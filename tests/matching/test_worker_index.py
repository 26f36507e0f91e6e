from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.matcher import Fit, Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.testing import EPOCH, a_device, a_worker

GIB = 2**30


def an_alternative(device: object) -> Alternative:
    return DeviceRequest.parse(device).alternatives[0]


class CountingMatcher(Matcher):
    match_calls = 0

    def _match(self, *args: object) -> object:  # type: ignore[override]
        self.match_calls += 1
        return super()._match(*args)  # type: ignore[arg-type]


def test_equal_workers_are_matched_once() -> None:
    matcher = CountingMatcher(TightFitScorer())
    snapshot = Snapshot(1, tuple(a_worker(f"w{number:03}") for number in range(500)))
    index = WorkerIndex(matcher, snapshot)
    assert index.ranking(an_alternative("gpu")).best()[0][0] == 0
    assert matcher.match_calls == 1
    worker, fit = index.ranking(an_alternative("gpu")).best()[0]
    index.take(worker, fit, EPOCH)
    index.ranking(an_alternative("gpu")).best()
    assert matcher.match_calls == 2


def test_a_result_is_remembered_by_the_next_decision() -> None:
    matcher = CountingMatcher(TightFitScorer())
    workers = tuple(a_worker(f"w{number}") for number in range(9))
    for sequence in range(3):
        usage = {(f"w{sequence}", "GPU-0"): DeviceUsage(1000, 40 * GIB)}
        assert WorkerIndex(matcher, Snapshot(sequence, workers, usage)).ranking(an_alternative("gpu")).best() != []
    assert matcher.match_calls == 2


def test_forgetting_changes_no_answer() -> None:
    matcher = Matcher(TightFitScorer())
    snapshot = Snapshot(1, (a_worker("a"), a_worker("b")))
    before = WorkerIndex(matcher, snapshot).ranking(an_alternative("gpu")).best(2)
    matcher._results = 10**9
    matcher.trim()
    assert matcher._results == 0
    assert WorkerIndex(matcher, snapshot).ranking(an_alternative("gpu")).best(2) == before


def test_a_ranking_follows_placements() -> None:
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, (a_worker("a"), a_worker("b"))))
    taken: list[tuple[int, tuple[int, ...]]] = []
    while best := index.ranking(an_alternative("gpu")).best():
        worker, fit = best[0]
        taken.append((worker, fit.chosen))
        index.take(worker, fit, EPOCH)
    assert taken == [(0, (0,)), (0, (2,)), (1, (0,)), (1, (2,))]
    filtered = index.rejection_counts(an_alternative("gpu")).filtered()
    assert {str(reason): workers for reason, workers in filtered.items()} == {
        "busy: asked 1 × gpu, found 0 of 2 free": 2
    }


def test_the_nearest_worker_has_most_of_the_requested_devices() -> None:
    workers = (a_worker("a", (a_device(),)), a_worker("b"), a_worker("c"))
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, workers))
    nearest = index.rejection_counts(an_alternative("gpu:4")).nearest()
    assert nearest is not None
    assert (nearest[0], str(nearest[1].reason)) == (1, "count: asked 4 × gpu, found 2")


def test_claims_name_the_devices_of_the_chosen_worker() -> None:
    workers = (a_worker("a", ()), a_worker("b", (a_device("GPU-x"), a_device("GPU-y", index=1))))
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, workers))
    [(worker, fit)] = index.ranking(an_alternative("gpu:2")).best()
    assert isinstance(fit, Fit)
    assert index.claims(worker, fit) == (
        Claim(device_id="GPU-x", share_milli=1000, memory_bytes=40 * GIB),
        Claim(device_id="GPU-y", share_milli=1000, memory_bytes=40 * GIB),
    )


def test_a_worker_that_changed_gets_another_shape() -> None:
    shapes = Shapes()
    entry = shapes.entry(a_worker("a"))
    assert shapes.entry(a_worker("a", labels={"zone": "eu"})).shape is not entry.shape
    assert shapes.entry(a_worker("a")).shape is entry.shape
    swapped = shapes.entry(a_worker("b", (a_device("GPU-1", index=1), a_device("GPU-0"))))
    assert swapped.device_ids == ("GPU-0", "GPU-1")


def test_links_are_part_of_the_shape_ids_are_not() -> None:
    shapes = Shapes()

    def a_pair(first: str, second: str, *, linked: bool) -> object:
        peers = (second,) if linked else ()
        return shapes.entry(a_worker(first, (a_device(first, peers=peers), a_device(second, index=1)))).shape

    assert a_pair("x", "y", linked=True) is a_pair("u", "v", linked=True)
    assert a_pair("x", "y", linked=True) is not a_pair("u", "v", linked=False)


def test_an_update_takes_in_new_and_ended_leases() -> None:
    matcher = Matcher(TightFitScorer())
    workers = tuple(a_worker(f"w{number}") for number in range(3))
    taken, full = DeviceUsage(1000, 40 * GIB), DeviceUsage(500, 20 * GIB)
    steps: list[dict[tuple[str, str], DeviceUsage]] = [
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
        warm, cold = WorkerIndex(matcher, snapshot), WorkerIndex(Matcher(TightFitScorer()), snapshot)
        assert [state.held for state in warm.states] == [state.held for state in cold.states]
        assert [state.shape.labels for state in warm.states] == [worker.labels for worker in present]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_updated_index_answers_like_a_new_one(data: st.DataObject) -> None:
    matcher, alternatives = (
        Matcher(TightFitScorer()),
        [an_alternative(text) for text in ("gpu", "gpu:2", "gpu:0.5", "a100:4", "cpu:3")],
    )
    workers = tuple(a_worker(f"w{number}") for number in range(5))
    used = st.dictionaries(
        st.tuples(st.sampled_from([worker.id for worker in workers]), st.sampled_from(["GPU-0", "GPU-1"])),
        st.sampled_from([DeviceUsage(500, 20 * GIB), DeviceUsage(1000, 40 * GIB)]),
    )
    warm = WorkerIndex(matcher, Snapshot(0, workers))
    for sequence in range(data.draw(st.integers(1, 6))):
        present = data.draw(st.sampled_from([workers, workers, workers[::2], (*workers[:4], a_worker("w4", ()))]))
        snapshot = Snapshot(sequence, present, data.draw(used))
        warm.update(snapshot)
        cold = WorkerIndex(Matcher(TightFitScorer()), snapshot)
        for _ in range(data.draw(st.integers(0, 6))):
            alternative = data.draw(st.sampled_from(alternatives))
            reservations = [
                index.reserved_capacity_for((alternatives[0],)) if sequence % 2 else None for index in (warm, cold)
            ]
            answers = []
            for index, reserved in zip((warm, cold), reservations, strict=True):
                best = index.ranking(alternative, reserved).best(3)
                counts = index.rejection_counts(alternative, reserved)
                answers.append(
                    (
                        best,
                        index.ranking(alternative, reserved).first(),
                        counts.filtered(),
                        counts.nearest(),
                    )
                )
                if best:
                    index.take(*best[0], EPOCH)
            assert answers[0] == answers[1]


def test_equal_reservations_are_one_object_with_their_rankings() -> None:
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, (a_worker("a"), a_worker("b"))))
    reserved = index.reserved_capacity_for((an_alternative("gpu"),))
    assert index.reserved_capacity_for((an_alternative("gpu:2"),)) is reserved
    assert index.reserved_capacity_for((an_alternative("cpu:2"),)) is not reserved
    alternative = an_alternative("gpu:0.5")
    ranking = index.ranking(alternative, reserved)
    assert (ranking.first(), index.ranking(alternative).first() is not None) == (None, True)
    index.update(Snapshot(2, (a_worker("a"), a_worker("b")), {("a", "GPU-0"): DeviceUsage(500, 20 * GIB)}))
    assert index.ranking(alternative, index.reserved_capacity_for((an_alternative("gpu"),))).first() is None


def test_a_heap_does_not_grow_with_the_number_of_decisions() -> None:
    workers = tuple(a_worker(f"w{number}") for number in range(4))
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(0, workers))
    for sequence in range(2000):
        usage = {(f"w{sequence % 4}", "GPU-0"): DeviceUsage(1000, 40 * GIB)}
        index.update(Snapshot(sequence, workers, usage))
        assert index.ranking(an_alternative("gpu")).first() is not None
    assert len(index.ranking(an_alternative("gpu"))._heap) < 100
    assert sum(len(group.heap) for group in index.groups.values()) < 300
    assert len(index.changed_since(index.version - 4)) == 4
