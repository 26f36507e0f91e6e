"""Which leases are taken back for which request, and what is withheld meanwhile.

What a preemption plan remembers of unchanged workers changes no decision.
"""

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.snapshot import MIN_RUN_S, PendingRequest, Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption, _ByWorker
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_lease, a_pending, a_worker, leased
from tests.benchmarks.baselines import Las
from tests.policies.plans import codes, victims

WHOLE = 1000


def four(worker_id: str = "worker-a"):
    return a_worker(worker_id, (a_cpu(), *(a_device(f"GPU-{n}", index=n) for n in range(4))))


def held(id: str, *gpus: int, priority: str = "low", worker_id: str = "worker-a", ago_s: float = 3600, **fields):
    """A request that holds whole GPUs of a worker, and its lease."""
    lease = a_lease(id, worker_id, ago_s, **{f"GPU-{n}": WHOLE for n in gpus})
    changes = {name: fields.pop(name) for name in list(fields) if name in Lease.model_fields}
    return lease.model_copy(update=changes), a_pending(id, f"gpu:{len(gpus)}", -ago_s, priority=priority, **fields)


def snapshot(*held_ones, workers=None, pending: tuple[PendingRequest, ...] = (), can_preempt: bool = True) -> Snapshot:
    base = Snapshot(1, workers or (four(),), pending=pending, can_preempt=can_preempt)
    return leased(base, *held_ones)


def urgent(id: str = "urgent", device: str = "gpu", **fields) -> PendingRequest:
    return a_pending(id, device, priority="urgent", **fields)


def test_a_request_that_fits_preempts_nothing():
    plan = PriorityPolicy().decide(snapshot(held("a", 0, 1, 2), pending=(urgent(),)), EPOCH)
    assert (victims(plan), codes(plan)) == ({}, {"urgent": "place"})


def test_the_least_device_seconds_lost_decide_among_equals():
    running = (held("old", 0, ago_s=9000), held("young", 1, ago_s=1000), held("big", 2, 3, ago_s=700))
    plan = PriorityPolicy().decide(snapshot(*running, pending=(urgent(),)), EPOCH)
    assert (victims(plan), codes(plan)) == ({"young": "urgent"}, {"urgent": ReasonCode.PREEMPTING})
    assert [(preemption.lease_id, preemption.token) for preemption in plan.preemptions] == [("young.1", 1)]


def test_a_preemption_loses_the_work_since_the_last_checkpoint():
    saved = EPOCH - timedelta(seconds=10)
    running = (held("saved", 0, 1, ago_s=9000, saved_at=saved), held("young", 2, 3, ago_s=1000))
    assert victims(PriorityPolicy().decide(snapshot(*running, pending=(urgent(),)), EPOCH)) == {"saved": "urgent"}


def test_a_lower_class_is_preempted_before_a_smaller_loss():
    running = (held("low", 0, 1, ago_s=9000), held("medium", 2, 3, priority="medium", ago_s=600))
    assert victims(PriorityPolicy().decide(snapshot(*running, pending=(urgent(),)), EPOCH)) == {"low": "urgent"}


def test_no_more_leases_are_taken_back_than_needed():
    running = (held("a", 0, ago_s=500), held("b", 1, ago_s=600), held("c", 2, 3, ago_s=700))
    plan = PriorityPolicy().decide(snapshot(*running, pending=(urgent(device="gpu:2"),)), EPOCH)
    assert victims(plan) == {"a": "urgent", "b": "urgent"}
    running = (held("a", 0, ago_s=5000), held("b", 1, ago_s=6000), held("c", 2, 3, ago_s=700))
    assert victims(PriorityPolicy().decide(snapshot(*running, pending=(urgent(device="gpu:2"),)), EPOCH)) == {
        "c": "urgent"
    }


def test_free_devices_count_and_are_withheld():
    later = a_pending("later", "gpu", at_s=1)
    plan = PriorityPolicy().decide(snapshot(held("a", 0, 1, 2), pending=(urgent(device="gpu:4"), later)), EPOCH)
    assert victims(plan) == {"a": "urgent"}
    assert codes(plan) == {"urgent": ReasonCode.PREEMPTING, "later": ReasonCode.BUSY}


@pytest.mark.parametrize("holder", ["urgent", "high"])
def test_equal_and_higher_classes_keep_their_devices(holder: str):
    pending = (a_pending("high", "gpu", priority="high"),)
    plan = PriorityPolicy().decide(snapshot(held("a", 0, 1, 2, 3, priority=holder), pending=pending), EPOCH)
    assert (victims(plan), codes(plan)) == ({}, {"high": ReasonCode.BUSY})


