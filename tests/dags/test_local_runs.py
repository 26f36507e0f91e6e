"""`dag.test()` of each example, of the DAGs of README and tutorial, and of docs/compute.md, without a scheduler."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.conftest import s3_server
from tests.doc_dags import write_dags_of
from tests.migrated_database import copy_migrated_database
from tests.s3_lake import lake_settings

__all__ = ["s3_server"]

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ["retrain_digits", "retrain_from_store", "train_resumable"]
"""Examples that import torch in each of their tasks; `make system` runs them."""
QUICK = sorted({path.stem for path in (ROOT / "dags").glob("*.py")} - set(TRAINING))
RUN_ALL = """
import sys
from airflow.dag_processing.dagbag import DagBag

CONFS = {
    "retrain_digits": {"epochs": 1, "accuracy_threshold": 0.1},
    "retrain_from_store": {"steps": 200, "upload_digits": True},
    "train_resumable": {"steps": 100, "seconds_per_step": 0},
}
for dag_id, dag in DagBag(sys.argv[1]).dags.items():
    print("STATE", dag_id, dag.test(run_conf=CONFS.get(dag_id)).state, flush=True)
"""


@pytest.mark.system
def test_the_dags_of_the_examples_the_readme_and_the_tutorial_run(tmp_path):
    folder = tmp_path / "dags"
    folder.mkdir()
    for name in ("README.md", "docs/tutorial.md"):
        code = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)[0]
        (folder / f"{Path(name).stem}.py").write_text(code)
    states, output = run_all(tmp_path, QUICK)
    assert states == dict.fromkeys(["retrain", "first", *QUICK], "success"), output
    assert "I have 1 × nvidia/h100-80gb (simulated) on" in output


@pytest.mark.system
def test_the_examples_that_train_run(tmp_path, s3_server):
    dags = write_dags_of("docs/compute.md", tmp_path / "dags")
    states, output = run_all(tmp_path, TRAINING, lake_settings(s3_server, "local-runs"))
    assert dags
    assert states == dict.fromkeys([*TRAINING, *dags], "success"), output


def run_all(tmp_path, examples, settings=()):
    """DAG id → state of its `dag.test()`, and the output of all."""
    folder = tmp_path / "dags"
    folder.mkdir(exist_ok=True)
    for example in examples:
        shutil.copy(ROOT / "dags" / f"{example}.py", folder)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__HETERO__DATA_CACHE": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path),
        "HETERO_AIRFLOW_SIMULATED_DEVICES": "nvidia/h100-80gb:2,ascend/910b:2",
        **dict(settings),
    }
    (tmp_path / "home").mkdir()
    copy_migrated_database(tmp_path / "home" / "airflow.db")
    command = [sys.executable, "-c", RUN_ALL, str(folder)]
    output = subprocess.run(
        command, env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout
    return dict(re.findall(r"^STATE (\w+) (\w+)$", output, re.M)), output
