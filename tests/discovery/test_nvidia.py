import inspect
import json
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import nvidia
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import SICK_KEY, Device, Telemetry, matches_model, model_tokens
from hetero_airflow.model.devices.memory import with_host_memory
from hetero_airflow.testing import a_cpu


class FakeNvml:
    """pynvml with the answers of a fixture: names, arity, constants and errors are the real module's."""

    def __init__(self, answers):
        self._answers = answers
        self.is_open = False

    def __getattr__(self, name):
        real = getattr(pynvml, name)
        if not inspect.isfunction(real):
            return real

        def call(*arguments):
            inspect.signature(real).bind(*arguments)
            assert self.is_open, f"{name} before nvmlInit()"
            answers = arguments[0] if arguments and isinstance(arguments[0], dict) else self._answers["system"]
            if name in self._answers["system"]:
                answers = self._answers["system"]
            if name not in answers:
                raise pynvml.NVMLError_NotSupported
            return to_struct(answers[name])

        return call

    def nvmlInit(self):
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        return len(self._answers["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index):
        gpu = self._answers["gpus"][index]
        if "lost" in gpu:
            raise pynvml.NVMLError_GpuIsLost
        return gpu

    def nvmlDeviceGetPcieThroughput(self, device, counter):
        if "nvmlDeviceGetPcieThroughput" not in device:
            raise pynvml.NVMLError_NotSupported
        return device["nvmlDeviceGetPcieThroughput"][counter]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if str(index) not in device["mig"]:
            raise pynvml.NVMLError_NotFound
        return device["mig"][str(index)]


def to_struct(answer):
    if isinstance(answer, dict):
        return SimpleNamespace(**{key: to_struct(value) for key, value in answer.items()})
    return [to_struct(value) for value in answer] if isinstance(answer, list) else answer


@pytest.fixture
def probe_with(fixture_text, monkeypatch):
    def run(name, **gpu_0):
        answers = json.loads(fixture_text(f"nvidia/{name}.json"))
        answers["gpus"][0] |= gpu_0
        fake = FakeNvml(answers)
        monkeypatch.setattr(nvidia, "import_module", lambda name: fake)
        result = nvidia.probe()
        assert not fake.is_open
        return result

    return run


def a100(**fields):
    given = {
        "vendor": "nvidia", "kind": "gpu", "model": "a100-sxm4-80gb", "memory_bytes": 85899345920,
        "driver": "550.54.15", "capability": "8.0", "details": {"pcie_generation": 4, "pcie_width": 16},
    }  # fmt: skip
    return Device(**given | fields)


def test_two_linked_gpus_one_of_which_needs_repair(probe_with):
    first, second = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-64bd6a1e-8a2b-4a7f-9f1e-3d0c1f0c1c11"
    assert probe_with("dgx-a100") == ProbeResult(
        devices=(
            a100(id=first, index=0, pci="0000:07:00.0", peers=(second,)),
            a100(
                id=second,
                index=1,
                pci="0000:0f:00.0",
                peers=(first,),
                leasable=False,
                problem="A broken row of its memory could not be replaced; the GPU needs repair.",
                details={"pcie_generation": 4, "pcie_width": 16, SICK_KEY: True},
            ),
        ),
        telemetry=(
            Telemetry(
                device_id=first,
                memory_free_bytes=85443870720,
                utilization=0.37,
                temperature_c=41,
                power_w=63.18,
                pcie_sent_bytes_per_s=26_700_000,
                pcie_received_bytes_per_s=1_204_500_000,
                ecc_errors=0,
            ),
            Telemetry(device_id=second, memory_free_bytes=85443870720, ecc_errors=3),
        ),
        runtime={"cuda": "12.4"},
    )


def test_a_gpu_in_mig_mode_is_followed_by_its_instances_and_not_leased_itself(probe_with):
    parent = "GPU-0f0e0d0c-0b0a-4908-8706-050403020100"
    common = {"driver": "580.126.09", "pci": "0000:00:08.0"}
    result = probe_with("mig-a100", nvmlDeviceGetPciInfo={"busId": "00000000:00:08.0"})
    small, large = "MIG-8c3b9a5e-7e0c-5a4e-9b57-2f1f3c2b1a01", "MIG-1d2e3f40-5162-5374-8596-a7b8c9d0e1f2"
    assert result == ProbeResult(
        devices=(
            a100(
                id=parent,
                index=0,
                leasable=False,
                problem="In MIG mode: its instances are leased instead.",
                **common,
            ),
            a100(id=small, index=0, memory_bytes=10200547328, partition="1g.10gb", parent=parent, **common),
            a100(id=large, index=2, memory_bytes=42144366592, partition="3g.40gb", parent=parent, **common),
        ),
        telemetry=(
            Telemetry(device_id=parent, memory_free_bytes=85364178944, temperature_c=33),
            Telemetry(device_id=small, memory_free_bytes=10187112448),
            Telemetry(device_id=large, memory_free_bytes=42106617856),
        ),
        runtime={"cuda": "13.0"},
    )


def test_a_gpu_in_mig_mode_without_instances_says_what_to_do(probe_with):
    (gpu,) = (d for d in probe_with("mig-a100", mig={}).devices)
    assert not gpu.leasable
    assert gpu.problem == 'In MIG mode without an instance; create some with "nvidia-smi mig -cgi", or turn MIG off.'


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"nvmlDeviceGetComputeMode": 2}, 'Its compute mode is "prohibited"; run "nvidia-smi -i 0 -c DEFAULT".'),
        (
            {"nvmlDeviceGetFieldValues": [{"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": 1}}]},
            "The driver says that the GPU asks to be reset; drain it and do so.",
        ),
        ({"nvmlDeviceGetFieldValues": [{"nvmlReturn": 3, "valueType": 1, "value": {"uiVal": 1}}]}, None),
        ({"nvmlDeviceGetFieldValues": [{"nvmlReturn": 0, "valueType": 0, "value": {"uiVal": 1}}]}, None),
        ({"nvmlDeviceGetFieldValues": [{"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": 3}}]}, None),
    ],
)
def test_only_a_fault_that_makes_a_gpu_unusable_keeps_it_from_being_leased(probe_with, answers, problem):
    gpu = probe_with("dgx-a100", **answers).devices[0]
    assert (gpu.leasable, gpu.problem) == (problem is None, problem)
    assert gpu.details.get(SICK_KEY, False) == (problem is not None and "compute mode" not in problem)