def test_nothing_is_preempted_where_the_engine_can_not():
    running = held("a", 0, 1, 2, 3)
    plan = PriorityPolicy().decide(snapshot(running, pending=(urgent(),), can_preempt=False), EPOCH)
    assert (victims(plan), codes(plan)) == ({}, {"urgent": ReasonCode.BUSY})


@pytest.mark.parametrize("state", [LeaseState.PREEMPTED, LeaseState.EXPIRED])
def test_an_ending_or_expired_lease_is_not_preempted_again(state: LeaseState):
    running = held("a", 0, 1, 2, 3, state=state)
    plan = PriorityPolicy().decide(snapshot(running, pending=(urgent(),)), EPOCH)
    assert victims(plan) == {}
    is_awaited = state is LeaseState.PREEMPTED
    assert codes(plan) == {"urgent": ReasonCode.PREEMPTING if is_awaited else ReasonCode.BUSY}


def test_ending_leases_serve_the_first_request_and_only_the_rest_is_preempted():
    running = (held("going", 0, 1, state=LeaseState.PREEMPTED), held("a", 2), held("b", 3, ago_s=900))
    pending = tuple(urgent(f"u{n}", at_s=n) for n in range(3))
    plan = PriorityPolicy().decide(snapshot(*running, pending=pending), EPOCH)
    assert victims(plan) == {"b": "u2"}
    assert set(codes(plan).values()) == {ReasonCode.PREEMPTING}


def test_two_requests_are_not_promised_the_same_devices():
    running = (held("a", 0, 1, 2, 3),)
    pending = tuple(urgent(f"u{n}", "gpu:2", at_s=n) for n in range(3))
    plan = PriorityPolicy().decide(snapshot(*running, pending=pending), EPOCH)
    assert victims(plan) == {"a": "u0"}
    assert list(codes(plan).values()) == [ReasonCode.PREEMPTING, ReasonCode.PREEMPTING, ReasonCode.BUSY]


def test_new_devices_are_protected_for_the_minimum_time_and_withheld_afterwards():
    running = (held("a", 0, 1, ago_s=100), held("b", 2, 3, priority="urgent"))
    state = snapshot(*running, pending=(urgent(),))
    plan = PriorityPolicy().decide(state, EPOCH)
    assert (victims(plan), codes(plan)) == ({}, {"urgent": ReasonCode.PREEMPTING})
    assert plan.until == EPOCH + timedelta(seconds=MIN_RUN_S - 100)
    assert "in use by a at least until 00:03:20 UTC" in str(plan.decisions[0].reason)
    assert victims(PriorityPolicy().decide(state, plan.until)) == {"a": "urgent"}


def test_a_restarted_request_is_protected_for_its_restart_too():
    running = held("a", 0, 1, 2, 3, ago_s=MIN_RUN_S, attained_service_s={"nvidia/a100-sxm4-40gb": 50.0})
    plan = PriorityPolicy().decide(snapshot(running, pending=(urgent(),)), EPOCH)
    assert (victims(plan), plan.until) == ({}, EPOCH + timedelta(seconds=30))


def test_free_devices_beside_protected_work_are_withheld_for_the_waiting_request():
    pending = (urgent(device="gpu:4"), a_pending("later", "gpu", priority="low", at_s=1))
    plan = PriorityPolicy().decide(snapshot(held("a", 0, 1, ago_s=10), pending=pending), EPOCH)
    assert codes(plan) == {"urgent": ReasonCode.PREEMPTING, "later": ReasonCode.BUSY}


def test_the_worker_with_the_cheapest_victims_is_chosen():
    workers = (four("a"), four("b"))
    running = (held("x", 0, 1, 2, 3, worker_id="a", ago_s=2000), held("y", 0, 1, 2, 3, worker_id="b", ago_s=1000))
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=(urgent(device="gpu:4"),)), EPOCH)
    assert victims(plan) == {"y": "urgent"}


def crowded(waiting: int, device: str = "gpu", on: str = "ab", **fields) -> dict[str, str | None]:
    """Victims where a job on four devices would lose 2520 device-seconds, and each of four on one 807 to 1107."""
    workers = (four("a"), four("b"))
    singles = [held(f"x{n}", n, worker_id=on[0], ago_s=800 + 100 * n) for n in range(4)]
    big = held("big", 0, 1, 2, 3, worker_id=on[1], ago_s=600)
    pending = tuple(urgent(f"u{n}", device, at_s=n, **fields) for n in range(waiting))
    return victims(PriorityPolicy().decide(snapshot(*singles, big, workers=workers, pending=pending), EPOCH))


