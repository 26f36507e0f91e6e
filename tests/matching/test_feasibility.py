from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hetero_airflow.matching.feasibility import (
    Feasibility,
    ResourceNeed,
    check_worker,
    device_need,
    feasibility_of,
    host_need,
    version_obstacle,
)
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.device import Device
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.testing import a_cpu, a_device, a_worker
from hetero_airflow.units import MAX_BYTES, ByteRange

GIB = 2**30


def an_alternative(device: object = "gpu", **fields: Any) -> Alternative:
    return DeviceRequest.parse(device, **fields).alternatives[0]


A100 = a_device()
MIG = a_device("MIG-0", memory="10GiB", partition="1g.10gb", parent="GPU-9")
PARENT = a_device("GPU-9", leasable=False, problem="in MIG mode")
MI300 = a_device("MI-0", "mi300x", "192GiB", vendor="amd")
N910 = a_device("N-0", "910b3", "64GiB", vendor="ascend", kind="npu")


def with_driver(driver: str | None) -> Device:
    return a_device(driver=driver)


K, M, P = ReasonCode.KIND, ReasonCode.MODEL, ReasonCode.PARTITION
NAME = "nvidia/a100-sxm4-40gb"


@pytest.mark.parametrize(
    ("alternative", "device", "reason"),
    [
        (an_alternative("gpu"), A100, None),
        (an_alternative("nvidia"), A100, None),
        (an_alternative("a100-40gb"), A100, None),
        (an_alternative("amd"), A100, Reason(K, "amd/gpu", NAME)),
        (an_alternative("npu"), A100, Reason(K, "npu", NAME)),
        (an_alternative("910b"), N910, None),
        (an_alternative("acme/910b"), N910, Reason(K, "acme/910b", "ascend/910b3")),
        (an_alternative("h100"), A100, Reason(M, "nvidia/h100", NAME)),
        (an_alternative("a10"), A100, Reason(M, "nvidia/a10", NAME)),
        (an_alternative("a100-80gb"), A100, Reason(M, "nvidia/a100-80gb", NAME)),
        (an_alternative("gpu"), MIG, Reason(P, "gpu, not a MIG instance", f"{NAME} mig-1g.10gb")),
        (an_alternative("mig-1g.10gb"), MIG, None),
        (an_alternative("mig-2g.20gb"), MIG, Reason(P, "mig-2g.20gb", f"{NAME} mig-1g.10gb")),
        (an_alternative("mig-1g.10gb"), A100, Reason(P, "mig-1g.10gb", NAME)),
        (an_alternative("gpu", quota={"memory": "40GiB.."}), A100, None),
        (
            an_alternative("gpu", quota={"memory": "41GiB.."}),
            A100,
            Reason(ReasonCode.MEMORY, "41GiB..", "40GiB"),
        ),
        (an_alternative("gpu", quota={"memory": "..39GiB"}), A100, Reason(ReasonCode.MEMORY, "..39GiB", "40GiB")),
        (an_alternative("gpu:0.5", quota={"memory": "20GiB.."}), A100, None),
        (
            an_alternative("gpu:0.5", quota={"memory": "21GiB.."}),
            A100,
            Reason(ReasonCode.MEMORY, "21GiB..", "20GiB for a share of 0.5"),
        ),
        (an_alternative("gpu", driver=">=550"), A100, None),
        (an_alternative("gpu", driver=">=560"), A100, Reason(ReasonCode.DRIVER, "driver>=560", "550.54.15")),
        (
            an_alternative("gpu", driver=">=560"),
            with_driver(None),
            Reason(ReasonCode.DRIVER, "driver>=560", "no known version"),
        ),
        (
            an_alternative("gpu", driver=">=560"),
            with_driver("r560 (beta)"),
            Reason(ReasonCode.DRIVER, "driver>=560", "'r560 (beta)', which is no version"),
        ),
        (an_alternative("cpu"), A100, Reason(K, "cpu", NAME)),
        (
            an_alternative("acme/x86-64"),
            a_cpu(vendor="acme"),
            Reason(K, "acme/x86-64", "a CPU, which is requested as cpu"),
        ),
    ],
)
def test_a_device_meets_the_conditions_or_has_a_reason(
    alternative: Alternative, device: Device, reason: Reason | None
) -> None:
    assert check_worker(alternative, a_worker(devices=(device,))) == (reason is None, reason)


