from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from hetero_airflow.checkpoints import filesystem
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.sensors import CheckpointSensor


def sensor(**arguments):
    return CheckpointSensor(**{"task_id": "wait", "of_task": "fit", "of_dag": "train", "run_id": "r1"} | arguments)


@pytest.mark.parametrize(
    ("given", "phrases"),
    [
        ("", ["nothing to wait for", "step=0 means any checkpoint"]),
        ("metric='loss', below=float('nan')", ["below=nan", "no finite number"]),
        ("metric='loss', above=2, below=1", ["above=2", "below=1", "smaller above"]),
        ("step=1, younger_than='0s'", ["younger_than='0s'", "not above 0 s"]),
        ("step=1, url='ftp://models'", ["url='ftp://models'", "no store for the scheme 'ftp'", "Set url to file:///"]),
        ("step=1, url='/srv/models'", ["url='/srv/models'", "no scheme", "Set url to file:///"]),
        ("step=1, url='s3://key:hunter@models'", ["url", "a user or password in it", "Airflow connection"]),
        ("step=1, url=7", ["url=7", "found a value of the type int", "Give a text"]),
    ],
)
def test_a_condition_that_can_never_be_met_is_an_import_error(parsed, given, phrases):
    ((error,), _) = parsed(f'CheckpointSensor(task_id="t", of_task="fit", {given})')
    assert [word for word in phrases if word not in error] == []


def test_a_mapped_sensor_is_no_import_error(parsed):
    errors, _ = parsed('CheckpointSensor.partial(task_id="t", step=1).expand(of_task=["a", "b"])')
    assert errors == []


def test_by_default_it_starts_in_the_triggerer_in_its_own_run():
    with DAG("a_dag", schedule=None) as dag:
        CheckpointSensor(task_id="wait", of_task="fit", step=5, timeout=90)
        CheckpointSensor.partial(task_id="mapped", step=5).expand(of_task=["a", "b"])
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    task = stored.get_task("wait")
    assert (task.start_from_trigger, task.start_trigger_args.timeout) == (True, timedelta(seconds=90))
    assert (task.of_dag, task.run_id) == ("{{ ti.dag_id }}", "{{ run_id }}")
    assert not stored.get_task("mapped").start_from_trigger


def test_where_a_worker_begins_it_it_defers_with_what_was_rendered():
    with pytest.raises(TaskDeferred) as deferred:
        sensor(step=5, timeout=90, map_index="3").execute({})
    assert deferred.value.trigger.serialize()[1] == {
        "of_task": "fit",
        "of_dag": "train",
        "run_id": "r1",
        "map_index": "3",
        "condition": {"step": 5},
    }
    assert (deferred.value.method_name, deferred.value.timeout) == ("execute_complete", timedelta(seconds=90))


def test_poking_finds_what_the_trigger_finds(publish):
    poking = sensor(metric="loss", below=1, deferrable=False, poke_interval=0, timeout=0)
    assert not poking.poke({})
    publish(1, loss=2)
    assert not poking.poke({})
    entry = publish(2, loss=0.5)
    result = poking.execute({})
    assert (result["step"], result["key"], result["metrics"]) == (2, entry.key, {"loss": 0.5})


def test_it_looks_at_the_given_place(publish, tmp_path):
    url = (tmp_path / "other").as_uri()
    publish(1)
    poking = sensor(step=1, deferrable=False, poke_interval=0, timeout=0, url=url + "/")
    assert not poking.poke({})
    publish(2, url=url)
    result = poking.execute({})
    assert (result["step"], result["url"]) == (2, url)


def test_where_a_worker_begins_it_the_url_goes_with_the_trigger():
    with pytest.raises(TaskDeferred) as deferred:
        sensor(step=5, url="s3://models/team-b").execute({})
    assert deferred.value.trigger.serialize()[1]["url"] == "s3://models/team-b"


def test_poking_waits_for_a_store_that_does_not_answer(publish, monkeypatch):
    publish(1)

    def unavailable(*_, **__):
        raise CheckpointStoreUnavailable("read", found="503", remedy="Try again later")

    monkeypatch.setattr(filesystem.FilesystemStore, "read", unavailable)
    assert sensor(step=1, deferrable=False).poke({}) is False


def test_it_returns_what_the_trigger_found_or_fails_with_its_error():
    checkpoint = {"step": 3, "path": "train/fit/r1/-1", "published_at": "2026-11-20T12:00:00+00:00"}
    assert sensor(step=1).execute_complete({}, {"checkpoint": checkpoint}) == checkpoint
    with pytest.raises(AirflowException, match="no such connection"):
        sensor(step=1).execute_complete({}, {"error": "no such connection"})