@pytest.mark.parametrize("on", ["ab", "ba"])
def test_the_loss_is_divided_by_all_equal_waiting_requests(on: str):
    assert crowded(1, on=on) == {"x0": "u0"}
    assert crowded(2, on=on) == {"x0": "u0", "x1": "u1"}
    assert crowded(4, on=on) == {"big": "u0"}
    assert crowded(5, on=on) == {"big": "u0", "x0": "u4"}
    assert crowded(1, "gpu:2", on=on) == {"x0": "u0", "x1": "u0"}
    assert crowded(2, "gpu:2", on=on) == {"big": "u0"}


def test_the_loss_is_divided_on_one_worker_too():
    large = a_worker("worker-a", (a_cpu(), *(a_device(f"GPU-{n}", index=n) for n in range(8))))
    singles = [held(f"x{n}", n, ago_s=800 + 100 * n) for n in range(4)]
    running = (*singles, held("big", 4, 5, 6, 7, ago_s=600))
    pending = tuple(urgent(f"u{n}", at_s=n) for n in range(4))
    assert victims(PriorityPolicy().decide(snapshot(*running, workers=(large,), pending=pending), EPOCH)) == {
        "big": "u0"
    }
    plan = PriorityPolicy().decide(snapshot(*running, workers=(large,), pending=pending[:2]), EPOCH)
    assert victims(plan) == {"x0": "u0", "x1": "u1"}


def test_the_loss_is_divided_by_the_requests_that_still_wait():
    workers = (four("a"), four("b"), four("c"))
    bigs = [held(f"big-{on}", 0, 1, 2, 3, worker_id=on, ago_s=600) for on in "ab"]
    running = (*bigs, held("small", 0, worker_id="c", ago_s=800))
    rest = held("rest", 1, 2, 3, worker_id="c", priority="urgent")
    pending = tuple(urgent(f"u{n}", at_s=n) for n in range(5))
    plan = PriorityPolicy().decide(snapshot(*running, rest, workers=workers, pending=pending), EPOCH)
    assert victims(plan) == {"big-a": "u0", "small": "u4"}


def test_the_loss_is_not_divided_by_members_of_gangs():
    assert crowded(4, gang="g", gang_size=9) == {}
    workers = (four("a"), four("b"))
    singles = [held(f"x{n}", n, worker_id="a", ago_s=800) for n in range(4)]
    big = held("big", 0, 1, 2, 3, worker_id="b", ago_s=600)
    gang = tuple(urgent(f"g{n}", at_s=9, gang="g", gang_size=3) for n in range(3))
    plan = PriorityPolicy().decide(snapshot(*singles, big, workers=workers, pending=(urgent(), *gang)), EPOCH)
    assert victims(plan) == {"x3": "urgent", "x2": "g0", "x1": "g1", "x0": "g2"}


def an_urgent_gang(size: int, device: str = "gpu:4", **fields) -> tuple[PendingRequest, ...]:
    return tuple(urgent(f"g{n}", device, gang="g", gang_size=size, **fields) for n in range(size))


def test_a_gang_takes_back_what_all_its_members_need_and_later_requests_get_the_rest():
    workers = (four("a"), four("b"), four("c"))
    running = (
        held("a", 0, 1, worker_id="a"),
        held("b", 0, 1, 2, 3, worker_id="b", ago_s=600),
        held("c", 0, 1, worker_id="c"),
    )
    pending = (*an_urgent_gang(2), urgent("single", at_s=5))
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=pending), EPOCH)
    assert victims(plan) == {"b": "g0", "a": "g1"}
    assert codes(plan) == {"g0": ReasonCode.PREEMPTING, "g1": ReasonCode.PREEMPTING, "single": "place"}
    assert plan.decisions[0].reason.asked == "all 2 of gang g, 4 × gpu each"


def test_a_gang_takes_nothing_back_unless_all_its_members_get_a_place():
    workers = (four("a"), four("b"))
    running = (held("a", 0, worker_id="a"), held("b", 0, worker_id="b", priority="urgent"))
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=an_urgent_gang(2)), EPOCH)
    assert (victims(plan), codes(plan)) == ({}, dict.fromkeys(("g0", "g1"), ReasonCode.BUSY))


def test_a_gang_waits_until_all_that_it_could_take_back_has_had_its_minimum_time():
    workers = (four("a"), four("b"))
    running = (held("a", 0, worker_id="a"), held("b", 0, worker_id="b", ago_s=MIN_RUN_S - 20))
    seen = snapshot(*running, workers=workers, pending=an_urgent_gang(2))
    plan = PriorityPolicy().decide(seen, EPOCH)
    assert (victims(plan), plan.until) == ({}, EPOCH + timedelta(seconds=20))
    assert victims(PriorityPolicy().decide(seen, plan.until)) == {"b": "g0", "a": "g1"}