@pytest.mark.parametrize(
    ("alternative", "worker", "reason"),
    [
        (an_alternative("gpu:2"), a_worker(), None),
        (an_alternative("gpu:3"), a_worker(), Reason(ReasonCode.COUNT, "3 × gpu", "2")),
        (an_alternative("cpu:8"), a_worker(), None),
        (an_alternative("cpu:9"), a_worker(), Reason(ReasonCode.COUNT, "9 cores", "8")),
        (an_alternative("cpu"), a_worker(devices=()), Reason(K, "cpu", "a worker without devices")),
        (an_alternative("gpu", quota={"cpus": 9}), a_worker(), Reason(ReasonCode.CPUS, "9 cores", "8")),
        (
            an_alternative("gpu", quota={"cpus": 1}),
            a_worker(devices=(A100,)),
            Reason(ReasonCode.CPUS, "1 cores", "0"),
        ),
        (
            an_alternative("cpu", quota={"host_memory": "65GiB"}),
            a_worker(),
            Reason(ReasonCode.HOST_MEMORY, "65GiB of host memory", "64GiB"),
        ),
        (an_alternative({"device": "gpu", "architecture": "amd64"}), a_worker(), None),
        (
            an_alternative({"device": "gpu", "architecture": "arm64"}),
            a_worker(),
            Reason(ReasonCode.RUNTIME, "architecture=aarch64", "architecture: x86-64"),
        ),
        (
            an_alternative({"device": "gpu", "architecture": "x86-64"}),
            a_worker(devices=(A100, a_cpu(capability=None))),
            Reason(ReasonCode.RUNTIME, "architecture=x86-64", "architecture: unknown"),
        ),
        (an_alternative("gpu", labels={"zone": "eu"}), a_worker(labels={"zone": "eu", "x": "y"}), None),
        (an_alternative("gpu", labels={"rack": "!7"}), a_worker(labels={"rack": "8"}), None),
        (an_alternative("gpu", labels={"rack": "!7"}), a_worker(), None),
        (an_alternative("gpu", spot=False), a_worker(), None),
        (an_alternative("gpu", spot=False), a_worker(labels={"hetero/spot": "false"}), None),
        (an_alternative("gpu"), a_worker(labels={"hetero/spot": "true"}), None),
        (
            an_alternative("gpu", spot=False),
            a_worker(labels={"hetero/spot": "true"}),
            Reason(ReasonCode.LABELS, "spot=False", "hetero/spot=true"),
        ),
        (
            an_alternative("gpu", labels={"rack": "!7"}),
            a_worker(labels={"rack": "7"}),
            Reason(ReasonCode.LABELS, "rack=!7", "rack=7"),
        ),
        (
            an_alternative("gpu", labels={"rack": "!7, 8"}),
            a_worker(labels={"rack": "8"}),
            Reason(ReasonCode.LABELS, "rack=!7, 8", "rack=8"),
        ),
        (
            an_alternative("gpu", labels={"zone": "eu"}),
            a_worker(labels={"zone": "us"}),
            Reason(ReasonCode.LABELS, "zone=eu", "zone=us"),
        ),
        (
            an_alternative("gpu", labels={"zone": "eu"}),
            a_worker(),
            Reason(ReasonCode.LABELS, "zone=eu", "no label zone"),
        ),
        (an_alternative("gpu", runtime={"CUDA": ">=12.4", "torch": "==2.9.*"}), a_worker(), None),
        (an_alternative("gpu", runtime={"cuda": ">=12.4"}), a_worker(runtime={"CUDA": "12.4"}), None),
        (
            an_alternative("gpu", runtime={"cuda": ">=13"}),
            a_worker(),
            Reason(ReasonCode.RUNTIME, "cuda>=13", "cuda: 12.4"),
        ),
        (
            an_alternative("gpu", runtime={"jax": ">=0.4"}),
            a_worker(),
            Reason(ReasonCode.RUNTIME, "jax>=0.4", "jax: no known version"),
        ),
        (
            an_alternative("gpu"),
            a_worker(state=WorkerState.LOST),
            Reason(ReasonCode.LOST, "1 × gpu", "a worker whose heartbeat stopped"),
        ),
        (
            an_alternative("a100"),
            a_worker(devices=(PARENT,)),
            Reason(ReasonCode.HEALTH, "1 × nvidia/a100", "0 of 1 healthy: in MIG mode"),
        ),
        (an_alternative("gpu"), a_worker(devices=(PARENT, A100)), None),
        (
            an_alternative("gpu", quota={"cpus": 1}),
            a_worker(devices=(a_cpu(leasable=False, problem="offline"), A100)),
            Reason(ReasonCode.HEALTH, "1 × gpu (cpus=1)", "its CPU: offline"),
        ),
        (
            an_alternative("gpu", quota={"host_memory": "8GiB"}),
            a_worker(devices=(A100,)),
            Reason(ReasonCode.HOST_MEMORY, "8GiB of host memory", "unknown"),
        ),
    ],
)
def test_a_worker_is_large_enough_or_has_a_reason(
    alternative: Alternative, worker: Worker, reason: Reason | None
) -> None:
    assert check_worker(alternative, worker) == (reason is None, reason)


