"""Every example in one real Airflow with two simulated GPUs and two simulated NPUs."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import demo
import pytest
from local_airflow import LocalAirflow

from tests.checkpoints.conftest import s3_server
from tests.s3_lake import lake_settings

__all__ = ["s3_server"]

DAGS = Path(__file__).resolve().parents[2] / "dags"
CONFS = {
    "alternatives": {},
    "bash_on_device": {},
    "mapped": {},
    "retrain_digits": {},
    "retrain_from_store": {"upload_digits": True},
    "shares": {},
    "templated": {"device": "ascend/910b:2", "priority": "high"},
    "train_resumable": {},
}
AT_A_TIME = (
    ("alternatives",),
    ("mapped",),
    ("bash_on_device", "shares", "templated"),
    ("retrain_digits", "train_resumable"),
    ("retrain_from_store",),
)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, s3_server):
    home = tmp_path_factory.mktemp("airflow")
    settings = {
        **lake_settings(s3_server, "examples"),
        "AIRFLOW__HETERO__DATA_CACHE": f"{home}/cache",
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    }
    with LocalAirflow(home, DAGS, simulated="nvidia/h100-80gb:2,ascend/910b:2", settings=settings) as airflow:
        yield airflow


@pytest.fixture(scope="module")
def runs(airflow):
    """DAG id → run id, all of them over and well; at a time, those that don't take each other's first alternative."""
    runs, states = {}, {}
    for dag_ids in AT_A_TIME:
        runs |= {dag_id: airflow.trigger(dag_id, CONFS[dag_id]) for dag_id in dag_ids}
        states |= {dag_id: airflow.wait_for_run(dag_id, runs[dag_id]) for dag_id in dag_ids}
        airflow.wait_until_freed()
    bad = [
        f"{dag_id}.{ti['task_id']} is {ti['state']}:\n{airflow.log_text(dag_id, runs[dag_id], ti['task_id'])[-3000:]}"
        for dag_id, state in states.items()
        if state != "success"
        for ti in airflow.tasks(dag_id, runs[dag_id])
        if ti["state"] == "failed"
    ]
    assert set(states.values()) == {"success"}, "\n".join(bad)
    return runs


def test_every_file_is_one_dag_that_airflow_reads_without_error(airflow, runs):
    assert airflow.api("GET", "/importErrors")["import_errors"] == []
    dags = airflow.api("GET", "/dags?limit=100")["dags"]
    assert sorted(dag["dag_id"] for dag in dags) == sorted(path.stem for path in DAGS.glob("*.py")) == sorted(CONFS)


def test_the_first_alternative_is_taken_and_marked_simulated(airflow, runs):
    text = airflow.xcom("alternatives", runs["alternatives"], "in_order")
    assert text.startswith("the first device that fits: 1 × nvidia/h100-80gb (simulated)")


def test_the_policy_chooses_from_a_set(airflow, runs):
    text = airflow.xcom("alternatives", runs["alternatives"], "whichever_is_best")
    assert text.startswith(
        (
            "the choice of the policy: 1 × nvidia/h100-80gb (simulated)",
            "the choice of the policy: 1 × ascend/910b (simulated)",
        )
    )


def test_two_halves_share_one_gpu_at_the_same_time(airflow, runs):
    texts = [airflow.xcom("shares", runs["shares"], task) for task in ("one_half", "other_half")]
    assert texts[0] == texts[1]
    assert texts[0].startswith("0.5 of a (cooperative) nvidia/h100-80gb (simulated)")
    store = airflow.store()
    histories = [store.request_history("shares", runs["shares"], task) for task in ("one_half", "other_half")]
    assert max(history.leases[-1].granted_at for history in histories) < min(history.ended_at for history in histories)


def test_mapped_instances_have_one_request_or_each_its_own(airflow, runs):
    run_id = runs["mapped"]
    scores = [airflow.xcom("mapped", run_id, "score", index) for index in range(4)]
    assert [score.split(" on ")[0] for score in scores] == [f"part {index}" for index in range(4)]
    assert [airflow.xcom("mapped", run_id, "add", index) for index in range(2)] == [3, 7]
    compared = [airflow.xcom("mapped", run_id, "compare", index).split(" on ")[0] for index in range(3)]
    assert compared[:2] == ["1 × nvidia/h100-80gb (simulated)", "2 × ascend/910b (simulated)"]
    assert compared[2].startswith("1 × ")
    assert "(simulated)" not in compared[2]


def test_a_shell_command_sees_its_lease(airflow, runs):
    text = airflow.xcom("bash_on_device", runs["bash_on_device"], "say_where")
    assert text.startswith("1 × nvidia/h100-80gb (simulated)")
    log = airflow.log_text("bash_on_device", runs["bash_on_device"], "say_where")
    assert "CUDA_VISIBLE_DEVICES is 'simulated-nvidia-h100-80gb-" in log


def test_a_parameter_chooses_the_device(airflow, runs):
    assert airflow.xcom("templated", runs["templated"], "run_there").startswith("2 × ascend/910b (simulated)")


def test_the_retrained_model_is_good_and_published_with_a_card(airflow, runs):
    run_id = runs["retrain_digits"]
    model = Path(airflow.xcom("retrain_digits", run_id, "publish"))
    card = json.loads(model.with_suffix(".json").read_text())
    assert card["accuracy"] == airflow.xcom("retrain_digits", run_id, "evaluate") > 0.95
    assert card["run_id"] == run_id
    assert (card["trained_on"]["device"], card["trained_on"]["torch_device"]) == ("nvidia/h100-80gb", "cpu")
    assert card["trained_on"]["simulated"] is True
    assert model.is_relative_to(airflow.home)


def test_the_evaluation_takes_a_checkpoint_while_training_goes_on(airflow, runs):
    text = airflow.xcom("train_resumable", runs["train_resumable"], "report")
    assert re.fullmatch(r"Accuracy after 300 steps: 9.*; after step \d+: .*% of the unseen images\.", text)


def test_a_model_is_published_as_an_asset_in_the_store_of_its_data(airflow, runs):
    run_id = runs["retrain_from_store"]
    published = airflow.xcom("retrain_from_store", run_id, "publish")
    assert published["accuracy"] == airflow.xcom("retrain_from_store", run_id, "evaluate") > 0.85
    source = {"source_dag_id": "retrain_from_store", "source_run_id": run_id}
    (event,) = airflow.api("GET", "/assets/events", params=source)["asset_events"]
    assert {name: event["extra"][name] for name in ("etag", "sha256")} == {n: published[n] for n in ("etag", "sha256")}
    assert list((airflow.home / "cache" / "objects").glob("*/*/*/data/0.npy")), "one copy for all tasks of the host"


def test_a_model_that_is_not_good_enough_is_skipped(airflow, runs):
    run_id = airflow.trigger("retrain_digits", {"accuracy_threshold": 1, "epochs": 1})
    assert airflow.wait_for_run("retrain_digits", run_id) == "success"
    states = {ti["task_id"]: ti["state"] for ti in airflow.tasks("retrain_digits", run_id)}
    assert states.pop("publish") == "skipped"
    assert set(states.values()) == {"success"}
    assert "is below the threshold 1" in airflow.log_text("retrain_digits", run_id, "publish")


def test_the_demo_shows_the_end_of_the_log_of_a_failed_run_and_where_the_logs_are(
    airflow, runs, tmp_path, monkeypatch, capsys
):
    """The demo's own Airflow is replaced by this one, where a file is in the way of the DAG's folder."""
    folder = airflow.home / "data" / "retrain_digits"
    folder.rename(folder.with_name("moved"))
    folder.touch()
    monkeypatch.setattr(demo, "HOME", tmp_path / "demo")
    monkeypatch.setattr(demo, "running_airflow", lambda home, is_scheduling: nullcontext(airflow))
    try:
        assert demo.main() == 1
    finally:
        folder.unlink()
        folder.with_name("moved").rename(folder)
    output = capsys.readouterr().out
    assert "The end of the log of prepare_training" in output
    assert str(folder) in output
    assert f"Logs are in {tmp_path / 'demo' / 'logs'}" in output.replace("\n", "")
