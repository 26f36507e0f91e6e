import pytest

from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Account, Decision, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.testing import a_device, a_pending, a_place, a_worker

GPUS = (a_device("GPU-0"), a_device("GPU-1", index=1), a_device("ill", index=2, leasable=False, problem="hot"))
WORKERS = (a_worker("a", GPUS), a_worker("b", GPUS, state=WorkerState.LOST))
SNAPSHOT = Snapshot(1, WORKERS, {("a", "GPU-1"): DeviceUsage(600, 0)}, (a_pending("r1"), a_pending("r2")))


def a_wait(request_id: str, position: int = 1) -> Wait:
    return Wait(request_id, position, Reason(ReasonCode.BUSY, "a", "b"), Account("test", "waits"))


@pytest.mark.parametrize(
    ("decisions", "faults"),
    [
        ((a_place("r1", "a", **{"GPU-0": 1000}), a_wait("r2")), []),
        ((a_place("r1", "a", **{"GPU-0": 500}), a_place("r2", "a", **{"GPU-0": 500})), []),
        ((a_wait("r1", 1), a_wait("r2", 2)), []),
        ((a_wait("r1"),), ["r2 is not decided"]),
        ((a_wait("r1", 1), a_wait("r2", 2), a_wait("r2", 3)), ["r2 is decided 2 times"]),
        ((a_wait("r1", 1), a_wait("r2", 2), a_wait("r3", 3)), ["r3 is decided but does not wait"]),
        ((a_wait("r1", 2), a_wait("r2", 1)), ["positions do not count from 1: [2, 1]"]),
        (
            (a_place("r1", "a", **{"GPU-0": 600}), a_place("r2", "a", **{"GPU-0": 500})),
            ["a GPU-0: 0 + 1100 milli of 1000 are leased"],
        ),
        ((a_place("r1", "a", **{"GPU-1": 500}), a_wait("r2")), ["a GPU-1: 600 + 500 milli of 1000 are leased"]),
        ((a_place("r1", "a", ill=1), a_wait("r2")), ["r1 claims ill, which is not leasable"]),
        ((a_place("r1", "a", none=1), a_wait("r2")), ["r1 claims none, which a does not have"]),
        ((a_place("r1", "b", **{"GPU-0": 1}), a_wait("r2")), ["r1 is placed on b, which is not there"]),
        ((a_place("r1", "c", **{"GPU-0": 1}), a_wait("r2")), ["r1 is placed on c, which is not there"]),
        ((a_place("r1", "a"), a_wait("r2")), ["r1 is placed without a device"]),
        ((a_place("r1", "a", **{"GPU-0": -1}), a_wait("r2")), ["r1 claims -1 milli and 0 bytes of GPU-0"]),
        (
            (a_place("r1", "a", **{"GPU-0": 1})._replace(alternative=1), a_wait("r2")),
            ["r1 is placed by alternative 1, which it does not have"],
        ),
        (
            (
                a_place("r1", "a")._replace(claims=(Claim(device_id="GPU-0", share_milli=1, memory_bytes=2**40),)),
                a_wait("r2"),
            ),
            [f"a GPU-0: 0 + {2**40} memory of {40 * 2**30} are leased"],
        ),
    ],
)
def test_each_fault_of_a_plan_is_named(decisions: tuple[Decision, ...], faults: list[str]) -> None:
    assert plan_faults(SNAPSHOT, Plan(decisions)) == faults


LINKED_GPUS = tuple(a_device(f"GPU-{n}", index=n, peers=(f"GPU-{n ^ 1}",)) for n in range(4))
RACKED_WORKERS = tuple(
    a_worker(name, LINKED_GPUS, labels={"hetero/rack": rack}) for name, rack in (("a", "1"), ("b", "1"), ("c", "2"))
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
    snapshot = Snapshot(1, RACKED_WORKERS, {}, (a_pending("r1", "gpu:2", topology=topology),))
    plan = Plan((a_place("r1", "a", **dict.fromkeys(devices, 1000)),))
    assert plan_faults(snapshot, plan) == faults


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
    assert plan_faults(Snapshot(1, RACKED_WORKERS, {}, pending), plan) == faults
