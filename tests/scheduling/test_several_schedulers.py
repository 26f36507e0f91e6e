"""What a scheduler decides beside others: its own requests, and those of schedulers that do not respond."""

from dataclasses import replace
from datetime import timedelta

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Place, Plan, Preempt, Reason, ReasonCode, Wait
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.ownership import owned_decisions, with_starter
from hetero_airflow.scheduling.unresponsive_schedulers import START_TIMEOUT, SUSPENSION, UnresponsiveSchedulers
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_pending, a_place, a_worker

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


NOW = EPOCH + timedelta(minutes=5)


class OneOfTwo(FakeEngine):
    """A scheduler that owns the requests with its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def is_ours(self, request_id: str) -> bool:
        return request_id.startswith(self.name)


def a_store_where(*requests: str) -> MemoryStore:
    """A worker with two GPUs, and requests that wait for both of them, in this order."""
    store = MemoryStore()
    waiting = [RequestSubmitted(a_pending(name, "gpu:2", at_s=at)) for at, name in enumerate(requests)]
    store.record([WorkerSeen(a_worker()), *waiting], EPOCH)
    return store


def test_devices_go_to_the_next_request_after_the_start_timeout() -> None:
    store, engine = a_store_where("dead", "alive"), OneOfTwo("alive")
    cycle = Cycle(store, PriorityPolicy(), engine, 60)
    for seconds in (0, 1, 14):
        assert not cycle.run(NOW + timedelta(seconds=seconds)).dispatched, "it is not its turn"
    cycle.run(NOW + START_TIMEOUT)
    (lease,) = cycle.run(NOW + START_TIMEOUT).dispatched
    assert lease.request_id == "alive"
    assert [request.id for request in store.snapshot().pending] == ["dead"], "it keeps its place in the queue"


def test_an_adopted_request_keeps_its_place() -> None:
    store, engine = a_store_where("dead"), OneOfTwo("alive")
    cycle = Cycle(store, PriorityPolicy(), engine, 60)
    cycle.run(NOW)
    cycle.run(NOW + START_TIMEOUT)
    engine.name = ""
    store.record([RequestSubmitted(a_pending("alive", "gpu:2", at_s=1))], EPOCH)
    (lease,) = cycle.run(NOW + START_TIMEOUT).dispatched
    assert lease.request_id == "dead"


def test_a_request_that_starts_in_time_is_never_suspended() -> None:
    store, ours, theirs = a_store_where("b", "a"), OneOfTwo("a"), OneOfTwo("b")
    cycle = Cycle(store, PriorityPolicy(), ours, 60)
    cycle.run(NOW)
    Cycle(store, PriorityPolicy(), theirs, 60).run(NOW + timedelta(seconds=10))
    assert not cycle.run(NOW + timedelta(seconds=60)).dispatched
    assert [lease.request_id for lease in theirs.dispatched] == ["b"]


def test_a_gang_is_suspended_as_a_whole_and_withdrawn_requests_are_forgotten() -> None:
    unresponsive, store = UnresponsiveSchedulers(), MemoryStore()
    members = [a_pending(f"g{n}", gang="g", gang_size=2) for n in range(2)]
    store.record([RequestSubmitted(request) for request in (*members, a_pending("single"))], EPOCH)
    snapshot = store.snapshot()
    assert unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT) is snapshot
    unresponsive.observe(Plan((a_place("g0"),)), frozenset(), NOW)
    plan = unresponsive.observe(Plan((a_place("g0"),)), frozenset(), NOW + START_TIMEOUT)
    assert plan.until == NOW + START_TIMEOUT
    seen = unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT)
    assert [request.id for request in seen.pending] == ["single"]
    assert unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT).pending is seen.pending, (
        "policies rely on it"
    )
    store.record([RequestWithdrawn("g0", "cleared")], EPOCH)
    seen = unresponsive.without_suspended(store.snapshot(), frozenset(), NOW + START_TIMEOUT)
    assert [request.id for request in seen.pending] == ["g1", "single"]


def test_a_plan_holds_until_the_first_start_timeout() -> None:
    unresponsive = UnresponsiveSchedulers()
    assert unresponsive.observe(Plan(), frozenset(), NOW).until is None
    both = Plan((a_place("x"), a_place("y")))
    assert unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW).until == NOW + START_TIMEOUT
    assert unresponsive.observe(both, frozenset("y"), NOW + timedelta(seconds=5)).until == NOW + START_TIMEOUT
    earlier = Plan(both.places, until=NOW + timedelta(seconds=7))
    assert unresponsive.observe(earlier, frozenset(), NOW + timedelta(seconds=6)).until == NOW + timedelta(seconds=7)


def test_a_suspension_ends() -> None:
    store, engine = a_store_where("slow", "alive"), OneOfTwo("alive")
    cycle = Cycle(store, PriorityPolicy(), engine, 600)
    cycle.run(NOW)
    cycle.run(NOW + START_TIMEOUT)
    for number, now in ((2, NOW + START_TIMEOUT), (3, NOW + START_TIMEOUT + SUSPENSION / 2)):
        (lease,) = cycle.run(now).dispatched
        store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], now)
        store.record([RequestSubmitted(a_pending(f"alive-{number}", "gpu:2", at_s=number))], now)
    assert not cycle.run(NOW + START_TIMEOUT + SUSPENSION).dispatched, "the devices are kept for it again"


def test_a_gang_of_two_schedulers_starts_although_both_suspended_it() -> None:
    """The owner of the first member has died, and the scheduler that adopted it does not place the gang."""
    store, first, second = MemoryStore(), OneOfTwo("a"), OneOfTwo("b")
    store.record([WorkerSeen(a_worker())], EPOCH)
    gang = [a_pending(name, "gpu", gang="g", gang_size=2, at_s=n) for n, name in enumerate("ab")]
    store.record([RequestSubmitted(member) for member in gang], EPOCH)
    blocked = Cycle(store, PriorityPolicy(), second, 600)
    for seconds in (0, 15, 16):
        blocked.run(NOW + timedelta(seconds=seconds))
    assert [request.id for request in store.snapshot().pending] == ["a", "b"], "its own member is not the first"
    Cycle(store, PriorityPolicy(), first, 600).run(NOW + timedelta(seconds=20))
    assert store.snapshot().pending == ()


def test_a_plan_holds_until_the_first_suspension_ends() -> None:
    unresponsive = UnresponsiveSchedulers()
    unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW)
    unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW + START_TIMEOUT)
    assert unresponsive.observe(Plan(), frozenset(), NOW + START_TIMEOUT).until == NOW + START_TIMEOUT + SUSPENSION
