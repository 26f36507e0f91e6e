from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.recovery.adjustment import AVOIDED_LABEL, avoid_failed_workers, with_avoided_labels
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.recovery.rules import DEFAULTS
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker

WORKERS = [a_worker(name) for name in ("host-a", "host-b", "host-c")]


def a_failure(worker="host-a", failure_class="network", token=1, **fields):
    at = EPOCH + timedelta(seconds=token)
    return Failure(failure_class=failure_class, evidence="x", worker=worker, at=at, epoch=0, token=token, **fields)


def avoid(failures, workers, *device, **fields):
    request = DeviceRequest.parse(list(device) or "gpu", **fields)
    return avoid_failed_workers(request.alternatives, failures, DEFAULTS, workers, Shapes())


def labels(outcome):
    return [alternative.labels.get(AVOIDED_LABEL) for alternative in outcome.alternatives]


def test_after_a_network_failure_another_worker_is_asked_for():
    outcome = avoid([a_failure()], WORKERS)
    assert (labels(outcome), outcome.avoided, outcome.not_avoidable) == (["!host-a"], ("host-a",), ())


def test_several_workers_are_avoided_the_last_first():
    outcome = avoid([a_failure("host-b"), a_failure("host-a", token=2)], WORKERS)
    assert labels(outcome) == ["!host-a,host-b"]


def test_the_oldest_failure_is_ignored_if_no_other_worker_is_left():
    failures = [a_failure(name, token=n) for n, name in enumerate(("host-c", "host-a", "host-b"))]
    outcome = avoid(failures, WORKERS)
    assert (labels(outcome), outcome.not_avoidable) == (["!host-b,host-a"], ("host-c",))


@pytest.mark.parametrize(
    "other_workers",
    [
        [],
        [a_worker("host-b", (a_cpu(),))],
        [a_worker("host-b", state=WorkerState.LOST)],
        [a_worker("host-b", (a_device(leasable=False, problem="fell off the bus"),))],
    ],
)
def test_no_worker_is_avoided_if_no_other_can_serve_the_request(other_workers):
    outcome = avoid([a_failure()], [WORKERS[0], *other_workers])
    assert (labels(outcome), outcome.avoided, outcome.not_avoidable) == ([None], (), ("host-a",))


def test_a_worker_that_is_no_longer_there_is_not_avoided():
    outcome = avoid([a_failure("host-z")], WORKERS)
    assert (labels(outcome), outcome.not_avoidable) == ([None], ())


def test_an_alternative_that_only_the_avoided_worker_has_is_left_out():
    workers = [a_worker("host-a", (a_device("H-0", "h100", "80GiB"),)), WORKERS[1]]
    outcome = avoid([a_failure()], workers, "h100", "a100")
    assert [str(alternative) for alternative in outcome.alternatives] == [f"1 × nvidia/a100 ({AVOIDED_LABEL}=!host-a)"]


@pytest.mark.parametrize(("is_leasable", "expected"), [(True, ["!host-a"]), (False, [None])])
def test_after_a_hardware_error_the_worker_is_avoided_only_while_the_device_is_not_in_quarantine(is_leasable, expected):
    worker = a_worker("host-a", (a_device("GPU-0", leasable=is_leasable), a_device("GPU-1", index=1)))
    failure = a_failure(failure_class="hardware", device_ids=("GPU-0",))
    assert labels(avoid([failure], [worker, WORKERS[1]])) == expected


def test_failures_that_no_worker_caused_avoid_no_worker():
    classes = ("device_memory", "host_memory", "lost_worker", "preempted", "hung", "user_error", "unknown")
    failures = [a_failure(failure_class=name, token=n) for n, name in enumerate(classes)]
    assert labels(avoid(failures, WORKERS)) == [None]


def test_the_users_own_labels_stay():
    workers = [a_worker(name, labels={"zone": "eu"}) for name in ("host-a", "host-b")]
    outcome = avoid([a_failure()], workers, labels={"zone": "eu"})
    assert outcome.alternatives[0].labels == {AVOIDED_LABEL: "!host-a", "zone": "eu"}


def test_a_request_with_the_most_labels_keeps_them_and_avoids_no_worker():
    labels = {f"label-{n:02}": "x" for n in range(32)}
    workers = [a_worker(name, labels=labels) for name in ("host-a", "host-b")]
    assert avoid([a_failure()], workers, labels=labels).alternatives[0].labels == labels


@given(st.lists(st.sampled_from(["host-a", "host-b", "host-c", "b,c", "x" * 200, "y" * 200, "gone"]), max_size=6))
def test_a_request_that_avoids_workers_fits_only_the_others(names):
    fleet = [*WORKERS, a_worker("b,c"), a_worker("x" * 200), a_worker("y" * 200)]
    outcome = avoid([a_failure(name, token=n) for n, name in enumerate(names)], fleet)
    request = DeviceRequest(alternatives=outcome.alternatives)
    for worker in with_avoided_labels(fleet, [request]):
        assert check_worker(request.alternatives[0], worker)[0] == (worker.id not in outcome.avoided)
    assert len(outcome.avoided) < len(fleet)


def test_workers_that_no_request_avoids_stay_the_same_and_of_one_shape():
    request = DeviceRequest(alternatives=avoid([a_failure()], WORKERS).alternatives)
    now = with_avoided_labels(WORKERS, [request])
    assert [worker is before for worker, before in zip(now, WORKERS, strict=True)] == [False, True, True]
    shapes = Shapes()
    first, second, third = (shapes.entry(worker).shape for worker in now)
    assert first is not second is third
    assert with_avoided_labels(WORKERS, []) == tuple(WORKERS)
