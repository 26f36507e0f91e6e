"""What type checkers say about DAG files: mypy in its strict mode, over an installed package."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

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
    '@task.device(device="gpu", patience="no")\ndef f() -> None: ...',
    "local_lease(3.14)",
]


@pytest.mark.system
def test_mypy_accepts_what_is_right_and_names_each_wrong_argument(tmp_path):
    """In one file, since mypy takes long to read Airflow. Its cache is kept for the next run."""
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    right = [GOOD, in_function("readme", re.sub(r"(def \w+\(\)):", r"\1 -> None:", code))]
    parts = [IMPORTS, *right, *(in_function(f"wrong{number}", code) for number, code in enumerate(BAD))]
    (tmp_path / "dag_file.py").write_text("\n".join(parts))
    first = len("\n".join(parts[: 1 + len(right)]).splitlines())
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'dag_files'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", cache, "dag_file.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = (tmp_path / "dag_file.py").read_text().splitlines()
    found = [re.fullmatch(r"dag_file.py:(\d+): error: .*\[(\S+)\]", line) for line in done.stdout.splitlines()]
    assert all(match is not None and int(match[1]) > first for match in found), done.stdout
    wrong = [(max(n for n, line in enumerate(lines[: int(m[1])]) if line.startswith("def wrong")), m[2]) for m in found]
    assert [lines[number] for number, _ in wrong] == [f"def wrong{number}() -> None:" for number in range(len(BAD))]
    assert {kind for _, kind in wrong} == {"arg-type"}


def in_function(name, code):
    """The code as a function of its own, with its own imports."""
    return f"def {name}() -> None:\n{indent(code, '    ')}\n"


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
