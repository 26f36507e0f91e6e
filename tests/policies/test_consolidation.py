"""Which requests are migrated for which, and that the next decision keeps to it."""

from collections.abc import Sequence
from datetime import timedelta

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan, ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.consolidation import Consolidation
from hetero_airflow.policies.core.migration import MAX_MOVES, MIN_HELD_S
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options, fixed_restart_s
from hetero_airflow.simulator.record import JobRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased
from tests.policies.plans import codes, order, victims

MIX: RequestMix = tuple((DeviceRequest.parse(text).alternatives[0], 0.5) for text in ("gpu", "gpu:4"))


def four(name: str) -> Worker:
    return a_worker(name, (a_cpu(), *(a_device(f"{name}-{n}", index=n) for n in range(4))))


def held(id: str, worker: str, *gpus: int, ago_s: float = 3600, **fields: object) -> tuple[Lease, PendingRequest]:
    lease = a_lease(id, worker, ago_s, **{f"{worker}-{n}": 1000 for n in gpus})
    return lease, a_pending(id, f"gpu:{len(gpus)}", -ago_s, **fields)  # type: ignore[arg-type]


def decide(
    running: Sequence[tuple[Lease, PendingRequest]],
    *pending: PendingRequest,
    workers: Sequence[Worker] = (),
    can_preempt: bool = True,
) -> Plan:
    base = Snapshot(
        1, tuple(workers) or (four("a"), four("b")), pending=pending, can_preempt=can_preempt,
        estimates=Estimates(mix=MIX),
    )  # fmt: skip
    return Consolidation().decide(leased(base, *running), EPOCH)


LARGE = a_pending("large", "gpu:4")


def test_a_small_request_takes_no_device_of_a_large_one_that_waits_unless_nothing_can_be_migrated():
    running = (held("x", "a", 0, 1, 2), held("y", "b", 0, 1, 2))
    small = a_pending("small", "gpu", 1)
    assert codes(decide(running, LARGE, small))["small"] == ReasonCode.RESERVED
    assert codes(decide(running, LARGE, small, can_preempt=False))["small"] == "place"


SCATTERED = (held("one", "a", 0), held("two", "b", 0, ago_s=1800), held("three", "b", 1))


def test_small_requests_are_migrated_from_the_worker_with_the_least_loss() -> None:
    plan = decide(SCATTERED, LARGE)
    assert (victims(plan), codes(plan)) == ({"one": "large"}, {"large": ReasonCode.PREEMPTING})
    assert str(plan.decisions[0].reason) == (  # type: ignore[union-attr]
        "preempting: asked 4 × gpu, found devices of worker a, from which 1 request moves"
    )


def test_nothing_is_migrated_for_a_request_that_fits() -> None:
    plan = decide(SCATTERED, a_pending("large", "gpu:3"))
    assert (victims(plan), codes(plan)) == ({}, {"large": "place"})


def test_only_requests_that_can_go_on_at_once_are_migrated() -> None:
    running = (held("one", "a", 0), *(held(f"b{n}", "b", n) for n in range(4)))
    plan = decide(running, LARGE)
    assert (victims(plan), codes(plan)) == ({}, {"large": ReasonCode.BUSY})


def test_nothing_is_migrated_for_a_small_request() -> None:
    running = (*(held(f"a{n}", "a", n) for n in range(4)), *(held(f"b{n}", "b", n) for n in range(4)))
    assert victims(decide(running, a_pending("small", "gpu"))) == {}


def test_large_requests_and_gangs_stay_where_they_are() -> None:
    assert victims(decide((held("pair", "a", 0, 1), held("other", "b", 0, 1)), LARGE)) == {}
    gang = [held(f"g{n}", worker, 0, gang="g", gang_size=2) for n, worker in enumerate("ab")]
    assert victims(decide(gang, LARGE)) == {}


def test_only_requests_of_the_same_class_are_migrated() -> None:
    running = (held("one", "a", 0, priority="high"), held("two", "b", 0, priority="high"))
    assert victims(decide(running, LARGE)) == {}


def test_those_of_a_lower_class_need_no_place_elsewhere() -> None:
    running = (held("one", "a", 0, priority="low"), *(held(f"b{n}", "b", n) for n in range(4)))
    assert victims(decide(running, LARGE)) == {"one": "large"}


def test_new_devices_are_protected_and_the_plan_says_until_when() -> None:
    plan = decide((held("one", "a", 0, ago_s=30), held("two", "b", 0, ago_s=40)), LARGE)
    assert victims(plan) == {}
    assert plan.until == EPOCH + timedelta(seconds=MIN_HELD_S - 40)


def test_a_migrated_request_is_protected_for_its_restart_too() -> None:
    attained_s = {"nvidia/a100-sxm4-40gb": 600.0}
    plan = decide((held("one", "a", 0, ago_s=MIN_HELD_S, attained_service_s=attained_s), held("two", "b", 0, 1)), LARGE)
    assert victims(plan) == {}
    plan = decide((held("one", "a", 0, ago_s=MIN_HELD_S), held("two", "b", 0, 1)), LARGE)
    assert victims(plan) == {"one": "large"}


