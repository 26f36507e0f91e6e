from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.bandwidth import (
    Bottleneck,
    bottleneck,
    common_level,
    device_level,
    pair_bytes_per_s,
    worker_location,
)
from hetero_airflow.model.device import Device
from hetero_airflow.model.topology import Level
from hetero_airflow.model.worker import Worker
from hetero_airflow.testing import a_cpu, a_device, a_worker

GB = 1e9


def a_gpu(index: int, *, linked: tuple[int, ...] = (), **fields: object) -> Device:
    return a_device(f"GPU-{index}", index=index, peers=tuple(f"GPU-{peer}" for peer in linked), **fields)


def by_pairs(parts: list[tuple[Worker, list[Device]]]) -> Bottleneck | None:
    """The oracle: every pair of devices, one by one."""
    devices = [(worker, device) for worker, part in parts for device in part]
    bottlenecks = []
    for (first, first_device), (second, second_device) in combinations(devices, 2):
        same = first is second
        level = (
            device_level(first, first_device, second_device)
            if same
            else worker_location(first).level(worker_location(second))
        )
        bottlenecks.append(
            Bottleneck(pair_bytes_per_s(level, first_device, second_device, (first.labels, second.labels)), level)
        )
    if not bottlenecks:
        return None
    return Bottleneck(
        min(bottleneck.bytes_per_s for bottleneck in bottlenecks),
        max((bottleneck.level for bottleneck in bottlenecks), key=lambda n: n.rank),
    )


@st.composite
def placements(draw: st.DrawFn) -> list[tuple[Worker, list[Device]]]:
    parts = []
    for number in range(draw(st.integers(1, 4))):
        devices = [
            a_gpu(
                index,
                linked=tuple(draw(st.sets(st.integers(0, 3), max_size=3)) - {index}),
                numa_node=draw(st.sampled_from([None, 0, 1])),
                model=draw(st.sampled_from(["a100-sxm4-40gb", "tesla-p100-sxm2", "x1"])),
                details={"pcie_generation": draw(st.sampled_from([None, 1, 3, 5]))},
            )
            for index in range(draw(st.integers(1, 4)))
        ]
        labels = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "hetero/rack": st.sampled_from(["r1", "r2"]),
                    "hetero/site": st.sampled_from(["s1", "s2"]),
                    "hetero/network_gbps": st.sampled_from(["10", "400", "-1", "nan", "wide"]),
                    "hetero/site_gbps": st.sampled_from(["1", "40", "1e9", "far"]),
                },
            )
        )
        worker = a_worker(f"w{number}", tuple(devices), host=draw(st.sampled_from(["h1", "h2", "h3"])), labels=labels)
        parts.append((worker, devices))
    return parts


@given(placements())
def test_the_slowest_pair_is_the_bottleneck(parts: list[tuple[Worker, list[Device]]]) -> None:
    assert bottleneck(parts) == by_pairs(parts)


@given(placements())
def test_more_devices_never_make_it_faster(parts: list[tuple[Worker, list[Device]]]) -> None:
    whole, part = bottleneck(parts), bottleneck(parts[:-1]) if len(parts) > 1 else None
    if whole is not None and part is not None:
        assert whole.bytes_per_s <= part.bytes_per_s
        assert whole.level.rank >= part.level.rank


def test_one_device_has_no_bottleneck() -> None:
    worker = a_worker()
    assert bottleneck([(worker, worker.devices[1:2])]) is None


@pytest.mark.parametrize(
    ("first_fields", "second_fields", "expected"),
    [
        ({"linked": (1,)}, {}, Level.NVLINK),
        ({}, {"linked": (0,)}, Level.NVLINK),
        ({"numa_node": 1}, {"numa_node": 1}, Level.NUMA),
        ({"numa_node": 0}, {"numa_node": 1}, Level.HOST),
        ({"numa_node": 0}, {}, Level.HOST),
        ({}, {}, Level.NUMA),
        ({"parent": "GPU-mig", "partition": "1g.10gb"}, {"parent": "GPU-mig", "partition": "1g.10gb"}, Level.NUMA),
    ],
)
def test_two_devices_of_a_worker_share_a_level(
    first_fields: dict[str, object], second_fields: dict[str, object], expected: Level
) -> None:
    worker = a_worker(devices=(a_cpu(), a_gpu(0, **first_fields), a_gpu(1, **second_fields)))  # type: ignore[arg-type]
    assert device_level(worker, *worker.devices[1:]) is expected


def test_each_level_is_slower_than_the_one_before() -> None:
    slow, fast = a_gpu(0, details={"pcie_generation": 4, "pcie_width": 16}), a_gpu(1)
    labels = ({"hetero/network_gbps": "100"}, {"hetero/network_gbps": "200"})
    speeds = [pair_bytes_per_s(level, slow, slow, labels) for level in Level]
    assert speeds == [300 * GB, 31.504 * GB, 20.8 * GB, 12.5 * GB, 3.125 * GB, 1.25 * GB]
    assert pair_bytes_per_s(Level.HOST, slow, fast, labels) == 15.76 * GB


@pytest.mark.parametrize(
    ("first_labels", "second_labels", "expected"),
    [
        ({"rack": "r1"}, {"rack": "r1"}, Level.RACK),
        ({"rack": "r1"}, {"rack": "r2"}, Level.SITE),
        ({"rack": "r1", "site": "a"}, {"rack": "r1", "site": "b"}, Level.ANYWHERE),
        ({"rack": "r1", "site": "a"}, {"rack": "r1"}, Level.ANYWHERE),
        ({}, {}, Level.SITE),
    ],
)
def test_labels_say_how_far_apart_two_hosts_are(
    first_labels: dict[str, str], second_labels: dict[str, str], expected: Level
) -> None:
    spots = [
        worker_location(a_worker(name, labels={f"hetero/{key}": value for key, value in labels.items()}))
        for name, labels in (("a", first_labels), ("b", second_labels))
    ]
    assert common_level(spots) is expected
    assert common_level([spots[0], spots[0]._replace()]) is Level.HOST
