from __future__ import annotations

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
