"""Of equally good hosts, a request gets the one that has most of its data."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.accounts import account_text
from hetero_airflow.matching.scoring import own_terms
from hetero_airflow.model.host_data import held_name
from hetero_airflow.model.plan import Place
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker, snapshots
from tests.policies.every_policy import make, rows

TRAIN, LABELS = "s3://lake/train/", "s3://lake/labels.csv"
GIB = 2**30


def host(name, *devices):
    return a_worker(name, (a_cpu(), *(devices or (a_device(f"{name}-0"), a_device(f"{name}-1")))))


def held(**bytes_by_host):
    """Host → bytes of (`TRAIN`, `LABELS`) there."""
    return {
        name: {held_name(url): size for url, size in zip((TRAIN, LABELS), sizes, strict=True) if size}
        for name, sizes in bytes_by_host.items()
    }


def places(snapshot):
    plan = Fifo().decide(snapshot, EPOCH)
    return {place.request_id: place for place in plan.decisions if isinstance(place, Place)}


def snapshot(*pending, **bytes_by_host):
    return Snapshot(1, tuple(map(host, "abc")), {}, pending, held_data=held(**bytes_by_host))


def chosen(*pending, **bytes_by_host):
    return {id_: place.worker_id for id_, place in places(snapshot(*pending, **bytes_by_host)).items()}


def test_a_request_gets_the_host_that_has_most_of_its_data():
    both, labels = a_pending("both", "gpu:2", data=[TRAIN, LABELS]), a_pending("labels", "gpu:2", data=LABELS)
    assert chosen(both, b=(GIB, 0), c=(GIB, 10)) == {"both": "c"}
    assert chosen(both, b=(GIB, 10), c=(GIB, 10)) == {"both": "b"}
    assert chosen(labels, b=(GIB, 0), c=(0, 10)) == {"labels": "c"}
    assert chosen(a_pending("none", "gpu:2"), c=(GIB, 10)) == {"none": "a"}
    assert chosen(both, unknown=(GIB, 10)) == {"both": "a"}


@rows
def test_every_policy_prefers_the_warm_host(name):
    queue = [a_pending(f"r{number}", "gpu:2", at_s=number, data=TRAIN) for number in range(2)]
    plan = make(name).decide(snapshot(*queue, c=(GIB, 0)), EPOCH)
    assert [(place.request_id, place.worker_id) for place in plan.decisions] == [("r0", "c"), ("r1", "a")]


def test_an_object_in_a_requested_folder_counts_once():
    nested = {"b": {held_name(TRAIN): 10, held_name(f"{TRAIN}x"): 10}, "c": {held_name(TRAIN): 15}}
    given = replace(snapshot(a_pending("r", "gpu:2", data=[f"{TRAIN}x", TRAIN])), held_data=nested)
    assert places(given)["r"].worker_id == "c"


def test_the_first_request_gets_the_warm_host_and_the_next_one_does_not_wait_for_it():
    queue = [a_pending(name, "gpu:2", at_s=at_s, data=TRAIN) for at_s, name in enumerate(("first", "second"))]
    assert chosen(*queue, c=(GIB, 0)) == {"first": "c", "second": "a"}


def test_a_better_device_is_better_without_the_data():
    pending = a_pending("r", "gpu", data=TRAIN)
    workers = (host("a", a_device("a-0", "t4", "16GiB")), host("b"))
    assert places(Snapshot(1, workers, {}, (pending,)))["r"].worker_id == "a"
    assert places(Snapshot(1, workers, {}, (pending,), held_data=held(b=(GIB, 0))))["r"].worker_id == "a"


def test_how_full_a_host_becomes_gives_way_to_the_data():
    pending = a_pending("r", "gpu", data=TRAIN)
    workers = (host("a", a_device("a-0")), host("b"))
    assert places(Snapshot(1, workers, {}, (pending,)))["r"].worker_id == "a"
    assert places(Snapshot(1, workers, {}, (pending,), held_data=held(b=(GIB, 0))))["r"].worker_id == "b"


def test_a_folder_needs_no_slash_at_its_end():
    placed = places(snapshot(a_pending("r", "gpu:2", data=TRAIN.rstrip("/")), b=(GIB, 0)))["r"]
    assert placed.worker_id == "b"


def test_a_preferred_alternative_stays_preferred():
    workers = (host("a", a_device("a-0")), host("b", a_device("b-0", "h100-sxm5-80gb", "80GiB")))
    pending = a_pending("r", ["h100", "a100"], data=TRAIN)
    assert places(Snapshot(1, workers, {}, (pending,), held_data=held(a=(GIB, 0))))["r"].worker_id == "b"


def test_the_explanation_says_how_much_of_the_data_is_there():
    placed = places(snapshot(a_pending("r", "gpu:2", data=[TRAIN, LABELS]), b=(GIB, 0)))["r"]
    text = account_text(placed.account)
    assert text.splitlines()[0].endswith("; its host has 1GiB of the data in its cache")
    assert "chosen, as good: b " in text
    cold = places(snapshot(a_pending("r", "gpu:2", data=TRAIN)))["r"]
    assert "data" not in account_text(cold.account)


@given(snapshots(), st.data())
def test_data_changes_only_the_host_of_an_equally_good_placement(given_snapshot, data):
    """The same requests are placed, in the same order and as well, until the first that got another host."""
    pending = tuple(replace(p, request=p.request.with_fields(data=(TRAIN,))) for p in given_snapshot.pending)
    cold = replace(given_snapshot, pending=pending)
    sizes = {worker.id: data.draw(st.integers(0, 3)) for worker in cold.workers}
    warm = replace(cold, held_data={id_: {held_name(TRAIN): size} for id_, size in sizes.items()})
    before, after = (PriorityPolicy().decide(given, EPOCH).decisions for given in (cold, warm))
    assert after == PriorityPolicy().decide(warm, EPOCH).decisions
    assert {decision.request_id for decision in before} == {decision.request_id for decision in after}
    for first, second in zip(before, after, strict=True):
        assert (type(first), first.request_id) == (type(second), second.request_id)
        if isinstance(first, Place) and isinstance(second, Place) and first.worker_id != second.worker_id:
            assert first.alternative == second.alternative
            assert own_terms(first.account.chosen.terms) == own_terms(second.account.chosen.terms)
            assert sizes[second.worker_id] > sizes[first.worker_id]
            return
