import json
import os
import subprocess
import sys

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.probe_process import ProbeReply, run_probe

COMMAND = [sys.executable, "-m", "hetero_airflow.discovery.probe_process"]


def test_a_probe_can_be_run_by_hand(monkeypatch):
    monkeypatch.setenv("HETERO_AIRFLOW_SIMULATED_DEVICES", "nvidia/h100-80gb:1")
    ended = subprocess.run([*COMMAND, "simulated"], capture_output=True, check=True)
    answer = ProbeReply.model_validate_json(ended.stdout)
    assert answer == run_probe("simulated")
    assert answer.result is not None
    assert [device.id for device in answer.result.devices] == ["simulated-nvidia-h100-80gb-0"]
    assert ended.stderr == b""


def test_an_unreadable_setting_is_the_answers_error(monkeypatch):
    monkeypatch.setenv("HETERO_AIRFLOW_SIMULATED_DEVICES", "gpu:2")
    assert run_probe("simulated").error == (
        "HETERO_AIRFLOW_SIMULATED_DEVICES='gpu:2' can't be used; found no model of an accelerator in 'gpu:2'. "
        'Write it as "nvidia/h100-80gb:4,ascend/910b:2".'
    )


def test_no_device_is_an_empty_result_and_no_error(monkeypatch):
    monkeypatch.delenv("HETERO_AIRFLOW_SIMULATED_DEVICES", raising=False)
    assert run_probe("simulated") == ProbeReply(result=ProbeResult())
    ended = subprocess.run([*COMMAND, "simulated"], capture_output=True, check=True)
    assert json.loads(ended.stdout) == {"result": {}}


def test_the_process_ends_itself_after_its_time_limit(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\ndef probe():\n    time.sleep(600)\n")
    info = tmp_path / "slow-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: slow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hetero_airflow.probes]\nslow = slow:probe\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    ended = subprocess.run([*COMMAND, "slow", "0.5"], capture_output=True, check=False, timeout=60)
    assert ended.returncode == -14
