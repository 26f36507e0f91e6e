from __future__ import annotations

import pytest

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.topology_check import topology_faults
from hetero_airflow.testing import a_device, a_pending, a_place, a_worker

GPUS = tuple(a_device(f"GPU-{n}", index=n, peers=(f"GPU-{n ^ 1}",)) for n in range(4))
WORKERS = tuple(
    a_worker(name, GPUS, labels={"hetero/rack": rack}) for name, rack in (("a", "1"), ("b", "1"), ("c", "2"))
)


@pytest.mark.parametrize(
    ("topology", "devices", "faults"),
    [
        ("nvlink", ("GPU-2", "GPU-3"), []),
        ("nvlink", ("GPU-1", "GPU-2"), ["r1 gets GPU-1 and GPU-2, which are not joined by nvlink"]),
        ("nvlink@10m", ("GPU-1", "GPU-2"), []),
        ("numa", ("GPU-1", "GPU-2"), []),
    ],
)
def test_devices_are_joined_as_asked(topology: str, devices: tuple[str, ...], faults: list[str]) -> None:
    snapshot = Snapshot(1, WORKERS, {}, (a_pending("r1", "gpu:2", topology=topology),))
    plan = Plan((a_place("r1", "a", **dict.fromkeys(devices, 1000)),))
    assert list(topology_faults(snapshot, plan)) == faults


@pytest.mark.parametrize(
    ("topology", "hosts", "faults"),
    [
        ("rack", "ab", []),
        ("rack", "ac", ["gang g is placed within one site, and asks for one rack"]),
        ("host", "ab", ["gang g is placed within one rack, and asks for one host"]),
        ("host", "aa", []),
        ("rack@1m", "ac", []),
    ],
)
def test_a_gang_is_as_near_together_as_asked(topology: str, hosts: str, faults: list[str]) -> None:
    pending = tuple(a_pending(f"r{n}", "gpu", topology=topology, gang="g", gang_size=2) for n in range(2))
    plan = Plan(tuple(a_place(f"r{n}", host, **{f"GPU-{n}": 1000}) for n, host in enumerate(hosts)))
    assert list(topology_faults(Snapshot(1, WORKERS, {}, pending), plan)) == faults
