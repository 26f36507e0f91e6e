"""What the tasks of the DAG do, called as functions."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.loading import read_index
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.notice import Notice, Stopped, give_notice
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from hetero_airflow.sensors.checkpoint_source import PublishedCheckpoint
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE
from hetero_airflow.testing import EPOCH

FILE = Path(__file__).resolve().parents[2] / "dags" / "train_resumable.py"
PARAMS = {"steps": 100, "save_every": 20, "seconds_per_step": 0, "seed": 7}


@pytest.fixture
def dag_file(monkeypatch):
    monkeypatch.delenv("HETERO_AIRFLOW_LEASE", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a lease of one core does; those of a busy host wait for each other
    spec = importlib.util.spec_from_file_location("train_resumable_under_test", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """Begins a run of a task, with a greater token than the one before."""

    def begun(task, token):
        control = tmp_path / f"{task}-{token}"
        control.mkdir()
        place = CheckpointPlace(url=(tmp_path / "store").as_uri(), path=f"dag/{task}/run/-1", token=token)
        monkeypatch.setenv(CHECKPOINT_VARIABLE, place.model_dump_json())
        monkeypatch.setenv(CONTROL_VARIABLE, str(control))
        return control

    return begun


@pytest.fixture
def find(tmp_path, dag_file):
    """What the DAG's sensor finds in the checkpoints of `train`."""

    def result():
        sensor = dag_file.train_resumable().get_task("is_good_enough")
        path = f"dag/{sensor.of_task}/run/-1"
        index = read_index(FilesystemStore(tmp_path / "store"), path)
        entry = CheckpointCondition(**sensor.condition).met_in(index, EPOCH)
        return entry and PublishedCheckpoint((tmp_path / "store").as_uri(), path, index).announcement(entry)

    return result


def test_a_short_training_is_good_enough_and_evaluated_on_what_it_has_not_seen(dag_file, begin, find):
    begin("train", 1)
    trained = dag_file.train.function(PARAMS)
    training = find()
    begin("evaluate", 2)
    evaluated = dag_file.evaluate.function(training)
    assert trained["accuracy"] > dag_file.GOOD_ENOUGH
    assert evaluated["step"] == training["step"] < PARAMS["steps"]
    assert abs(evaluated["accuracy"] - training["metrics"]["accuracy"]) < 0.1
    assert dag_file.report.function(trained, evaluated).startswith("Accuracy after 100 steps: 9")


def test_an_interrupted_training_ends_with_the_same_model(dag_file, begin, find, monkeypatch, tmp_path):
    begin("train", 1)
    whole = dag_file.train.function(PARAMS)
    control = begin("interrupted", 2)
    is_due = dag_file.checkpoint.is_due
    seen = []

    def notice_at_the_50th_step():
        seen.append(None)
        if len(seen) == 50:
            give_notice(control, Notice(cause="urgent work", by=EPOCH))
        return is_due()

    monkeypatch.setattr(dag_file.checkpoint, "is_due", notice_at_the_50th_step)
    with pytest.raises(Stopped):
        dag_file.train.function(PARAMS)
    begin("interrupted", 3)
    assert dag_file.train.function(PARAMS) == whole
    assert len(seen) == PARAMS["steps"]
    last = [
        read_index(FilesystemStore(tmp_path / "store"), f"dag/{task}/run/-1").entries[-1]
        for task in ("train", "interrupted")
    ]
    assert last[0].metrics == last[1].metrics
    assert [entry.is_final for entry in last] == [True, True]