def test_a_gang_that_has_to_be_close_together_waits_for_work_to_end():
    workers = (four("a"), four("b"))
    running = (held("a", 0, worker_id="a"), held("b", 0, worker_id="b"))
    gang = an_urgent_gang(2, {"device": "gpu", "count": 4, "topology": "rack"})
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=gang), EPOCH)
    assert victims(plan) == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_gang_is_placed_once_what_was_taken_back_for_it_has_ended(seed: int):
    rng = random.Random(seed)
    workers = tuple(four(f"w{n}") for n in range(5))
    running = []
    for worker in workers:
        gpus = list(range(4))
        while gpus and rng.random() < 0.85:
            count = rng.randint(1, len(gpus))
            class_and_age = {"priority": rng.choice(["low", "medium", "urgent"]), "ago_s": rng.randint(600, 9000)}
            running.append(held(f"{worker.id}-{gpus[0]}", *gpus[:count], worker_id=worker.id, **class_and_age))
            gpus = gpus[count:]
    device = ["gpu:4", "gpu:2"] if rng.random() < 0.3 else f"gpu:{rng.randint(1, 4)}"
    pending = (*an_urgent_gang(rng.randint(2, 4), device), urgent("later", "gpu:2", at_s=5))
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=pending), EPOCH)
    ended = victims(plan)
    left = [(lease, holder) for lease, holder in running if holder.id not in ended]
    decided = codes(PriorityPolicy().decide(snapshot(*left, workers=workers, pending=pending), EPOCH))
    members = [request for request, code in codes(plan).items() if code is ReasonCode.PREEMPTING and request != "later"]
    assert {decided[member] for member in members} <= {"place"}


def test_a_gang_is_preempted_as_a_whole_at_the_loss_of_all_its_devices():
    workers = (four("a"), four("b"))
    gang = {"gang": "g", "gang_size": 2}
    running = [held(f"g{n}", 0, 1, 2, 3, worker_id=worker_id, ago_s=600, **gang) for n, worker_id in enumerate("ab")]
    wanted = (urgent(device="gpu:4"),)
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=wanted), EPOCH)
    assert victims(plan) == {"g0": "urgent", "g1": "urgent"}
    running[1] = held("y", 0, 1, 2, 3, worker_id="b", ago_s=1100)
    running[0] = (running[0][0], replace(running[0][1], gang="", gang_size=1))
    alone = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=wanted), EPOCH)
    assert victims(alone) == {"g0": "urgent"}


def test_a_share_is_preempted_for_a_whole_device():
    lease = a_lease("share", "worker-a", 3600, **{"GPU-0": 500})
    share = (lease, a_pending("share", "gpu:0.5", priority="low"))
    running = (share, held("b", 1, 2, 3, priority="urgent"))
    assert victims(PriorityPolicy().decide(snapshot(*running, pending=(urgent(),)), EPOCH)) == {"share": "urgent"}


def test_a_gang_is_as_indispensable_as_the_highest_class_in_it():
    workers = (four("a"), four("b"))
    gang = {"gang": "g", "gang_size": 2}
    running = (held("g0", 0, 1, 2, 3, worker_id="a", **gang), held("g1", 0, worker_id="b", priority="urgent", **gang))
    plan = PriorityPolicy().decide(snapshot(*running, workers=workers, pending=(urgent(device="gpu:4"),)), EPOCH)
    assert (victims(plan), codes(plan)) == ({}, {"urgent": ReasonCode.BUSY})


def test_a_task_that_never_saved_is_preempted_only_for_a_higher_class():
    """Where it is unknown which tasks save, only the policy of classes preempts one whose work would be lost."""
    cautious = replace(snapshot(held("a", 0, 1, 2, 3), pending=(urgent(),)), protects_unsaved=True)
    assert victims(PriorityPolicy().decide(cautious, EPOCH)) == {"a": "urgent"}
    young = replace(
        snapshot(held("a", 0, 1, 2, 3, ago_s=9000), pending=(a_pending("b", "gpu"),)), protects_unsaved=True
    )
    assert victims(Las().decide(young, EPOCH)) == {}
    saved = held("a", 0, 1, 2, 3, ago_s=9000, saved_at=EPOCH - timedelta(seconds=60))
    known = replace(snapshot(saved, pending=(a_pending("b", "gpu"),)), protects_unsaved=True)
    assert victims(Las().decide(known, EPOCH)) == {"a": "b"}