def test_instances_of_a_gpu_that_must_be_reset_are_not_leased(probe_with):
    reset = [{"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": 1}}]
    assert [d.leasable for d in probe_with("mig-a100", nvmlDeviceGetFieldValues=reset).devices] == [False] * 3


def test_a_lost_gpu_is_a_problem_and_the_other_gpus_are_found(probe_with):
    result = probe_with("dgx-a100", lost=True)
    assert [device.index for device in result.devices] == [1]
    assert result.devices[0].peers == ()
    assert result.problems == ('GPU 0 can\'t be used: GPU is lost. Look for "NVRM: Xid" in dmesg.',)


def test_unsupported_calls_leave_fields_out(monkeypatch):
    fake = FakeNvml({"system": {}, "gpus": [{"nvmlDeviceGetUUID": "GPU-0"}]})
    monkeypatch.setattr(nvidia, "import_module", lambda name: fake)
    device = Device(
        id="GPU-0", vendor="nvidia", kind="gpu", model="unknown", index=0, memory_bytes=None,
        details={"pcie_generation": None, "pcie_width": None},
    )  # fmt: skip
    assert nvidia.probe() == ProbeResult((device,), (Telemetry(device_id="GPU-0"),))


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Thor"])
def test_a_gpu_without_memory_of_its_own_is_leased_and_has_the_hosts(monkeypatch, name):
    fake = FakeNvml({"system": {}, "gpus": [{"nvmlDeviceGetUUID": "GPU-0", "nvmlDeviceGetName": name}]})
    monkeypatch.setattr(nvidia, "import_module", lambda name: fake)
    (device,) = nvidia.probe().devices
    assert (device.memory_bytes, device.leasable) == (None, True)
    assert with_host_memory((device, a_cpu(memory="119GiB")))[0].memory_bytes == 119 * 2**30


