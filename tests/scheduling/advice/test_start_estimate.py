import heapq
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Preempt, Reason, ReasonCode, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.advice import start_estimate as module
from hetero_airflow.scheduling.advice.start_estimate import StartEstimate, estimate_start
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.simulator.options import Knowledge, Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

A100 = "nvidia/a100-sxm4-40gb"
NOW = EPOCH + timedelta(seconds=40)


def estimates(**works: float | Interval) -> Estimates:
    """Estimates for tasks of the DAG "dag", in seconds on an A100; a number is certain."""
    intervals = {("dag", name): w if isinstance(w, Interval) else Interval(w, w, w) for name, w in works.items()}
    return Estimates({task: {A100: 1.0} for task in intervals}, intervals)


def a_world(*requests, gpus=1, policy=None):
    """A worker on which a policy has placed, at `EPOCH`, those of the requests that fit."""
    store = MemoryStore()
    worker = a_worker(devices=(a_cpu(), *(a_device(f"GPU-{n}", index=n) for n in range(gpus))))
    store.record([WorkerSeen(worker), *map(RequestSubmitted, requests)], EPOCH)
    Cycle(store, policy or Fifo(), FakeEngine(), 3600).run(EPOCH)
    return store


def seen(store, known, **fields) -> Snapshot:
    return replace(store.snapshot(), estimates=known, **fields)


def look(store, request_id, known, now=NOW, policy=None) -> StartEstimate:
    return estimate_start(seen(store, known), request_id, (policy or Fifo()).decide, now, None)


def exactly(seconds: float) -> Interval:
    return Interval(*[pytest.approx(seconds)] * 3)


def test_a_request_that_fits_starts_now():
    store = a_world()
    store.record([RequestSubmitted(a_pending("a"))], NOW)
    assert look(store, "a", Estimates()) == StartEstimate(Interval(0, 0, 0))


def test_a_request_starts_when_the_run_before_it_ends():
    store = a_world(a_pending("a"), a_pending("b", at_s=1))
    assert look(store, "b", estimates(a=100)) == StartEstimate(exactly(60))


def test_a_run_of_unknown_duration_ends_when_it_reports():
    store = a_world(a_pending("a"), a_pending("b", at_s=1))
    (lease,) = store.snapshot().leases
    assert look(store, "b", Estimates()).start_s is None
    known = Estimates(reported_ends={lease.id: NOW + timedelta(seconds=100)})
    assert look(store, "b", known).start_s == Interval(pytest.approx(100 / 1.15), 100, pytest.approx(115))


def test_the_interval_is_that_of_the_remaining_time_of_the_runs_before_it():
    store = a_world(a_pending("a"), a_pending("b", at_s=1))
    run_s = Interval(50, 100, 200)
    assert look(store, "b", estimates(a=run_s), EPOCH).start_s == pytest.approx(run_s)
    low, middle, high = look(store, "b", estimates(a=run_s), EPOCH + timedelta(seconds=150)).start_s
    assert 0 < low < middle < high < 200


def test_a_request_waits_for_the_requests_before_it():
    store = a_world(*(a_pending(name, at_s=at) for at, name in enumerate("abcd")))
    known = estimates(a=100, b=20, c=Interval(5, 10, 30))
    assert look(store, "d", known).start_s == pytest.approx((60 + 20 + 5, 60 + 20 + 10, 60 + 20 + 30))


def test_the_policy_orders_the_queue():
    store = a_world(a_pending("a"), a_pending("b", at_s=1), a_pending("c", at_s=2, priority="high"))
    known = estimates(a=100, b=20, c=10)
    assert look(store, "b", known, policy=Fifo()).start_s == exactly(60)
    assert look(store, "b", known, policy=PriorityPolicy()).start_s == exactly(70)


def test_a_run_without_an_estimate_makes_the_start_unknown_and_its_task_is_named():
    store = a_world(a_pending("a"), a_pending("b", at_s=1), a_pending("c", at_s=2))
    assert look(store, "c", estimates(b=10)) == StartEstimate(None, (("dag", "a"),))
    assert look(store, "c", estimates(a=10_000)) == StartEstimate(None, (("dag", "b"),))