def test_moves_of_one_decision_are_bounded() -> None:
    def crowded(name: str, shares: int) -> Worker:
        return a_worker(name, (a_cpu(), *(a_device(f"{name}-{n}", index=n) for n in range(shares))))

    def running(each: int) -> list[tuple[Lease, PendingRequest]]:
        return [
            (a_lease(f"{w}{n}", w, 3600, **{f"{w}-{n}": 1000}), a_pending(f"{w}{n}", "gpu", -3600))
            for w in "ab"
            for n in range(each)
        ]

    size = 2 * MAX_MOVES + 2
    workers = (crowded("a", size), crowded("b", size))
    large = a_pending("large", f"gpu:{size}")
    assert len(victims(decide(running(MAX_MOVES), large, workers=workers))) == MAX_MOVES
    assert victims(decide(running(MAX_MOVES + 1), large, workers=workers)) == {}


T4 = a_worker("c", tuple(a_device(f"c-{n}", "t4", "16GiB", index=n) for n in range(4)))


def test_a_large_request_that_waits_for_other_devices_stops_no_other() -> None:
    plan = decide(
        (*SCATTERED, held("t4s", "c", 0, 1, 2, 3)), a_pending("rare", "t4:4"),
        a_pending("large", "a100:4", 1), workers=(four("a"), four("b"), T4),
    )  # fmt: skip
    assert (victims(plan), codes(plan)) == (
        {"one": "large"},
        {"rare": ReasonCode.BUSY, "large": ReasonCode.PREEMPTING},
    )


def test_nothing_is_migrated_while_a_small_request_of_a_higher_class_waits() -> None:
    """It would go first in the next decision, and might take what was freed."""
    plan = decide(
        (*SCATTERED, held("t4s", "c", 0, 1, 2, 3, priority="urgent")), a_pending("small", "t4", priority="urgent"),
        a_pending("large", "a100:4"), workers=(four("a"), four("b"), T4),
    )  # fmt: skip
    assert (victims(plan), codes(plan)) == ({}, {"small": ReasonCode.BUSY, "large": ReasonCode.BUSY})


def test_devices_reserved_for_a_higher_class_are_not_given_to_a_lower_one() -> None:
    running = (held("pair", "b", 0, 1), held("one", "a", 0))
    assert victims(decide(running, LARGE)) == {"one": "large"}
    assert victims(decide(running, LARGE, a_pending("urgent", "gpu:4", priority="urgent"))) == {"one": "urgent"}


def test_nothing_is_reserved_from_migrated_requests() -> None:
    running = (held("pair", "a", 0, 1), held("four", "b", 0, 1, 2, 3))
    back = a_pending("back", "gpu", 5, attained_service_s={"nvidia/a100-sxm4-40gb": 600.0})
    plan = decide(running, LARGE, back, a_pending("new", "gpu", 3))
    assert codes(plan) == {"large": ReasonCode.BUSY, "back": "place", "new": ReasonCode.RESERVED}


def test_freed_devices_are_withheld_until_the_migrated_requests_have_ended() -> None:
    small = [a_pending(f"small{n}", "gpu", n + 1) for n in range(4)]
    plan = decide(SCATTERED, LARGE, *small)
    assert victims(plan) == {"one": "large"}
    assert [place.worker_id for place in plan.places] == ["b"]
    lease, holder = SCATTERED[0]
    leaving = (lease.model_copy(update={"state": LeaseState.PREEMPTED}), holder)
    again = decide((leaving, *SCATTERED[1:]), LARGE, *small)
    assert (victims(again), codes(again)["large"]) == ({}, ReasonCode.PREEMPTING)
    assert [place.worker_id for place in again.places] == ["b"]


def test_the_large_request_gets_the_worker_and_older_migrated_ones_go_elsewhere() -> None:
    """By the real cycle: two small requests are apart when those between them have ended."""
    jobs = [
        Job("filler", 0.0, DeviceRequest.parse("gpu:3"), 1000.0, task="gpu:3"),
        Job("one", 1.0, DeviceRequest.parse("gpu:2"), 400.0, task="gpu:2"),
        Job("moves", 2.0, DeviceRequest.parse("gpu"), 5000.0, task="gpu"),
        Job("stays", 3.0, DeviceRequest.parse("gpu"), 5000.0, task="gpu"),
        Job("large", 2000.0, DeviceRequest.parse("gpu:4"), 1000.0, task="gpu:4"),
    ]
    record = simulate(jobs)
    by_id = {job.id: job for job in record}
    assert by_id["large"].started_s == 2000.0
    assert by_id["large"].preemptions == 0
    went_on = [job for job in record if job.preemptions]
    assert len(went_on) == 1
    [before, after] = went_on[0].intervals
    assert (before.end_s, after.start_s) == (2000.0, 2000.0)
    assert before.worker_id != after.worker_id
    assert went_on[0].finished_s == went_on[0].submitted_s + 5000.0 + 7.0


def simulate(jobs: Sequence[Job]) -> tuple[JobRecord, ...]:
    workload = Workload("few", tuple(jobs))
    options = Options(restart_s=fixed_restart_s(7.0))
    return Simulation(workload, parse_cluster("v100=2x4"), Consolidation(), "consolidation", options).run().jobs


def test_without_migration_the_oldest_request_goes_first() -> None:
    plan = decide(SCATTERED, a_pending("small", "gpu", -1), LARGE, can_preempt=False)
    assert order(plan) == ["small", "large"]
