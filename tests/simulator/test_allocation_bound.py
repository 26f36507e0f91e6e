from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.simulator.cluster import simulated_worker
from hetero_airflow.simulator.workload import Job, Workload
from tests.benchmarks.bounds import allocation
from tests.benchmarks.bounds.allocation import allocation_bound


def workload(*requests: DeviceRequest) -> Workload:
    return Workload("w", tuple(Job(str(number), 0.0, request, 1.0) for number, request in enumerate(requests)))


def gpu(text: str = "gpu", **quota: object) -> DeviceRequest:
    return DeviceRequest.parse(text, quota=quota)


def a_worker(id: str = "a", model: str = "t4", gpus: int = 2, cores: int = 10) -> Worker:
    return simulated_worker(id, {f"nvidia/{model}": gpus}, cores=cores, host_memory_bytes=2**30)


@pytest.mark.parametrize(
    ("requests", "bound"),
    [
        ([gpu("gpu:2")], 1.0),
        ([gpu()], 0.5),
        ([gpu("gpu:3")], 0.0),
        ([gpu("gpu:0.6")] * 4, 0.6),  # two of them never share a device
        ([gpu("gpu:0.6"), gpu("gpu:0.4"), gpu("gpu:0.7"), gpu("gpu:0.2")], 0.95),
        ([gpu("v100")] * 2, 0.0),
        ([gpu(cpus=10)] * 2, 0.5),
        ([gpu(cpus=6)] * 2, 5 / 6),  # 10 of 12 cores, since a job may be cut
        ([gpu(host_memory="2GiB")], 0.0),
        ([DeviceRequest.parse("cpu:10")], 0.0),
        ([], 0.0),
    ],
)
def test_small_cases_worked_out_by_hand(requests: list[DeviceRequest], bound: float) -> None:
    assert allocation_bound(workload(*requests), [a_worker()]) == pytest.approx(bound)


def test_models_are_kept_apart() -> None:
    requests = [DeviceRequest.parse({"nvidia/v100"})] * 4 + [DeviceRequest.parse({"nvidia/v100", "nvidia/t4"})]

    assert allocation_bound(workload(*requests), [a_worker(), a_worker("b", "v100")]) == pytest.approx(3 / 4)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=14),
    st.lists(st.integers(1, 2), max_size=4),
)
def test_first_fit_never_fills_more_than_the_bound(shares: list[tuple[int, int]], whole: list[int]) -> None:
    requests = [gpu(f"gpu:0.{share}", cpus=cores or None) for share, cores in shares]
    requests += [gpu(f"gpu:{count}") for count in whole]
    workers = [a_worker("a"), a_worker("b", cores=7)]
    free, cores_left = {"a": [10, 10], "b": [10, 10]}, {"a": 10, "b": 7}
    filled = 0
    for share, cores in shares:
        for worker, devices in free.items():
            chosen = next((index for index, free in enumerate(devices) if free >= share), None)
            if chosen is not None and cores_left[worker] >= cores:
                devices[chosen] -= share
                cores_left[worker] -= cores
                filled += share
                break
    for count in whole:
        for devices in free.values():
            empty = [index for index, free in enumerate(devices) if free == 10]
            if len(empty) >= count:
                for index in empty[:count]:
                    devices[index] = 0
                filled += 10 * count
                break

    assert filled / 40 <= allocation_bound(workload(*requests), workers) + 1e-9


def test_a_device_is_filled_with_larger_shares_first() -> None:
    assert allocation._arcs({600, 300}) == [(0, 300), (0, 600), (300, 300), (600, 300)]