def test_a_run_that_exceeds_its_estimate_counts_as_unknown():
    store = a_world(a_pending("a"), a_pending("b", at_s=1))
    assert look(store, "b", estimates(a=Interval(9, 10, 11)), EPOCH + timedelta(days=9)).unknown == (("dag", "a"),)


def test_an_unknown_run_elsewhere_leaves_a_latest_start():
    store = a_world(a_pending("a"), a_pending("b", at_s=1), a_pending("c", at_s=2), gpus=2)
    assert look(store, "c", estimates(b=100)) == StartEstimate(exactly(60), (("dag", "a"),))


def test_an_unknown_run_on_devices_that_the_request_cannot_use_is_not_named():
    store = a_world(a_pending("a"), a_pending("b", "cpu:8", at_s=1), a_pending("c", at_s=2))
    other_worker = a_worker("other", devices=(a_device("GPU-9", model="t4", memory="16GiB"),))
    store.record(
        [
            WorkerSeen(other_worker),
            RequestSubmitted(a_pending("d", "t4", at_s=3)),
            RequestSubmitted(a_pending("e", "a100")),
        ],
        NOW,
    )
    Cycle(store, Fifo(), FakeEngine(), 3600).run(NOW)
    assert ("dag", "d") not in look(store, "e", estimates(a=100)).unknown


def test_attained_service_counts():
    store = a_world(a_pending("a", attained_service_s={A100: 50.0}), a_pending("b", at_s=1))
    assert look(store, "b", estimates(a=100)).start_s == exactly(10)


def test_a_preempted_lease_ends_at_once_and_the_end_of_an_expired_lease_is_unknown():
    store = a_world(a_pending("a"), a_pending("b", at_s=1))
    (lease,) = store.snapshot().leases
    move_lease(store, lease.id, lease.token, LeaseState.PREEMPTED, NOW)
    assert look(store, "b", Estimates()).start_s == exactly(0)
    move_lease(store, lease.id, lease.token, LeaseState.EXPIRED, NOW)
    assert look(store, "b", estimates(a=100)) == StartEstimate(None, (("dag", "a"),))


def test_a_request_that_waits_for_no_run_has_an_empty_estimate():
    store = a_world(a_pending("a"))
    store.record([WorkerLost("worker-a"), RequestSubmitted(a_pending("b"))], NOW)
    assert look(store, "b", estimates(a=1)) == StartEstimate()


def test_a_refused_request_has_an_empty_estimate():
    store = a_world(a_pending("a"))
    store.record([RequestSubmitted(a_pending("b", "h100"))], NOW)
    assert look(store, "b", estimates(a=100)) == StartEstimate()


def waits(snapshot, *besides):
    reason = Reason(ReasonCode.BUSY, "a gpu", "none")
    ids = [request.id for request in snapshot.pending if request.id not in besides]
    return tuple(Wait(id_, n, reason, Account("test", "waits")) for n, id_ in enumerate(ids, start=1))


def preempting(snapshot, now):
    """Preempts the holder of the device for "b"."""
    if not any(request.id == "b" for request in snapshot.pending):
        return Plan(waits(snapshot))
    for lease in snapshot.leases:
        taken = Preempt(lease.id, lease.token, lease.request_id, "b", "for b")
        return Plan(waits(snapshot), (taken,))
    place = a_place("b", **{"GPU-0": 1000})
    return Plan((place, *waits(snapshot, "b")))


def test_preempted_devices_are_free_and_their_holder_waits_again():
    store = a_world(a_pending("a"), a_pending("b", at_s=1), a_pending("c", at_s=2))
    snapshot = seen(store, Estimates(), can_preempt=True)
    assert estimate_start(snapshot, "b", preempting, NOW, None) == StartEstimate(Interval(0, 0, 0))
    snapshots = []
    estimate_start(snapshot, "c", lambda now_is, now: snapshots.append(now_is) or preempting(now_is, now), NOW, None)
    after = next(snapshot for snapshot in snapshots if not snapshot.leases)
    attained = [(request.id, dict(request.attained_service_s), request.interruptions) for request in after.pending]
    assert attained == [
        ("a", {A100: 40.0}, 1),
        ("b", {}, 0),
        ("c", {}, 0),
    ]
    assert after.used("worker-a", "GPU-0").share_milli == 0


