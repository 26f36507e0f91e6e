import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_airflow.discovery import PROBES, VENDOR_SIGNS
from hetero_airflow.discovery.discover import build_inventory, discover, has_trace
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.probe_process import ProbeReply, run_probe
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.worker import MAX_DEVICES, Inventory, Worker
from hetero_airflow.registry import load
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE
from hetero_airflow.testing import a_cpu, a_device


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs another package whose module has these probes."""

    def install(code, *names):
        (tmp_path / "acme.py").write_text(code)
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        rows = [f"{name} = acme:{name}" for name in names]
        (info / "entry_points.txt").write_text("\n".join(["[hetero_airflow.probes]", *rows]))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    return install


def test_this_host_is_a_worker_with_its_cpu_and_the_simulated_devices(monkeypatch):
    monkeypatch.setenv(SIMULATED_DEVICES_VARIABLE, "nvidia/h100-80gb:2")
    inventory = discover("worker-1", labels={"zone": "a"}, probe_timeout_s=60)
    assert inventory.problems == ()
    worker = inventory.worker
    assert (worker.id, worker.labels) == ("worker-1", {"zone": "a"})
    assert worker.devices[0].kind == "cpu"
    simulated = [device.id for device in worker.devices if device.simulated]
    assert simulated == ["simulated-nvidia-h100-80gb-0", "simulated-nvidia-h100-80gb-1"]
    assert {reading.device_id for reading in inventory.telemetry} == {device.id for device in worker.devices}
    assert worker.runtime["python"]


def test_probes_of_other_packages_are_found_and_a_broken_one_is_one_line(install, monkeypatch):
    monkeypatch.delenv(SIMULATED_DEVICES_VARIABLE, raising=False)
    code = (
        "import sys\n"
        "from hetero_airflow.discovery.probe import ProbeResult\n"
        "from hetero_airflow.model.device import Device\n"
        "def npu9():\n"
        "    loaded = {'airflow', 'torch', 'sqlalchemy', 'numpy'} & set(sys.modules)\n"
        "    device = Device(id='n9', vendor='acme', kind='npu', model='n9', index=0, memory_bytes=1)\n"
        "    return ProbeResult((device,), runtime={'loaded': ','.join(sorted(loaded)) or '-nothing'})\n"
        "def broken():\n"
        "    raise OSError('bus error')\n"
    )
    install(code, "npu9", "broken")
    inventory = discover("w", probe_timeout_s=60)
    assert inventory.worker.devices[-1].id == "n9"
    assert inventory.worker.runtime["loaded"] == "-nothing"
    assert inventory.problems == ("broken: raised OSError: bus error",)


def test_bad_text_for_simulated_devices_is_one_line_and_the_cpu_is_still_found(monkeypatch):
    monkeypatch.setenv(SIMULATED_DEVICES_VARIABLE, "h100,,cpu:x")
    inventory = discover("w", probe_timeout_s=60)
    assert [device.kind for device in inventory.worker.devices] == ["cpu"]
    (problem,) = inventory.problems
    assert problem.startswith(
        f"simulated: {SIMULATED_DEVICES_VARIABLE}='h100,,cpu:x' can't be used; found the quantity 'x'"
    )


def test_discovery_leaves_airflow_and_torch_unimported():
    code = (
        "import sys; from hetero_airflow.discovery.discover import discover; discover('w'); "
        "print(sorted({'airflow', 'torch', 'sqlalchemy', 'numpy', 'pynvml'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_duplicate_ids_are_kept_once_and_reported():
    first, duplicate = a_device("GPU-0"), a_device("GPU-0", model="h100")
    results = {
        "nvidia": ProbeResult(
            (first,), (Telemetry(device_id="GPU-0", xid=1), Telemetry(device_id="GPU-0", xid=2)), {"cuda": "12.4"}
        ),
        "acme": ProbeResult((duplicate, a_device("GPU-1")), (Telemetry(device_id="GPU-0", xid=3),), {"CUDA": "9.9"}),
        "amd": "amd: no answer within 10 s.",
    }
    inventory = build_inventory("w", results, {"python": "3.12.1"}, {"zone": "a"})
    assert inventory == Inventory(
        worker=Worker(
            id="w",
            host=inventory.worker.host,
            devices=(first, a_device("GPU-1")),
            runtime={"python": "3.12.1", "cuda": "12.4"},
            labels={"zone": "a"},
            problems=("amd: no answer within 10 s.", "acme: GPU-0 is a duplicate: nvidia found it first."),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        ),
        telemetry=(Telemetry(device_id="GPU-0", xid=1),),
        problems=("amd: no answer within 10 s.", "acme: GPU-0 is a duplicate: nvidia found it first."),
    )


def test_an_integrated_gpu_has_the_memory_that_the_cpu_probe_found():
    results = {"nvidia": ProbeResult((a_device(model="gb10", memory=None),)), "cpu": ProbeResult((a_cpu(),))}
    assert build_inventory("w", results, {}).worker.devices == (a_device(model="gb10", memory="64GiB"), a_cpu())
    del results["cpu"]
    assert build_inventory("w", results, {}).worker.devices == (a_device(model="gb10", memory=None),)


def test_more_devices_than_a_worker_has_are_left_out_and_reported():
    devices = tuple(a_device(f"GPU-{n}", index=n) for n in range(MAX_DEVICES + 2))
    inventory = build_inventory("w", {"acme": ProbeResult(devices)}, {})
    assert len(inventory.worker.devices) == MAX_DEVICES
    assert inventory.problems == (f"acme: 2 devices left out; a worker has at most {MAX_DEVICES}.",)


def test_the_answer_of_a_probe_of_another_package_is_bounded():
    result = ProbeResult(
        runtime={f"software-{n}": "1" * 1000 for n in range(1000)} | {"k" * 1000: "1"},
        problems=tuple(f"{n} " + "x\n" * 2000 for n in range(1000)),
    )
    inventory = build_inventory("w", {"acme": result}, {})
    assert len(inventory.problems) == 32
    assert max(map(len, inventory.problems)) <= 500
    assert len(inventory.worker.runtime) == 256
    assert max(map(len, [*inventory.worker.runtime, *inventory.worker.runtime.values()])) <= 64


def test_every_row_can_be_loaded_and_every_trace_belongs_to_a_row():
    for name in PROBES:
        assert callable(load("hetero_airflow.probes", PROBES, name))
    assert set(VENDOR_SIGNS) < set(PROBES)


def test_a_probe_without_a_trace_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setitem(VENDOR_SIGNS, "nvidia", (f"{tmp_path}/nvidia*", "$ACME"))
    assert not has_trace("nvidia", {})
    assert has_trace("nvidia", {"ACME": "1"})
    (tmp_path / "nvidia0").touch()
    assert has_trace("nvidia", {})
    assert has_trace("a-probe-of-another-package", {})


COMMAND = [sys.executable, "-m", "hetero_airflow.discovery.probe_process"]


def test_a_probe_can_be_run_by_hand(monkeypatch):
    monkeypatch.setenv(SIMULATED_DEVICES_VARIABLE, "nvidia/h100-80gb:1")
    ended = subprocess.run([*COMMAND, "simulated"], capture_output=True, check=True)
    answer = ProbeReply.model_validate_json(ended.stdout)
    assert answer == run_probe("simulated")
    assert answer.result is not None
    assert [device.id for device in answer.result.devices] == ["simulated-nvidia-h100-80gb-0"]
    assert ended.stderr == b""


def test_an_unreadable_setting_is_the_answers_error(monkeypatch):
    monkeypatch.setenv(SIMULATED_DEVICES_VARIABLE, "gpu:2")
    assert run_probe("simulated").error == (
        "HETERO_AIRFLOW_SIMULATED_DEVICES='gpu:2' can't be used; found no model of an accelerator in 'gpu:2'. "
        'Write it as "nvidia/h100-80gb:4,ascend/910b:2".'
    )


def test_no_device_is_an_empty_result_and_no_error(monkeypatch):
    monkeypatch.delenv(SIMULATED_DEVICES_VARIABLE, raising=False)
    assert run_probe("simulated") == ProbeReply(result=ProbeResult())
    ended = subprocess.run([*COMMAND, "simulated"], capture_output=True, check=True)
    assert json.loads(ended.stdout) == {"result": {}}


def test_the_process_ends_itself_after_its_time_limit(install):
    install("import time\ndef slow():\n    time.sleep(600)\n", "slow")
    ended = subprocess.run([*COMMAND, "slow", "0.5"], capture_output=True, check=False, timeout=60)
    assert ended.returncode == -14
