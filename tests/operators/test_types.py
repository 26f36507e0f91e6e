"""What type checkers say about DAG files: mypy in its strict mode, over an installed package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_airflow.model.arguments import arguments_schema
from hetero_airflow.model.request import DeviceRequest

README = (Path(__file__).parents[2] / "README.md").read_text()

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

    train(1)
    two_hours = timedelta(hours=2)
    DevicePythonOperator(task_id="a", python_callable=print, device={"gpu", "npu"}, wait_timeout=two_hours)
    DevicePythonOperator(task_id="b", python_callable=print, device={"device": "gpu:2", "memory": "40GiB.."})
    TorchrunOperator(task_id="c", script="x.py", device="{{ params.device }}", checkpoint={"keep_best": "min:loss"})


with local_lease("gpu", quota={"share": 0.5}) as lease:
    print(lease.count)
"""

IMPORTS = """
from hetero_airflow.operators import DevicePythonOperator, task
from hetero_airflow.runtime import local_lease

"""
BAD = [
    "@task.device(device=3.14)\ndef f() -> None: ...",
    '@task.device(device="gpu", priority="hihg")\ndef f() -> None: ...',
    'DevicePythonOperator(task_id="t", python_callable=print, device=3.14)',
    'DevicePythonOperator(task_id="t", python_callable=print, device="gpu", quota={"memry": "1GiB"})',
    'DevicePythonOperator(task_id="t", python_callable=print, device="gpu", checkpoint={"on_clear": "frsh"})',
    '@task.device(device="gpu", spot="no")\ndef f() -> None: ...',
    "local_lease(3.14)",
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """File → lines of mypy's errors."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "good.py").write_text(GOOD)
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    (folder / "readme.py").write_text(re.sub(r"(def \w+\(\)):", r"\1 -> None:", code))
    for number, code in enumerate(BAD):
        (folder / f"bad{number}.py").write_text(f"{IMPORTS}{code}\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = {path.name: [] for path in folder.glob("*.py")}
    for line in done.stdout.splitlines():
        found[line.partition(":")[0]].append(line)
    return found


def test_what_is_right_passes_the_strict_mode(errors):
    assert (errors["good.py"], errors["readme.py"]) == ([], [])


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_wrong_argument_is_a_type_error(errors, number):
    assert [line.rpartition("[")[2] for line in errors[f"bad{number}.py"]] == ["arg-type]"]


def test_the_examples_of_the_schema_make_requests():
    schema = arguments_schema()
    properties = schema["properties"]
    for device in properties["device"]["examples"]:
        DeviceRequest.parse(device)
    for name in ("runtime", "driver", "labels", "topology", "spot", "wait_timeout"):
        for value in properties[name]["examples"]:
            DeviceRequest.parse("gpu:2", **{name: value})
    for name, field in schema["$defs"]["Quota"]["properties"].items():
        for value in field["examples"]:
            DeviceRequest.parse("gpu", quota={name: value})
    assert properties["priority"]["enum"] == ["urgent", "high", "medium", "low"]
