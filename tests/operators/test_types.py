"""What type checkers say about DAG files, over an installed package."""

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import operator_keywords
import pytest

from hetero_airflow.model.arguments import arguments_schema
from hetero_airflow.model.request import DeviceRequest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

GOOD = """
from datetime import timedelta

from airflow.sdk import dag

from hetero_airflow.operators import DevicePythonOperator, TorchrunOperator, task
from hetero_airflow.runtime import current_lease, local_lease


@dag(schedule=None)
def typed() -> None:
    @task.device(device=["a100:2", "gpu", "cpu:8"], runtime={"torch": ">=2.9"}, priority="high", retries=2)
    def train(size: int) -> int:
        return current_lease().count

    @task.device_bash(device="gpu", append_env=True)
    def smi() -> str:
        return "nvidia-smi"

    @task.torchrun(device="gpu:2", processes=2, on_failure_callback=print)
    def train_in_ranks(rate: float) -> float:
        return rate

    train(1)
    smi()
    train_in_ranks(0.1)
    two_hours = timedelta(hours=2)
    DevicePythonOperator(task_id="a", python_callable=print, device={"gpu", "npu"}, wait_timeout=two_hours)
    DevicePythonOperator(task_id="b", python_callable=print, device={"device": "gpu:2", "memory": "40GiB.."})
    TorchrunOperator(task_id="c", script="x.py", device="{{ params.device }}", checkpoint={"keep_best": "min:loss"})


with local_lease("gpu", quota={"share": 0.5}) as lease:
    print(lease.count)
"""

IMPORTS = """
from hetero_airflow.operators import DeviceBashOperator, DevicePodOperator, DevicePythonOperator, TorchrunOperator, task
from hetero_airflow.runtime import local_lease
from hetero_airflow.sensors import CheckpointSensor, DeviceAvailableSensor

"""
BAD = [
    "@task.device(device=3.14)\ndef f() -> None: ...",
    '@task.device(device="gpu", priority="hihg")\ndef f() -> None: ...',
    '@task.device(device="gpu", priorty="high")\ndef f() -> None: ...',
    '@task.device(device="gpu", retires=2)\ndef f() -> None: ...',
    '@task.device(device="gpu", retries="2")\ndef f() -> None: ...',
    '@task.device(device="gpu", spot="no")\ndef f() -> None: ...',
    '@task.device(device="gpu", patience="no")\ndef f() -> None: ...',
    "@task.device()\ndef f() -> None: ...",
    "@task.device\ndef f() -> None: ...",
    '@task.device_bash(device="gpu", evn={"A": "1"})\ndef f() -> str: ...',
    "@task.torchrun(processes=4)\ndef f() -> None: ...",
    '@task.torchrun(device="gpu", max_restarts="3")\ndef f() -> None: ...',
    'DevicePythonOperator(task_id="t", python_callable=print, device=3.14)',
    'DevicePythonOperator(task_id="t", python_callable=print, device="gpu", quota={"memry": "1GiB"})',
    'DevicePythonOperator(task_id="t", python_callable=print, device="gpu", checkpoint={"on_clear": "frsh"})',
    'DevicePythonOperator(python_callable=print, device="gpu")',
    'DeviceBashOperator(task_id="t", command="nvidia-smi", device="gpu")',
    'TorchrunOperator(task_id="t", script="train.py")',
    'TorchrunOperator(task_id="t", script="train.py", device="gpu", process=4)',
    'DevicePodOperator(task_id="t", image="a", device="gpu", labls={"a": "b"})',
    'DeviceAvailableSensor(task_id="t", device="gpu", timout=60)',
    'CheckpointSensor(task_id="t", of_task="train", poke_intervall=5)',
    "local_lease(3.14)",
    'local_lease("gpu", wait_timout="2h")',
]


@pytest.fixture
def dag_file(tmp_path):
    """What is right, and after it each wrong call in a function of its own."""
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    right = [GOOD, in_function("readme", re.sub(r"(def \w+\(\)):", r"\1 -> None:", code))]
    parts = [IMPORTS, *right, *(in_function(f"wrong{number}", code) for number, code in enumerate(BAD))]
    path = tmp_path / "dag_file.py"
    path.write_text("\n".join(parts))
    return path


def wrong_calls(dag_file, error_lines):
    """The wrong calls that a type checker named; -1 for an error in what is right."""
    lines = dag_file.read_text().splitlines()
    starts = [re.match(r"def wrong(\d+)", line) for line in lines]
    return {max((int(found[1]) for found in starts[:line] if found), default=-1) for line in error_lines}


@pytest.mark.system
def test_mypy_accepts_what_is_right_and_names_each_wrong_call(dag_file):
    """In one file, since mypy takes long to read Airflow. Its cache is kept for the next run."""
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'dag_files'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", cache, dag_file.name]
    done = subprocess.run(command, cwd=dag_file.parent, capture_output=True, text=True)
    lines = [int(line) for line in re.findall(r"^dag_file.py:(\d+): error: ", done.stdout, re.M)]
    assert wrong_calls(dag_file, lines) == set(range(len(BAD))), done.stdout


@pytest.mark.system
def test_pyright_accepts_what_is_right_and_names_each_wrong_call(dag_file):
    (dag_file.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, dag_file.name]
    done = subprocess.run(command, cwd=dag_file.parent, capture_output=True, text=True)
    errors = [error for error in json.loads(done.stdout)["generalDiagnostics"] if error["severity"] == "error"]
    found = wrong_calls(dag_file, [error["range"]["start"]["line"] + 1 for error in errors])
    assert found == set(range(len(BAD))), errors


def in_function(name, code):
    """The code as a function of its own, with its own imports."""
    return f"def {name}() -> None:\n{indent(code, '    ')}\n"


def test_the_examples_of_the_schema_make_requests():
    schema = arguments_schema()
    properties = schema["properties"]
    for device in properties["device"]["examples"]:
        DeviceRequest.parse(device)
    for name in ("runtime", "driver", "labels", "topology", "spot", "wait_timeout", "data"):
        for value in properties[name]["examples"]:
            DeviceRequest.parse("gpu:2", **{name: value})
    for name, field in schema["$defs"]["Quota"]["properties"].items():
        for value in field["examples"]:
            DeviceRequest.parse("gpu", quota={name: value})
    assert properties["priority"]["enum"] == ["urgent", "high", "medium", "low"]


def test_the_keywords_are_those_of_airflows_operators():
    assert operator_keywords.TARGET.read_text() == operator_keywords.text()
