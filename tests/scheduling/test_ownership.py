from __future__ import annotations

from dataclasses import replace

from hetero_airflow.model.plan import Account, Place, Plan, Preempt, Reason, ReasonCode, Wait
from hetero_airflow.scheduling.ownership import owned_decisions, with_starter
from hetero_airflow.testing import EPOCH, a_place

BUSY = Reason(ReasonCode.BUSY, "1 × gpu", "0 of 2 free")
ACCOUNT = Account("test", "as the test says")


def a_wait(request_id: str, position: int) -> Wait:
    return Wait(request_id, position, BUSY, ACCOUNT)


def test_a_plan_with_enough_slots_and_only_owned_requests_is_unchanged() -> None:
    plan = Plan((a_place("a", **{"GPU-0": 1000}), a_wait("b", 1)))
    assert owned_decisions(plan, {"a", "b"}, None, {}) == plan
    assert owned_decisions(plan, {"a", "b"}, 1, {}) == plan


def test_requests_of_other_schedulers_are_left_out_and_count_in_the_queue() -> None:
    plan = Plan((a_wait("a", 1), a_wait("b", 2)))
    assert owned_decisions(plan, {"b"}, None, {}).decisions == (a_wait("b", 2),)


def test_placements_beyond_the_slots_wait_in_their_order() -> None:
    places = [a_place(name, **{"GPU-0": 100}) for name in "abc"]
    decisions = owned_decisions(Plan((places[0], a_wait("x", 1), *places[1:])), {*"abcx"}, 1, {}).decisions
    assert [type(decision) for decision in decisions] == [Place, Wait, Wait, Wait]
    assert [(d.request_id, d.position, d.reason.code) for d in decisions if isinstance(d, Wait)] == [
        ("x", 1, ReasonCode.BUSY),
        ("b", 2, ReasonCode.SLOTS),
        ("c", 3, ReasonCode.SLOTS),
    ]


def test_while_nothing_can_start_all_placements_wait_for_that_reason_and_nothing_is_preempted() -> None:
    obstacle = Reason(ReasonCode.API_SERVER, "an answer of Airflow's API server", "no answer since 12:00")
    places = [a_place(name, **{"GPU-0": 100}) for name in "abc"]
    plan = Plan((places[0], a_wait("x", 1), *places[1:]), preemptions=(Preempt("lease", 1, "y", "x", "a test"),))
    waiting = owned_decisions(plan, {*"abx"}, None, {}, obstacle)
    assert [(d.request_id, d.position, d.reason) for d in waiting.decisions if isinstance(d, Wait)] == [
        ("a", 1, obstacle), ("x", 2, BUSY), ("b", 3, obstacle),
    ]  # fmt: skip
    assert (waiting.places, waiting.preemptions) == ((), ())


def test_placements_of_other_schedulers_take_no_slot() -> None:
    plan = Plan(tuple(a_place(name, **{"GPU-0": 100}) for name in "ab"))
    assert owned_decisions(plan, {"b"}, 1, {}).decisions == plan.decisions[1:]


def outcomes(plan: Plan, ours: set[str], slots: int | None, gangs: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (d.request_id, "place" if isinstance(d, Place) else str(d.reason.code) if isinstance(d, Wait) else "refuse")
        for d in owned_decisions(plan, ours, slots, gangs).decisions
    ]


def test_a_gang_gets_slots_for_all_its_members_or_none() -> None:
    plan = Plan(tuple(a_place(name, **{"GPU-0": 100}) for name in ("a", "g0", "g1", "g2", "b", "c")))
    gangs = {"g0": "g", "g1": "g", "g2": "g"}
    waiting = [("g0", "slots"), ("g1", "slots"), ("g2", "slots")]
    assert outcomes(plan, {*gangs, *"abc"}, 3, gangs) == [
        ("a", "place"), *waiting, ("b", "place"), ("c", "place"),
    ]  # fmt: skip
    assert outcomes(plan, {*gangs, *"abc"}, 2, gangs) == [("a", "place"), *waiting, ("b", "place"), ("c", "slots")]
    placed = [(name, "place") for name in ("a", "g0", "g1", "g2")]
    assert outcomes(plan, {*gangs, *"abc"}, 4, gangs) == [*placed, ("b", "slots"), ("c", "slots")]


def test_the_scheduler_with_the_first_member_places_a_gang_of_several_schedulers() -> None:
    plan = Plan(tuple(a_place(name, **{"GPU-0": 100}) for name in ("g0", "g1", "b", "c")))
    gangs = {"g0": "g", "g1": "g"}
    assert outcomes(plan, {"g0", "b"}, None, gangs) == [("g0", "place"), ("g1", "place"), ("b", "place")]
    assert outcomes(plan, {"g1", "c"}, None, gangs) == [("g1", "gang"), ("c", "place")]
    assert owned_decisions(plan, {"c", "g1"}, None, gangs).decisions[0].account == replace(
        ACCOUNT, summary="placed, but another scheduler is to place its gang"
    )


def test_a_gang_of_several_schedulers_needs_slots_for_the_owned_members_only() -> None:
    plan = Plan(tuple(a_place(name, **{"GPU-0": 100}) for name in ("g0", "g1", "g2")))
    gangs = dict.fromkeys(("g0", "g1", "g2"), "g")
    assert outcomes(plan, {"g0", "g2"}, 2, gangs) == [("g0", "place"), ("g1", "place"), ("g2", "place")]
    assert outcomes(plan, {"g0", "g2"}, 1, gangs) == [("g0", "slots"), ("g2", "slots")]


def test_preemptions_and_the_time_of_the_next_decision_are_kept() -> None:
    plan = Plan((a_wait("a", 1),), (Preempt("l", 1, "r", None, "room"),), EPOCH)
    assert owned_decisions(plan, {"a"}, None, {}) == plan


def test_a_scheduler_starts_what_waits_with_it_and_leaves_the_rest_of_a_gang_to_others() -> None:
    places = [a_place(name, **{"GPU-0": 100}) for name in "ab"]
    plan = Plan((*places, a_wait("a", 1)))
    assert with_starter(plan, {"a"}, "me") == Plan((places[0]._replace(starter="me"), places[1], a_wait("a", 1)))
    assert with_starter(Plan((a_wait("a", 1),)), {"a"}, "me") == Plan((a_wait("a", 1),))