UNKNOWN, LOST, NOT_SUPPORTED = (
    pynvml.NVMLError(code)
    for code in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED)
)


@pytest.fixture
def gpus_with(fixture_text):
    """The two GPUs of a fixture; calls of the first one are replaced, by an error or another answer."""

    def run(answers, *, name="dgx-a100", default=None):
        fixture = json.loads(fixture_text(f"nvidia/{name}.json"))
        fake = FakeNvml(fixture)
        fake.nvmlInit()
        first = fixture["gpus"][0]

        class Replaced:
            def __getattr__(self, call):
                real = getattr(fake, call)

                def replaced(*arguments):
                    if arguments and arguments[0] is first and default is not None and call not in answers:
                        raise default
                    answer = answers.get(call) if arguments[:1] == (first,) or not arguments else None
                    if isinstance(answer, Exception):
                        raise answer
                    return real(*arguments) if answer is None else answer

                return replaced if callable(real) and call.startswith("nvml") else real

        return nvidia.parse(nvidia.read(Replaced()))

    return run


@pytest.mark.parametrize("cached", [{}, {"nvmlDeviceGetName": "NVIDIA A40", "nvmlDeviceGetUUID": "GPU-b"}])
@pytest.mark.parametrize("error", [LOST, UNKNOWN])
def test_a_gpu_whose_readings_fail_is_not_leased_and_is_a_problem(gpus_with, cached, error):
    result = gpus_with(cached, default=error)
    assert [device.leasable for device in result.devices] == [False, False]  # the second one needs repair
    assert result.devices[0].id == cached.get("nvmlDeviceGetUUID", "nvidia-0")
    assert result.devices[0].details[SICK_KEY]
    (problem,) = result.problems
    assert problem.startswith(f"GPU 0 does not answer: nvmlDeviceGetPciInfo() fails: {error}.")
    assert result.users == {}


def test_a_count_that_fails_is_a_problem(gpus_with):
    result = gpus_with({"nvmlDeviceGetCount": UNKNOWN})
    assert (result.devices, result.problems) == (
        (),
        (
            "nvmlDeviceGetCount() fails: Unknown Error. So the number of GPUs is unknown, and none is offered; run "
            '"nvidia-smi", and look for "NVRM" in dmesg.',
        ),
    )