@pytest.mark.parametrize(("saves", "expected"), [(True, {"g0": "b", "g1": "b"}), (False, {})])
def test_one_saved_member_shows_that_the_gang_can_save(saves, expected):
    workers = (four("a"), four("b"))
    fields = {"ago_s": 9000, "gang": "g", "gang_size": 2}
    first = held("g0", 0, 1, 2, 3, worker_id="a", saved_at=EPOCH - timedelta(seconds=60) if saves else None, **fields)
    running = (first, held("g1", 0, 1, 2, 3, worker_id="b", **fields))
    base = snapshot(*running, workers=workers, pending=(a_pending("b", "gpu:4"),))
    assert victims(Las().decide(replace(base, protects_unsaved=True), EPOCH)) == expected


def test_the_default_policy_moves_only_saved_tasks_unless_a_higher_class_waits():
    def decided(saved_at, priority):
        holder = held("a", 0, 1, 2, 3, priority="medium", ago_s=90000, saved_at=saved_at)
        base = snapshot(holder, pending=(a_pending("b", "gpu:4", -1, priority=priority),))
        return victims(Assignment().decide(replace(base, protects_unsaved=True), EPOCH))

    assert decided(None, "medium") == {}
    assert decided(None, "urgent") == decided(EPOCH - timedelta(seconds=60), "urgent") == {"a": "b"}


def test_the_snapshot_sets_the_minimum_run_time():
    base = snapshot(held("a", 0, 1, 2, 3, ago_s=10), pending=(urgent(),))
    assert victims(PriorityPolicy().decide(base, EPOCH)) == {}
    assert victims(PriorityPolicy().decide(replace(base, min_run_s=5.0), EPOCH)) == {"a": "urgent"}


GPU_MODELS = ("a100-sxm4-40gb", "v100-sxm2-16gb")


class Forgetful(dict):
    """It remembers nothing."""

    def setdefault(self, key, default=None):
        return default

    def __setitem__(self, key, value):
        pass


class Fresh(dict):
    """Has a new value at each question."""

    def __init__(self, make):
        self._make = make

    def __getitem__(self, key):
        return self._make()


def full_fleet(seed):
    """Twelve workers with most of their GPUs leased to requests of several sizes, and 60 requests that wait."""
    rng = random.Random(seed)
    store = MemoryStore()
    workers = [
        a_worker(f"w{n}", (a_cpu(), *(a_device(f"w{n}-{i}", GPU_MODELS[n % 2], index=i) for i in range(4))))
        for n in range(12)
    ]
    store.record([WorkerSeen(worker) for worker in workers], EPOCH)
    cycle = Cycle(store, Fifo(), FakeEngine(), lease_timeout_s=1e9)
    priorities = (["low"] * 80, [rng.choice(("low", "medium", "high")) for _ in range(60)])
    for group, of_group in enumerate(priorities):
        pending = [
            a_pending(f"{group}-{n}", rng.choice(("gpu", "gpu:2", "gpu:4", "a100", "v100:2")), n, priority=priority)
            for n, priority in enumerate(of_group)
        ]
        store.record([RequestSubmitted(request) for request in pending], EPOCH)
        cycle.run(EPOCH)
    ended = rng.sample(store.snapshot().leases, 4)
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in ended], EPOCH)
    return replace(store.snapshot(), can_preempt=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [Las, PriorityPolicy])
def test_a_plan_without_memory_that_looks_at_each_worker_is_the_same(policy, seed, monkeypatch):
    snapshot = full_fleet(seed)
    moments = [EPOCH + timedelta(seconds=seconds) for seconds in (30, 4000, 90_000)]
    plans = [policy().decide(snapshot, now) for now in moments]
    assert any(plan.preemptions for plan in plans)

    def forget(self, *arguments, __init__=LeastLossPreemption.__init__):
        __init__(self, *arguments)
        self._known_fits = self._known_amounts = Forgetful()
        self._known_victims, self._known_sites, self._known_options = Fresh(_ByWorker), Fresh(_ByWorker), Fresh(dict)

    def any_may_be_best(self, need, part, *arguments, _site=LeastLossPreemption._site):
        site = _site(self, need, part, *arguments)
        least = EPOCH - timedelta(days=1) if part[1] else None, (-math.inf,) * len(part[0]), 0.0
        return site and site._replace(least=least, most_requests=need.requests)

    monkeypatch.setattr(LeastLossPreemption, "__init__", forget)
    monkeypatch.setattr(LeastLossPreemption, "_site", any_may_be_best)
    assert [policy().decide(snapshot, now) for now in moments] == plans
