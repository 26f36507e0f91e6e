"""Checkpoints and data in Azure Blob Storage (Azurite), from the tasks and the triggerer of a real Airflow."""

import hashlib
import io
import json
import os
import signal

import numpy as np
import pytest
from local_airflow import LocalAirflow
from sklearn.datasets import load_digits

from hetero_airflow.checkpoints.azure_connection import ENDPOINT_VARIABLE
from hetero_airflow.checkpoints.cloud_store import open_azure
from hetero_airflow.checkpoints.loading import read_index
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from tests.checkpoints.azurite_server import ACCOUNT, KEY, azurite, make_container
from tests.system.conftest import HERE, QUICK
from tests.system.fleet_runs import with_example

URL = "az://models/team-a"


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    with azurite(tmp_path_factory.mktemp("azurite") / "server") as address:
        make_container(address, "models")
        yield address


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, azure):
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure}"
    settings = {
        **QUICK,
        "AIRFLOW__HETERO__CHECKPOINT_URL": URL,
        "AIRFLOW__HETERO__CHECKPOINT_CONN_ID": "models",
        "HETERO_AIRFLOW_LAKE": f"{URL}/digits",
        "AIRFLOW_CONN_MODELS": json.dumps({"conn_type": "wasb", "extra": {"connection_string": text}}),
    }
    home = tmp_path_factory.mktemp("airflow")
    settings["AIRFLOW__HETERO__DATA_CACHE"] = f"{home}/data"
    dags = with_example(home / "dags", "retrain_from_store.py", beside=HERE / "dags")
    with LocalAirflow(home, dags, simulated="nvidia/h100-80gb:2", settings=settings) as made:
        yield made


@pytest.fixture(scope="module")
def store(azure):
    credentials = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, ENDPOINT_VARIABLE: azure}
    return open_azure(CheckpointPlace(url=URL, path="-", endpoint=azure, endpoints=(azure,)), credentials)


@pytest.fixture
def index(store):
    def read(run_id):
        return read_index(store, checkpoint_path("saving", "saving", run_id, -1))

    return read


def test_a_killed_task_goes_on_from_its_checkpoint_in_azure(airflow, index):
    run_id = airflow.trigger("saving", {"steps": 60, "nap": 0.2, "device": "h100"})
    airflow.wait_until(lambda: (found := index(run_id)) and found.entries, "a checkpoint")
    os.kill(airflow.tasks("saving", run_id)[0]["pid"], signal.SIGKILL)
    assert airflow.wait_for_run("saving", run_id) == "success"
    result = airflow.xcom("saving", run_id, "saving")
    assert (airflow.tasks("saving", run_id)[0]["try_number"], result["is_whole"]) == (1, True)
    assert result["first"] > 0
    assert index(run_id).entries[-1].token == index(run_id).token, "the store has the scheduler's key"
    assert KEY not in airflow.log_text("saving", run_id, "saving")


def test_a_sensor_in_the_triggerer_waits_for_a_checkpoint_in_azure(airflow):
    run_id = airflow.trigger("waiting")
    airflow.wait_until(
        lambda: {task["task_id"]: task["state"] for task in airflow.tasks("waiting", run_id)}["halfway"] == "success",
        "the sensor",
    )


def test_tasks_of_one_host_read_and_write_an_object_in_azure_once(airflow, store):
    for name in ("a.txt", "b.txt"):
        assert store.replace(f"data/{name}", name.encode(), None)
    run_id = airflow.trigger("reading", {"folder": f"{URL}/data"})
    assert airflow.wait_for_run("reading", run_id) == "success"
    first, second = (airflow.xcom("reading", run_id, task_id) for task_id in ("reading", "again"))
    texts = {name: text for name, (_, text) in first.items()}
    assert texts == {"a.txt": "a.txt", "b.txt": "b.txt", "c.txt": "c.txt", "probe~": ""}
    assert first == second, "the same files"
    assert all(path.startswith(f"{airflow.home}/data/objects/") for path, _ in first.values())
    source = {"source_dag_id": "reading", "source_run_id": run_id}
    (event,) = airflow.api("GET", "/assets/events", params=source)["asset_events"]
    assert event["extra"]["sha256"] == hashlib.sha256(b"c.txt").hexdigest()
    assert event["extra"]["etag"]


def test_new_data_start_a_training_whose_model_is_published(airflow, store):
    """The event is that of a task that has written the data."""
    digits = load_digits()
    rows = np.column_stack([digits.images.reshape(-1, 64), digits.target]).astype("uint8")
    is_unseen = np.arange(len(rows)) % 4 == 3
    for name, part in {"training/0": rows[~is_unseen], "unseen/0": rows[is_unseen]}.items():
        content = io.BytesIO()
        np.save(content, part)
        assert store.replace(f"digits/{name}.npy", content.getvalue(), None)

    def data_asset():
        assets = airflow.api("GET", "/assets?limit=100")["assets"]
        return next((asset["id"] for asset in assets if asset["uri"] == f"{URL}/digits/training"), None)

    asset_id = airflow.wait_until(data_asset, "Airflow to read the DAG")
    airflow.api("PATCH", "/dags/retrain_from_store", json={"is_paused": False})
    airflow.api("POST", "/assets/events", json={"asset_id": asset_id, "extra": {}})

    def run():
        runs = airflow.api("GET", "/dags/retrain_from_store/dagRuns")["dag_runs"]
        return next((run["dag_run_id"] for run in runs if run["run_type"] == "asset_triggered"), None)

    run_id = airflow.wait_until(run, "a run")
    assert airflow.wait_for_run("retrain_from_store", run_id) == "success"
    published = airflow.xcom("retrain_from_store", run_id, "publish")
    assert published["accuracy"] == airflow.xcom("retrain_from_store", run_id, "evaluate") > 0.85
    model = store.read("digits/model.safetensors", at_most=1 << 20)
    assert hashlib.sha256(model.content).hexdigest() == published["sha256"]
