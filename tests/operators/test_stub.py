"""The stub of docs/howto/add_to_airflow.md, in a Python that does not see this package."""

import json
import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = ROOT / "docs" / "howto" / "stub"

PARSE = """
import json, sys
sys.path += sys.argv[2:]
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps([bag.import_errors, sorted(bag.dag_ids)]))
"""

DAG = """
from airflow.sdk import dag
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator, TorchrunOperator, task
from hetero_airflow.runtime import checkpoint, current_lease
from hetero_airflow.sensors import DeviceAvailableSensor

@dag(schedule=None, default_args={"device": "gpu", "priority": "high"})
def undone():
    @task.device(retries=2, gang=2)
    def train(part): ...

    @task.device_bash(device="gpu", env={"A": "1"})
    def smi():
        return "true"

    @task.torchrun(device="gpu:4", processes=4)
    def ranks(rate): ...

    @task
    def plain(): ...

    train.expand(part=[1, 2]) >> smi() >> ranks(0.1) >> plain()
    TorchrunOperator.partial(task_id="far", script="a.py", device="gpu:8").expand(node_rank=[0, 1])
    DeviceBashOperator(task_id="bash", bash_command="true", quota={"memory": "1GiB"})
    DevicePythonOperator(task_id="python", python_callable=current_lease)
    DeviceAvailableSensor(task_id="room", timeout=60)

undone()
"""


def parse(home, folder, *paths):
    """The import errors of a folder's DAG files, and the ids of its DAGs."""
    command = [sys.executable, "-I", "-S", "-c", PARSE, str(folder), *map(str, paths)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "HETERO"))}
    environment = {**kept, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors, dag_ids = json.loads(done.stdout.splitlines()[-1])
    return errors, dag_ids


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """All installed packages, without this one."""
    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("hetero_airflow", "__editable__")) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize("has_stub", [True, False])
def test_dag_files_parse_with_it_where_the_package_is_not_installed(tmp_path, packages, has_stub):
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "undone.py").write_text(DAG)
    for path in (ROOT / "dags").glob("*.py"):
        (dags / path.name).write_text(path.read_text())
    errors, dag_ids = parse(tmp_path, dags, packages, *([STUB] if has_stub else []))
    if has_stub:
        assert errors == {}
        assert {"undone", "shares", "mapped", "templated", "train_resumable", "retrain_digits"} <= {*dag_ids}
    else:
        assert "No module named 'hetero_airflow'" in "".join(errors.values())


def test_beside_the_package_it_says_that_it_has_to_go():
    with pytest.raises(ImportError, match=r"remove .*/stub/hetero_airflow.py: hetero-airflow \S+ is installed"):
        runpy.run_path(str(STUB / "hetero_airflow.py"))
