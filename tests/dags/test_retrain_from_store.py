"""What the tasks of the DAG do, called as functions, with their data in a real server of S3."""

import importlib.util
from pathlib import Path

import pytest
import torch
from airflow.sdk.exceptions import AirflowSkipException
from safetensors.torch import load

from hetero_airflow.checkpoints.loading import read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from hetero_airflow.sensors.checkpoint_source import PublishedCheckpoint
from hetero_airflow.settings import CHECKPOINT_VARIABLE
from hetero_airflow.testing import EPOCH
from tests.runtime.data.conftest import bucket, clients_are_closed, new_bucket, s3_credentials, s3_server, settings, use

__all__ = ["bucket", "clients_are_closed", "new_bucket", "s3_credentials", "s3_server", "settings", "use"]

FILE = Path(__file__).resolve().parents[2] / "dags" / "retrain_from_store.py"
PARAMS = {"accuracy_threshold": 0.8, "save_every": 50, "seed": 7, "steps": 200, "upload_digits": True}


@pytest.fixture
def dag_file(monkeypatch, bucket, use, s3_server):
    """The module, with a store that has the digits."""
    monkeypatch.delenv("HETERO_AIRFLOW_LEASE", raising=False)
    monkeypatch.setenv("HETERO_AIRFLOW_LAKE", f"{bucket.url}/digits")
    place = CheckpointPlace(url=f"{bucket.url}/digits/checkpoints", path="dag/train/run/-1", token=1)
    place = place.model_copy(update={"endpoint": s3_server, "endpoints": (s3_server,)})
    monkeypatch.setenv(CHECKPOINT_VARIABLE, place.model_dump_json())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a lease of one core does; those of a busy host wait for each other
    spec = importlib.util.spec_from_file_location("retrain_from_store_under_test", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.upload_digits.function(PARAMS)
    yield module
    torch.set_num_threads(threads)


@pytest.fixture
def candidate(dag_file, monkeypatch, tmp_path):
    """What the DAG's sensor finds after a training. The other tasks have the place that is configured, a folder."""
    dag_file.train.function(PARAMS)
    place = dag_file.checkpoint.session().place
    sensor = dag_file.retrain_from_store().get_task("candidate")
    assert (sensor.of_task, sensor.url) == ("train", place.url)
    index = read_index(open_store(place), place.path)
    entry = CheckpointCondition(**sensor.condition).met_in(index, EPOCH)
    own = CheckpointPlace(url=(tmp_path / "checkpoints").as_uri(), path="dag/evaluate/run/-1", token=2)
    monkeypatch.setenv(CHECKPOINT_VARIABLE, own.model_dump_json())
    return PublishedCheckpoint(place.url, place.path, index).announcement(entry)


def test_a_run_starts_when_the_training_data_change(dag_file, bucket):
    (asset,) = dag_file.retrain_from_store().timetable.asset_condition.objects
    assert asset.uri == f"{bucket.url}/digits/training"


def test_nothing_is_uploaded_unless_somebody_asks_for_it(dag_file, monkeypatch):
    monkeypatch.setattr(dag_file.data, "publish", lambda *_: pytest.fail("it writes"))
    dag_file.upload_digits.function({**PARAMS, "upload_digits": False})


def test_the_two_parts_hold_all_digits(dag_file):
    parts = [dag_file.read_digits(url) for url in (dag_file.TRAINING.uri, dag_file.UNSEEN)]
    assert [tuple(images.shape) for images, _ in parts] == [(1348, 1, 8, 8), (449, 1, 8, 8)]
    assert [(images.min().item(), images.max().item()) for images, _ in parts] == [(0, 1), (0, 1)]


def test_a_candidate_that_is_good_enough_is_published_as_an_asset(dag_file, candidate, bucket):
    accuracy = dag_file.evaluate.function(candidate)
    assert accuracy > PARAMS["accuracy_threshold"]
    published = dag_file.publish.function(candidate, accuracy, PARAMS)
    content = bucket.client.get_object(Bucket=bucket.name, Key="digits/model.safetensors")
    assert (published["etag"], published["accuracy"]) == (content["ETag"], accuracy)
    model = dag_file.network()
    model.load_state_dict(load(content["Body"].read()))
    assert dag_file.accuracy(model, *dag_file.read_digits(dag_file.UNSEEN)) == accuracy
    assert [asset.uri for asset in dag_file.retrain_from_store().get_task("publish").outlets] == [dag_file.MODEL.uri]


def test_a_candidate_below_the_threshold_is_not_published(dag_file, bucket):
    with pytest.raises(AirflowSkipException, match=r"the accuracy 0\.7900 is below the threshold 0\.8"):
        dag_file.publish.function({}, 0.79, PARAMS)
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="digits/model")
    assert listed["KeyCount"] == 0