def test_a_policy_that_depends_on_the_time_decides_again_in_time():
    store = a_world(a_pending("a"), a_pending("b", at_s=1), gpus=2)
    store.record([RequestSubmitted(a_pending("c", at_s=2))], EPOCH)

    def late(snapshot, now):
        is_due = now >= NOW + timedelta(seconds=250)
        return Plan((a_place("c", **{"GPU-1": 1000}),) if is_due else waits(snapshot))

    assert estimate_start(seen(store, Estimates()), "c", late, NOW, 100.0).start_s == exactly(300)
    assert estimate_start(seen(store, Estimates()), "c", late, NOW, None).start_s is None
    soon = NOW + timedelta(seconds=260)
    says_when = lambda snapshot, now: replace(late(snapshot, now), until=soon if now < soon else None)  # noqa: E731
    assert estimate_start(seen(store, Estimates()), "c", says_when, NOW, None).start_s == exactly(260)
    never = lambda snapshot, now: Plan(waits(snapshot))  # noqa: E731
    assert estimate_start(seen(store, Estimates()), "c", never, NOW, 100.0).start_s is None


def test_an_estimate_with_too_many_decisions_is_given_up(monkeypatch):
    store = a_world(*(a_pending(f"r{at:03}", at_s=at) for at in range(60)))
    known = estimates(**{f"r{at:03}": 60 for at in range(60)})
    assert look(store, "r059", known).start_s == exactly(58 * 60 + 20)
    monkeypatch.setattr(module, "MAX_DECISIONS", 1000)
    given_up = look(store, "r059", known)
    assert given_up.start_s is None
    moments = next(n for n in range(60) if 59 + sum(range(60 - n, 60)) > 1000)
    assert given_up.beyond_s == pytest.approx(20 + 60 * (moments - 1))
    monkeypatch.setattr(module, "MAX_DECISIONS", 10**9)
    monkeypatch.setattr(module, "MAX_MOMENTS", 10)
    assert look(store, "r059", known).beyond_s == pytest.approx(20 + 60 * 9)


JOBS = st.lists(
    st.tuples(st.sampled_from(["gpu", "gpu:2", "gpu:0.5", "cpu:4"]), st.integers(1, 1000)), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(JOBS)
@example([("gpu", 1), ("gpu:0.5", 1), ("gpu:0.5", 2), ("gpu:0.5", 2), ("gpu", 1), ("gpu:0.5", 1), ("gpu", 1)])
def test_with_certain_durations_the_estimate_is_what_the_simulator_finds(entries):
    """The same policy on the same requests, through the store, the cycle and the event loop of the simulator."""
    worker = a_worker(devices=(a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1)))
    jobs = tuple(
        Job(f"j{n:02}", 0.0, DeviceRequest.parse(text), float(work), task=f"j{n:02}", group="dag")
        for n, (text, work) in enumerate(entries)
    )
    options = Options(knowledge=Knowledge.ORACLE)
    record = Simulation(Workload("random", jobs), (worker,), Fifo(), "fifo", options).run()
    store = MemoryStore()
    pending = [a_pending(job.id, text) for job, (text, _) in zip(jobs, entries, strict=True)]
    store.record([WorkerSeen(worker), *map(RequestSubmitted, pending)], EPOCH)
    works = {("dag", job.id): Interval(job.work, job.work, job.work) for job in jobs}
    known = Estimates({task: {A100: 1.0, "generic/x86-64": 1.0} for task in works}, works)
    for job in record.jobs:
        assert look(store, job.id, known, EPOCH).start_s == exactly(job.started_s)


def test_with_many_leases_the_estimate_is_close():
    """The estimate does not decide at each end of a run. Each of 600 requests takes the first free device of 220."""
    generator = random.Random(8)
    works = {f"r{n:03}": generator.uniform(100, 1000) for n in range(600)}
    free_s = [0.0] * 220
    truth = {}
    for name, work in works.items():
        truth[name] = heapq.heappop(free_s)
        heapq.heappush(free_s, truth[name] + work)
    store = a_world(*map(a_pending, works), gpus=220)
    for name in ("r220", "r230", "r400", "r599"):
        assert look(store, name, estimates(**works), EPOCH).start_s.middle == pytest.approx(
            truth[name], rel=0.03, abs=10
        )