UNMEASURED = a_device("U", "910b3", None, vendor="ascend", kind="npu")


@pytest.mark.parametrize("text", ["npu", "910b", "ascend/910b3", "npu:0.5"])
def test_unknown_memory_suits_a_request_without_a_bound(text: str) -> None:
    alternative = an_alternative(text)
    assert check_worker(alternative, a_worker(devices=(UNMEASURED,))) == (True, None)
    assert device_need(alternative, UNMEASURED) == ResourceNeed(alternative.share_milli, 0)


@given(
    minimum=st.none() | st.integers(1, MAX_BYTES // 2),
    more=st.none() | st.integers(0, MAX_BYTES // 2),
    share=st.none() | st.floats(0.001, 0.999),
)
@example(minimum=None, more=MAX_BYTES // 2, share=None)
def test_unknown_memory_suits_no_bound(minimum: int | None, more: int | None, share: float | None) -> None:
    maximum = None if more is None else (minimum or 1) + more
    memory = ByteRange(minimum, maximum)
    assume((minimum, maximum) != (None, None))
    alternative = Alternative(kind="npu", memory=memory, share=share)
    reason = Reason(ReasonCode.MEMORY, str(memory), "unknown")
    assert check_worker(alternative, a_worker(devices=(UNMEASURED,))) == (False, reason)


@given(st.integers(1, 4096))
def test_unknown_memory_has_no_size_that_a_model_names(size: int) -> None:
    assert not check_worker(Alternative(model=f"910b-{size}gb"), a_worker(devices=(UNMEASURED,)))[0]


CARD = a_device("C", "radeon-rx-7900-xtx", "24GiB", vendor="amd", capability="gfx1100")
INTEGRATED = a_device("I", "amd-radeon-graphics", "64GiB", vendor="amd", capability="gfx1036")
ONLY_NAMED = "amd/amd-radeon-graphics, an integrated GPU, which only a request that names it gets"


@pytest.mark.parametrize(
    ("alternative", "devices", "reason"),
    [
        (an_alternative("gpu:2"), (CARD, INTEGRATED), Reason(ReasonCode.COUNT, "2 × gpu", f"1, and {ONLY_NAMED}")),
        (an_alternative("gpu"), (INTEGRATED,), None),
        (an_alternative("gpu:2"), (INTEGRATED, INTEGRATED.model_copy(update={"id": "J"})), None),
        (an_alternative("amd/radeon-graphics"), (CARD, INTEGRATED), None),
        (an_alternative("amd/radeon:2"), (CARD, INTEGRATED),
         Reason(ReasonCode.COUNT, "2 × amd/radeon", f"1, and {ONLY_NAMED}")),
        (an_alternative("amd/gpu"), (A100, INTEGRATED), Reason(M, "amd/gpu", ONLY_NAMED)),
        (an_alternative("amd/gpu"), (a_device(simulated=True), INTEGRATED), None),
        (an_alternative("amd/radeon"), (A100, INTEGRATED), None),
        (an_alternative("gpu", quota={"memory": "40GiB"}), (CARD, INTEGRATED),
         Reason(ReasonCode.MEMORY, "40GiB..", "24GiB")),
    ],
)  # fmt: skip
def test_an_integrated_gpu_beside_a_card_is_only_for_a_request_that_names_it(
    alternative: Alternative, devices: tuple[Device, ...], reason: Reason | None
) -> None:
    assert check_worker(alternative, a_worker(devices=(a_cpu(), *devices))) == (reason is None, reason)


def test_a_request_that_names_no_model_gets_the_card_beside_an_integrated_gpu() -> None:
    shape = Shapes().entry(a_worker(devices=(a_cpu(), INTEGRATED, CARD))).shape
    ids = [shape.devices[position].id for position in feasibility_of(an_alternative("gpu"), shape).suitable]
    assert ids == ["C"]
    assert Shapes().entry(a_worker(devices=(a_cpu(), INTEGRATED))).shape.integrated == frozenset()


def test_permanent_and_transient_reasons_differ() -> None:
    shape = Shapes().entry(a_worker(devices=(PARENT, a_device("GPU-1", index=1)))).shape
    feasibility = feasibility_of(an_alternative("gpu:2"), shape)
    assert (feasibility.is_possible, feasibility.is_servable) == (True, False)
    assert (feasibility.suitable, feasibility.usable) == ((0, 1), (1,))
    impossible = feasibility_of(an_alternative("gpu:3"), shape)
    assert (impossible.is_possible, impossible.is_servable) == (False, False)


def test_a_feasibility_has_positions_and_needs() -> None:
    shape = Shapes().entry(a_worker(devices=(MI300, a_device("GPU-1", index=1)))).shape
    need = ResourceNeed(250, 10 * GIB)
    assert feasibility_of(an_alternative("nvidia:0.25"), shape) == Feasibility(
        None, None, (1,), (1,), {1: need}, "0.25 of a nvidia/gpu"
    )


@pytest.mark.parametrize(
    ("alternative", "of_device", "of_host"),
    [
        (an_alternative("gpu"), ResourceNeed(1000, 40 * GIB), None),
        (an_alternative("gpu:0.1"), ResourceNeed(100, 4 * GIB), None),
        (an_alternative({"device": "gpu", "share": 1 / 3}), ResourceNeed(333, 40 * GIB * 333 // 1000), None),
        (an_alternative("gpu:2", quota={"cpus": 3}), ResourceNeed(1000, 40 * GIB), ResourceNeed(3000, 0)),
        (an_alternative("gpu", quota={"host_memory": "8GiB"}), ResourceNeed(1000, 40 * GIB), ResourceNeed(0, 8 * GIB)),
    ],
)
def test_needs_of_accelerators(alternative: Alternative, of_device: ResourceNeed, of_host: ResourceNeed | None) -> None:
    assert (device_need(alternative, A100), host_need(alternative)) == (of_device, of_host)


def test_needs_of_a_cpu_are_cores_and_host_memory() -> None:
    alternative = an_alternative("cpu:8", quota={"host_memory": "2GiB"})
    assert (device_need(alternative, a_cpu()), host_need(alternative)) == (ResourceNeed(8000, 2 * GIB), None)


def test_three_thirds_of_a_device_fit_its_memory() -> None:
    odd = a_device(memory="40961MiB")
    need = device_need(an_alternative({"device": "gpu", "share": 1 / 3}), odd)
    assert 3 * need.memory_bytes <= odd.memory_bytes


def test_a_node_does_not_know_the_software_of_images_and_shares_no_device() -> None:
    node = a_worker(devices=(a_cpu(), a_device("nvidia.com/gpu/0")), runtime={"cuda": "12.4"}, engine="kubernetes")
    assert check_worker(an_alternative("gpu", runtime={"torch": ">=2.8"}), node) == (True, None)
    assert check_worker(an_alternative("gpu", runtime={"cuda": ">=12.6"}), node)[0] is False
    is_possible, reason = check_worker(an_alternative("gpu:0.5"), node)
    assert (is_possible, str(reason)) == (
        False, "partition: asked a share of 0.5, found a device plugin, which gives whole devices"
    )  # fmt: skip
    assert check_worker(an_alternative("gpu:0.5"), node.model_copy(update={"engine": "local"})) == (True, None)


@pytest.mark.parametrize(
    ("installed", "specifier", "obstacle"),
    [
        ("12.4", ">=12.4", None),
        ("12.10", ">=12.4", None),
        ("12.4", ">12.4", "12.4"),
        ("2.9.0+cu128", "==2.9.0", None),
        ("24.1.rc3", ">=23", None),
        ("24.1rc3", ">=24.1", "24.1rc3"),
        ("", ">=1", "'', which is no version"),
        ("not a version", ">=1", "'not a version', which is no version"),
        (None, ">=1", "no known version"),
    ],
)
def test_a_version_matches_as_in_pip_or_is_shown(installed: str | None, specifier: str, obstacle: str | None) -> None:
    assert version_obstacle(installed, specifier) == obstacle


@pytest.mark.parametrize("hostile", ["9" * 5000, "1." * 50_000, "x" * 100_000, "\x00", "１２"])
def test_a_hostile_version_is_never_a_crash(hostile: str) -> None:
    obstacle = version_obstacle(hostile, ">=1000000")
    assert obstacle is not None
    assert len(obstacle) < 100
