"""Runs of the DAGs in `fleet_dags` on a fleet, and the notes of their tasks."""

import json
import shutil
from pathlib import Path

from tests.system.conftest import HERE

EXAMPLES = HERE.parents[1] / "dags"


def with_example(folder: Path, *names: str, beside: Path = HERE / "fleet_dags") -> Path:
    """A folder with the fleet's DAG files, or other ones, and unchanged example DAGs of the project."""
    shutil.copytree(beside, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        shutil.copy(EXAMPLES / name, folder)
    return folder


def notes(fleet, name, what="step"):
    path = fleet.airflow.home / "notes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["name"] == name and line["what"] == what]


def run(fleet, dag_id, conf=None, timeout_s=120):
    run_id = fleet.airflow.trigger(dag_id, conf)
    assert fleet.airflow.wait_for_run(dag_id, run_id, timeout_s) == "success"
    return run_id


def tries(fleet, dag_id, run_id):
    return [ti["try_number"] for ti in fleet.airflow.tasks(dag_id, run_id)]


def rows(fleet, run_id, dag_id="gang"):
    """Map index → state and try number."""
    return {ti["map_index"]: (ti["state"], ti["try_number"]) for ti in fleet.airflow.tasks(dag_id, run_id)}


def leases(fleet, dag_id):
    """The leases that tasks of a DAG hold."""
    snapshot = fleet.airflow.store().snapshot()
    return [lease for lease in snapshot.leases if snapshot.holders[lease.request_id].dag_id == dag_id]


def newest_checkpoint(fleet, dag_id, task_id):
    """The step of the checkpoint that the newest run of a task published last."""
    checkpoints = fleet.airflow.home / "checkpoints"
    newest = json.loads((checkpoints / dag_id / task_id / "newest.json").read_text())
    index = json.loads((checkpoints / newest["path"] / "index.json").read_text())
    return index["entries"][-1]["step"]  # a rank that was killed may have published one that newest.json does not name


STEPS = 200
"""So many steps take minutes, until the test lets the training hurry."""


def start_training(fleet, name):
    """Start a training and wait until it has taken some steps. Returns the run."""
    run_id = fleet.airflow.trigger("train", {"name": name, "steps": STEPS})

    def is_under_way():
        assert fleet.airflow.tasks("train", run_id)[0]["state"] != "failed", fleet.airflow.log_text(
            "train", run_id, "train_on"
        )
        return len(notes(fleet, name)) >= 6

    fleet.airflow.wait_until(is_under_way, "the training to step")
    return run_id


def let_hurry(fleet, name):
    """Let a training take its other steps at once."""
    (fleet.airflow.home / f"{name}.hurry").touch()


def finish(fleet, name, run_id):
    """Let the training end. Check that it did each step, used no retry and leased no device twice."""
    let_hurry(fleet, name)
    assert fleet.airflow.wait_for_run("train", run_id) == "success"
    assert {line["step"] for line in notes(fleet, name)} == set(range(STEPS))
    assert tries(fleet, "train", run_id) == [1]