@pytest.mark.parametrize("call", ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"])
@pytest.mark.parametrize(
    ("answer", "users"),
    [(UNKNOWN, {}), ([SimpleNamespace(pid=7)], {"GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f": (7,)})],
)
def test_a_list_of_processes_that_fails_is_not_nobody(gpus_with, call, answer, users):
    processes = {"nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetGraphicsRunningProcesses": []}
    result = gpus_with(processes | {call: answer})
    assert result.users == users
    assert result.devices[0].leasable == bool(users)
    assert ("So its users are unknown." in (result.devices[0].problem or "")) != bool(users)


@pytest.mark.parametrize(("call", "is_leased"), [("nvmlDeviceGetPowerUsage", True), ("nvmlDeviceGetMigMode", False)])
def test_only_a_reading_that_every_healthy_gpu_gives_must_not_fail(gpus_with, call, is_leased):
    assert gpus_with({call: UNKNOWN}).devices[0].leasable == is_leased
    assert gpus_with({call: NOT_SUPPORTED}).devices[0].leasable
    assert not gpus_with({call: LOST}).devices[0].leasable


@pytest.mark.parametrize(
    ("state", "status", "problem"),
    [
        (0, 0, None),
        (3, 0, None),
        (1, 0, 'is "not started"'),
        (2, 0, 'is "in progress"'),
        (3, 15, "is up with error 15"),
        (9, 0, 'is "9"'),
    ],
)
@pytest.mark.parametrize("call", ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"])
def test_a_gpu_outside_of_its_nvlink_fabric_is_not_leased(gpus_with, call, state, status, problem):
    gpu = gpus_with({call: SimpleNamespace(state=state, status=status)}).devices[0]
    words = (
        f'Its NVLink fabric {problem}, so CUDA can\'t start; run "systemctl status nvidia-fabricmanager" on the host.'
    )
    assert (gpu.leasable, gpu.problem) == ((True, None) if problem is None else (False, words))
    assert SICK_KEY not in gpu.details


def test_an_instance_without_a_uuid_is_not_leased(probe_with):
    instance = {"0": {"nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB MIG 1g.10gb"}}
    assert [device.leasable for device in probe_with("mig-a100", mig=instance).devices] == [False, False]


@pytest.fixture
def break_nvml(monkeypatch):
    """Lets the initialisation of NVML raise an error."""

    def run(error):
        def init():
            raise error

        errors = {name: getattr(pynvml, name) for name in ("NVMLError", "NVMLError_LibraryNotFound")}
        monkeypatch.setattr(nvidia, "import_module", lambda name: SimpleNamespace(nvmlInit=init, **errors))

    return run


def test_no_library_is_an_empty_result(break_nvml):
    break_nvml(pynvml.NVMLError_LibraryNotFound)
    assert nvidia.probe() == ProbeResult()


def test_a_driver_of_another_version_than_its_library_is_an_error(break_nvml):
    break_nvml(pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    with pytest.raises(ProbeError) as caught:
        nvidia.probe()
    assert caught.value.found == "RM has detected an NVML/RM version mismatch."


@pytest.mark.parametrize(
    ("name", "model", "device_word"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3", "h100"),
        ("NVIDIA H200", "h200", "h200"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "tesla-v100-sxm2-32gb", "v100-32gb"),
        ("Tesla T4", "tesla-t4", "t4"),
        ("NVIDIA L40S", "l40s", "l40s"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100-sxm4-80gb", "a100"),
        ("NVIDIA", "unknown", "unknown"),
    ],
)
def test_models_match_the_words_of_the_catalogue(name, model, device_word):
    assert nvidia.to_model(name) == model
    assert matches_model(device_word, model_tokens(model))


READINGS = (
    "utilization", "temperature", "power_mw", "pcie_sent_kb_per_s", "pcie_received_kb_per_s", "ecc_uncorrected",
)  # fmt: skip
maybe = st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70))


@given(
    name=st.one_of(st.none(), st.text()),
    uuid=st.one_of(st.none(), st.text(min_size=1)),
    total=maybe,
    readings=st.fixed_dictionaries(dict.fromkeys(READINGS, maybe)),
    driver=st.text(),
    cuda=maybe,
)
def test_no_answer_of_nvml_stops_the_parser(name, uuid, total, readings, driver, cuda):
    gpu = {"index": 0, "name": name, "uuid": uuid, "memory": {"total": total, "free": total}, **readings}
    instance = {"index": 0, "name": name, "uuid": uuid, "memory": None}
    raw = {"driver": driver, "cuda": cuda, "gpus": [gpu | {"mig_mode": [1, 1], "mig": [instance]}]}
    assert len(nvidia.parse(raw).devices) == 2


@pytest.mark.gpu
def test_the_real_nvml_of_this_host():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU here: nvmlInit() says {error}")
    count = pynvml.nvmlDeviceGetCount()
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    pynvml.nvmlShutdown()
    result = nvidia.probe()
    whole = [device for device in result.devices if device.parent is None]
    assert len(whole) + len(result.problems) == count
    assert whole[0].id == uuid
    assert whole[0].memory_bytes > 1 << 30
    assert result.telemetry[0].memory_free_bytes is not None
    assert result.runtime["cuda"]
