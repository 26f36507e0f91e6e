"""Where nothing is taken back within a class, predicted lengths order the queue."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given

from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, Interval
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.core.predicted_order import AGING, PredictedOrder, predicted_lengths_s
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased, snapshots

A100 = "nvidia/a100-sxm4-40gb"
HOUR = 3600.0


def known(spread: float = 1.1, **hours: float) -> Estimates:
    """Estimates of tasks by their lengths; runs of a task differ by a factor."""
    return Estimates(
        {("dag", name): {A100: 1.0} for name in hours},
        {("dag", name): Interval(h * HOUR / spread, h * HOUR, h * HOUR * spread) for name, h in hours.items()},
        finished_s=(HOUR,) * 20,
    )


def order(estimates: Estimates, *pending: PendingRequest) -> list[str]:
    return [request.id for request in PredictedOrder()(pending, Snapshot(1, estimates=estimates))]


def test_the_shorter_goes_first_unless_the_longer_has_waited_for_long():
    estimates = known(long=3.0, short=1.0)
    (long_s, short_s) = predicted_lengths_s(estimates).values()
    gap_s = AGING * (long_s - short_s)
    assert order(estimates, a_pending("long"), a_pending("short", at_s=gap_s - 1)) == ["short", "long"]
    assert order(estimates, a_pending("long"), a_pending("short", at_s=gap_s + 1)) == ["long", "short"]


def test_class_and_weight_come_first():
    requests = (a_pending("long", priority="high"), a_pending("short", at_s=1))
    heavy = replace(requests[0], weight=2, request=requests[1].request)
    for longer in (requests[0], heavy):
        assert order(known(long=3.0, short=1.0), longer, requests[1]) == ["long", "short"]


def test_a_task_without_a_history_counts_as_a_mean_run():
    requests = (a_pending("long"), a_pending("new", at_s=1), a_pending("short", at_s=2))
    assert order(known(long=3.0, short=0.1), *requests) == ["short", "new", "long"]


@pytest.mark.parametrize(("spread", "ordered"), [(1.1, ["short", "long"]), (30.0, ["long", "short"])])
def test_age_decides_where_runs_of_one_task_differ_as_much_as_tasks(spread, ordered):
    assert order(known(spread, long=3.0, short=1.0), a_pending("long"), a_pending("short", at_s=1)) == ordered


def test_unsure_lengths_are_shrunk_towards_the_typical_one():
    sure, unsure = (predicted_lengths_s(known(spread, a=1.0, b=4.0, c=16.0)) for spread in (1.1, 3.0))
    assert list(sure.values()) == pytest.approx([HOUR, 4 * HOUR, 16 * HOUR], rel=0.01)
    assert sure["dag", "a"] < unsure["dag", "a"] < unsure["dag", "b"] == pytest.approx(sure["dag", "b"])
    assert unsure["dag", "b"] < unsure["dag", "c"] < sure["dag", "c"]


@given(snapshot=snapshots())
def test_without_predictions_it_is_the_order_of_priority(snapshot):
    snapshot = replace(snapshot, estimates=NO_ESTIMATES)
    assert PredictedOrder()(snapshot.pending, snapshot) == by_priority(snapshot.pending, snapshot)


def test_an_order_that_has_seen_other_estimates_orders_as_a_new_one():
    used, requests = PredictedOrder(), (a_pending("a"), a_pending("b", at_s=1))
    for estimates in (known(a=3.0, b=1.0), known(a=1.0, b=3.0), Estimates(), known(a=3.0, b=1.0)):
        snapshot = Snapshot(1, estimates=estimates)
        assert used(requests, snapshot) == PredictedOrder()(requests, snapshot)


def a_full_worker(**fields) -> Snapshot:
    """A GPU that has just become free, for which a long and a short request wait."""
    worker = a_worker("a", (a_cpu(), a_device("GPU-0")))
    pending = (a_pending("long"), a_pending("short", at_s=1))
    return Snapshot(1, (worker,), pending=pending, estimates=known(long=3.0, short=1.0), **fields)


@pytest.mark.parametrize(
    ("fields", "first"),
    [({}, "short"), ({"can_preempt": True, "preempts_within_class": False}, "short"), ({"can_preempt": True}, "long")],
    ids=["no preemption", "none within a class", "within a class"],
)
def test_the_default_orders_by_length_where_nothing_is_taken_back_within_a_class(fields, first):
    assert [place.request_id for place in Assignment().decide(a_full_worker(**fields), EPOCH).places] == [first]


def test_it_takes_back_the_same_leases_as_priority():
    """The length decides who of a class goes first only where that takes back the same leases."""
    snapshot = a_full_worker(can_preempt=True, preempts_within_class=False)
    urgent = tuple(replace(p, request=a_pending("x", priority="urgent").request) for p in snapshot.pending)
    lease = a_lease("holder", "a", 2 * HOUR, **{"GPU-0": 1000})
    snapshot = leased(replace(snapshot, pending=urgent), (lease, a_pending("holder", at_s=-2 * HOUR)))
    plans = [policy.decide(snapshot, EPOCH + timedelta(hours=1)) for policy in (Assignment(), PriorityPolicy())]
    taken = [{(p.request_id, p.beneficiary) for p in plan.preemptions} for plan in plans]
    assert taken[0] == taken[1] == {("holder", "long")}
