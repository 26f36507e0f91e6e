"""What the tasks of the DAG do, called as functions."""

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowSkipException

FILE = Path(__file__).resolve().parents[2] / "dags" / "retrain_digits.py"
PARAMS = {"seed": 7, "epochs": 1, "accuracy_threshold": 0.95}


@pytest.fixture
def dag_file(tmp_path, monkeypatch):
    """The module, with all its files below the test's own folder."""
    monkeypatch.setenv("HETERO_AIRFLOW_DATA", str(tmp_path))
    monkeypatch.delenv("HETERO_AIRFLOW_LEASE", raising=False)
    spec = importlib.util.spec_from_file_location("retrain_digits_under_test", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(dag_file, content=b"weights"):
    path = dag_file.run_folder("r") / "model.safetensors"
    path.write_bytes(content)
    return {"model": str(path), "data_sha256": "d", "trained_on": {"torch_device": "cpu"}}


def test_the_parts_share_no_image_and_leave_none_out(dag_file):
    parts = [dag_file.digits(part, seed=7) for part in ("training", "evaluation", "incoming")]
    assert [len(labels) for _, labels in parts] == [1078, 360, 359]
    everything = np.concatenate([images for images, _ in parts])
    assert (everything.shape, everything.dtype, everything.min(), everything.max()) == ((1797, 1, 8, 8), "f4", 0, 1)
    assert len(np.unique(everything.reshape(1797, 64), axis=0)) == 1797


def test_a_shift_moves_the_image_and_fills_the_edge_with_nothing(dag_file):
    image = np.arange(9, dtype="f4").reshape(1, 1, 3, 3)
    assert dag_file.shift(image, 1, 0)[0, 0].tolist() == [[0, 0, 0], [0, 1, 2], [3, 4, 5]]
    assert dag_file.shift(image, 0, -1)[0, 0].tolist() == [[1, 2, 0], [4, 5, 0], [7, 8, 0]]


def test_the_same_seed_gives_the_same_model_and_another_seed_another(dag_file):
    digests = []
    for seed in (7, 7, 8):
        training = dag_file.prepare_training.function("r", {**PARAMS, "seed": 7})
        model = dag_file.train.function(training, "r", {**PARAMS, "seed": seed})["model"]
        digests.append(dag_file.digest(Path(model)))
    assert digests[0] == digests[1] != digests[2]


def test_the_batch_prediction_reads_the_new_images_and_no_others(dag_file):
    training, held_out = (
        dag_file.prepare_training.function("r", PARAMS),
        dag_file.prepare_held_out.function("r", PARAMS),
    )
    model = dag_file.train.function(training, "r", PARAMS)
    predictions = dag_file.load_arrays(dag_file.predict_batch.function(model, held_out, "r"))["labels"]
    _, labels = dag_file.digits("incoming", seed=7)
    assert len(predictions) == len(labels)
    assert (predictions == labels).mean() > 0.8


def test_arrays_that_would_have_to_be_unpickled_are_refused(dag_file, tmp_path):
    np.savez(tmp_path / "evil.npz", images=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        dag_file.load_arrays(str(tmp_path / "evil.npz"))


def test_a_model_below_the_threshold_is_not_published_and_the_old_one_stays(dag_file):
    target = Path(dag_file.publish.function(trained(dag_file, b"old"), 0.97, "r", PARAMS))
    with pytest.raises(AirflowSkipException, match=r"the accuracy 0\.9400 is below the threshold 0\.95"):
        dag_file.publish.function(trained(dag_file, b"new"), 0.94, "r", PARAMS)
    assert target.read_bytes() == b"old"


def test_a_published_model_has_a_card_that_says_what_it_is(dag_file):
    target = Path(dag_file.publish.function(trained(dag_file), 0.95, "r", PARAMS))
    card = json.loads(target.with_suffix(".json").read_text())
    card.pop("published_at")
    assert card == {
        "model_sha256": hashlib.sha256(b"weights").hexdigest(),
        "accuracy": 0.95,
        "accuracy_threshold": 0.95,
        "seed": 7,
        "run_id": "r",
        "data_sha256": "d",
        "trained_on": {"torch_device": "cpu"},
    }
    assert sorted(path.name for path in target.parent.iterdir()) == ["digits.json", "digits.safetensors"]


def test_a_writer_that_dies_leaves_the_old_content(dag_file, tmp_path, monkeypatch):
    path = tmp_path / "file"
    dag_file.replace_file(path, b"old")

    def die(_):
        raise OSError("no space left")

    monkeypatch.setattr(dag_file.os, "fsync", die)
    with pytest.raises(OSError, match="no space left"):
        dag_file.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
