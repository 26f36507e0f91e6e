from dataclasses import replace
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.plan import Place
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.advice.wanted_workers import WantedType, WantedWorkers, wanted_workers
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker, snapshots

SMALL, LARGE = {"hetero/type": "small"}, {"hetero/type": "large"}
EIGHT = (a_cpu(32), *(a_device(f"GPU-{n}", index=n) for n in range(8)))
HOSTS = (a_worker("a", labels=SMALL), a_worker("b", EIGHT, labels=LARGE))


def waits(*devices: object, **fields: object) -> tuple[PendingRequest, ...]:
    return tuple(a_pending(f"r{n}", device, at_s=n, **fields) for n, device in enumerate(devices))


def busy(snapshot: Snapshot, *worker_ids: str) -> Snapshot:
    """Usage with all accelerators of these workers leased."""
    used = {
        worker.id: {device.id: DeviceUsage(1000, 0, EPOCH) for device in worker.devices if device.kind != "cpu"}
        for worker in snapshot.workers
        if worker.id in worker_ids
    }
    return replace(snapshot, usage=UsageByWorker(used))


def numbers(wanted: WantedWorkers) -> dict[str, int]:
    return {wanted_type.type: wanted_type.workers for wanted_type in wanted.types}


def test_without_waiting_requests_no_worker_is_wanted():
    assert wanted_workers(Snapshot(0, workers=HOSTS)) == WantedWorkers(
        (WantedType("large", 0, 0), WantedType("small", 0, 0)), waiting=0, fitting=0, unservable=0
    )


def test_a_request_that_fits_wants_no_worker():
    wanted = wanted_workers(Snapshot(0, workers=HOSTS, pending=waits("gpu:8", "gpu:2")))
    assert (numbers(wanted), wanted.fitting) == ({"large": 0, "small": 0}, 2)


def test_the_smallest_sufficient_type_is_wanted():
    snapshot = busy(Snapshot(0, workers=HOSTS, pending=waits("gpu:2", "gpu:3", "gpu")), "a", "b")
    wanted = wanted_workers(snapshot)
    assert wanted.types == (WantedType("large", 1, 3), WantedType("small", 0, 0)), "what is open is filled first"
    assert numbers(wanted_workers(replace(snapshot, pending=waits("gpu:2", "gpu")))) == {"large": 0, "small": 2}


def test_a_fleet_that_was_scaled_to_zero_has_types():
    lost = tuple(worker.model_copy(update={"state": WorkerState.LOST}) for worker in HOSTS)
    wanted = wanted_workers(Snapshot(0, workers=lost, pending=waits(*["gpu:4"] * 3)))
    assert numbers(wanted) == {"large": 2, "small": 0}


def test_shares_and_cores_are_packed_as_they_are_leased():
    halves = busy(Snapshot(0, workers=HOSTS[:1], pending=waits(*[{"device": "gpu", "share": 0.5}] * 5)), "a")
    assert numbers(wanted_workers(halves)) == {"small": 2}
    cores = busy(Snapshot(0, workers=HOSTS[:1], pending=waits("gpu", "gpu", quota={"cpus": 6})), "a")
    assert numbers(wanted_workers(cores)) == {"small": 2}, "8 cores are enough for one of them"


def test_a_gang_wants_all_it_needs_or_nothing():
    gang = waits(*["gpu:8"] * 3, gang="g", gang_size=3)
    wanted = wanted_workers(busy(Snapshot(0, workers=HOSTS, pending=gang), "a"))
    assert (wanted.types[0], wanted.fitting) == (WantedType("large", 2, 2), 1)
    mixed = (*gang, a_pending("odd", "h100", gang="g", gang_size=3))
    wanted = wanted_workers(Snapshot(0, workers=HOSTS, pending=mixed))
    assert (numbers(wanted), wanted.unservable, wanted.fitting) == ({"large": 0, "small": 0}, 4, 0)


def test_a_later_alternative_is_used_if_free_and_the_first_is_wanted():
    either = waits(["gpu:8", "cpu:8"], ["gpu:8", "cpu:8"])
    wanted = wanted_workers(busy(Snapshot(0, workers=HOSTS[1:], pending=either), "b"))
    assert (numbers(wanted), wanted.fitting) == ({"large": 0}, 2)
    lost = tuple(worker.model_copy(update={"state": WorkerState.LOST}) for worker in HOSTS)
    wanted = wanted_workers(Snapshot(0, workers=lost, pending=either))
    assert wanted.types == (WantedType("large", 1, 2), WantedType("small", 0, 0)), "beside the GPUs its cores are free"


@given(st.integers(0, 40), st.integers(0, 3), st.integers(1, 8))
def test_for_equal_requests_it_is_the_least_number(waiting, hosts, count):
    workers = tuple(a_worker(f"w{n}", EIGHT, labels=LARGE) for n in range(hosts))
    lost = a_worker("x", EIGHT, labels=LARGE, state=WorkerState.LOST)
    wanted = wanted_workers(Snapshot(0, workers=(*workers, lost), pending=waits(*[f"gpu:{count}"] * waiting)))
    each = 8 // count
    assert numbers(wanted) == {"large": ceil(max(0, waiting - hosts * each) / each)}


@given(snapshots(max_workers=3, max_pending=6))
def test_it_is_the_same_every_time_and_adds_up(snapshot):
    wanted = wanted_workers(snapshot)
    assert wanted == wanted_workers(snapshot)
    assert wanted.waiting == wanted.fitting + wanted.unservable + sum(
        wanted_type.requests for wanted_type in wanted.types
    )
    assert all((wanted_type.workers > 0) == (wanted_type.requests > 0) for wanted_type in wanted.types)


def test_with_the_wanted_workers_the_policy_starts_all_requests():
    pending = (*waits("gpu:3", "gpu:2", "gpu:8"), a_pending("g0", "gpu:8", gang="g", gang_size=1))
    snapshot = busy(Snapshot(0, workers=HOSTS, pending=pending), "a", "b")
    more = {wanted_type.type: wanted_type.workers for wanted_type in wanted_workers(snapshot).types}
    new = [
        worker.model_copy(update={"id": f"new-{worker.id}-{n}"})
        for worker in HOSTS
        for n in range(more[worker.labels["hetero/type"]])
    ]
    grown = replace(snapshot, workers=(*HOSTS, *new))
    plan = PriorityPolicy().decide(grown, EPOCH)
    assert plan_faults(grown, plan) == []
    assert [type(decision) for decision in plan.decisions] == [Place] * 4
