"""Which requests wait for better devices while others are free, for how long, and what they say."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Place, Plan, ReasonCode, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.core.run_ends import ENOUGH_RUNS
from hetero_airflow.testing import EPOCH, a_device, a_lease, a_pending, a_worker, leased

HOUR = 3600.0
V100, P100, K80 = (f"nvidia/{model}" for model in ("v100", "p100", "k80"))
SPEEDS = {V100: 1.0, P100: 0.5, K80: 0.1}


def host(model: str, devices: int = 1):
    return a_worker(model, tuple(a_device(f"{model}-{n}", model, "16GiB", index=n) for n in range(devices)))


def asks(id: str = "asks", at_s: float = 0.0, **fields: object) -> PendingRequest:
    return a_pending(id, {"v100", "k80"}, at_s, task_id="train", **fields)  # type: ignore[arg-type]


def decide(
    *pending: PendingRequest,
    left_s: float,
    now: datetime = EPOCH,
    ended: int = ENOUGH_RUNS,
    speeds: Mapping[str, float] = SPEEDS,
    models: tuple[str, ...] = ("v100", "k80"),
    **fields: object,
) -> Plan:
    """The plan for a cluster with one device of each model, the V100 in use for so many more seconds.

    Runs take an hour in the mean.
    """
    estimates = Estimates(
        {("dag", "train"): speeds, ("dag", "holds"): SPEEDS},
        {("dag", "holds"): Interval(*[HOUR + left_s] * 3)},
        finished_s=(HOUR,) * ended,
    )
    lease = a_lease("holds", "v100", HOUR, **{"v100-0": 1000})
    base = Snapshot(1, tuple(map(host, models)), pending=pending, estimates=estimates, **fields)  # type: ignore[arg-type]
    return Assignment().decide(leased(base, (lease, a_pending("holds", "v100", task_id="holds"))), now)


def where(plan: Plan) -> dict[str, str | ReasonCode]:
    return {
        decision.request_id: decision.worker_id if isinstance(decision, Place) else decision.reason.code
        for decision in plan.decisions
    }


@pytest.mark.parametrize(
    "engine", [{}, {"can_preempt": True, "preempts_within_class": False}], ids=["no preemption", "none within a class"]
)
def test_a_request_waits_where_that_costs_less_than_the_slower_run(engine):
    """Ten hours on the K80 against an hour and the wait."""
    assert where(decide(asks(), left_s=2 * HOUR, **engine)) == {"asks": ReasonCode.SOONER}
    assert where(decide(asks(), left_s=30 * HOUR, **engine)) == {"asks": "k80"}
    quick = {**SPEEDS, K80: 0.9}
    assert where(decide(asks(), left_s=2 * HOUR, speeds=quick, **engine)) == {"asks": "k80"}


def test_a_request_of_a_higher_class_than_one_that_runs_takes_what_is_free_and_the_others_wait_on():
    plan = decide(
        asks("urgent", priority="urgent"),
        replace(asks("patient"), request=a_pending("x", {"v100", "p100"}).request),
        left_s=2 * HOUR,
        models=("v100", "k80", "p100"),
        speeds={V100: 1.0, P100: 0.1, K80: 0.1},
        can_preempt=True,
        preempts_within_class=False,
    )
    assert where(plan) == {"urgent": "k80", "patient": ReasonCode.SOONER}
    assert plan.preemptions == ()


def test_it_says_for_what_it_waits_and_until_when():
    plan = decide(asks(), left_s=2 * HOUR)
    (wait,) = plan.decisions
    assert isinstance(wait, Wait)
    assert wait.reason.is_transient
    assert str(wait.reason) == (
        "sooner: asked 1 × nvidia/k80 | 1 × nvidia/v100, found that it probably ends sooner if it waits for "
        "nvidia/v100 than on nvidia/k80; after 2026-01-02 12:00:00 UTC it takes any of them"
    )
    assert plan.until == wait.reason.until == EPOCH + timedelta(hours=36)  # it loses nine hours


@pytest.mark.parametrize(
    ("fields", "request_fields"),
    [({"patience": False}, {}), ({}, {"patience": False}), ({"ended": ENOUGH_RUNS - 1}, {})],
    ids=["setting", "request", "no history"],
)
def test_it_does_not_wait(fields, request_fields):
    assert where(decide(asks(**request_fields), left_s=2 * HOUR, **fields)) == {"asks": "k80"}


def test_a_task_of_unknown_speed_does_not_wait():
    assert where(decide(replace(asks(), task_id="new"), left_s=HOUR)) == {"asks": "k80"}


@pytest.mark.parametrize(("wait_timeout", "patience_s"), [(None, 36 * HOUR), ("4h", 2 * HOUR)])
def test_patience_ends(wait_timeout, patience_s):
    fields = {} if wait_timeout is None else {"wait_timeout": wait_timeout}
    until = EPOCH + timedelta(seconds=patience_s)
    before, after = until - timedelta(seconds=1), until
    overdue = {"left_s": 2 * HOUR + patience_s}
    assert where(decide(asks(**fields), now=before, **overdue)) == {"asks": ReasonCode.SOONER}
    assert where(decide(asks(**fields), now=after, **overdue)) == {"asks": "k80"}


def test_those_ahead_count():
    """The first waits for the V100; for the others it is free later and later, so one of them takes the K80."""
    queue = [asks(f"r{n}", n) for n in range(12)]
    found = where(decide(*queue, left_s=HOUR, now=EPOCH + timedelta(seconds=12)))
    assert [name for name, place in found.items() if place == "k80"] == ["r5"]
    assert {found[f"r{n}"] for n in range(5)} == {ReasonCode.SOONER}


def test_it_takes_a_device_that_is_nearly_as_good_meanwhile():
    plan = decide(
        replace(asks(), request=a_pending("x", {"v100", "p100", "k80"}).request), left_s=2 * HOUR,
        models=("v100", "k80", "p100"),
    )  # fmt: skip
    assert where(plan) == {"asks": "p100"}


def test_a_request_that_prefers_an_alternative_or_shares_is_placed_at_once():
    ordered = a_pending("ordered", ["v100", "k80"], task_id="train")
    share = a_pending("share", {"v100:0.5", "k80:0.5"}, 1, task_id="train")
    assert where(decide(ordered, left_s=2 * HOUR)) == {"ordered": "k80"}
    assert where(decide(share, left_s=2 * HOUR)) == {"share": "k80"}
