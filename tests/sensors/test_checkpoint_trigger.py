import asyncio
import gc
import os
import time
import uuid
import weakref
from datetime import UTC, datetime

import pytest
from airflow.executors import workloads
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk.serde import deserialize, serialize
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseEventTrigger

from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.sensors import checkpoint_trigger
from hetero_airflow.sensors.checkpoint import CheckpointSensor
from hetero_airflow.sensors.checkpoint_source import CheckpointSource
from hetero_airflow.sensors.checkpoint_trigger import CheckpointPublished, CheckpointTrigger
from tests.sensors.conftest import first_event, still_waiting

ANY = {"step": 0}


def waiting_for(**condition):
    return CheckpointTrigger("train", "fit", "r1", condition=condition)


def test_it_fires_with_the_checkpoint_that_is_there_already(run, publish, tmp_path):
    entry = publish(10, loss=0.5)
    assert run(first_event(waiting_for(step=10))) == {
        "checkpoint": {
            "step": 10,
            "metrics": {"loss": 0.5},
            "url": (tmp_path / "store").as_uri(),
            "path": checkpoint_path("train", "fit", "r1", -1),
            "key": entry.key,
            "digest": entry.digest,
            "published_at": entry.published_at.isoformat(),
            "is_final": False,
        }
    }


def test_it_waits_for_the_one_that_meets_its_condition(run, publish):
    async def scene():
        waiting = asyncio.create_task(first_event(waiting_for(metric="loss", below=0.5)))
        steps = []
        for step, loss in ((1, 3.0), (2, 0.5), (3, 0.25)):
            await asyncio.sleep(30)
            assert not waiting.done()
            publish(step, loss=loss)
            steps.append(asyncio.get_running_loop().time())
        event = await waiting
        return event["checkpoint"]["step"], asyncio.get_running_loop().time() - steps[-1]

    step, wait_s = run(scene())
    assert step == 3
    assert wait_s < 75


def test_checkpoints_of_another_run_or_instance_do_not_count(run, publish):
    async def scene():
        publish(10, run_id="r2")
        publish(10, task="another")
        waiting = await still_waiting(waiting_for(step=0))
        publish(3)
        return (await waiting)["checkpoint"]["step"]

    assert run(scene()) == 3


def test_a_checkpoint_at_another_url_counts_there_and_nowhere_else(run, publish, tmp_path):
    url = (tmp_path / "other").as_uri()

    async def scene():
        publish(10)
        waiting = await still_waiting(CheckpointTrigger("train", "fit", "r1", condition=ANY, url=url))
        publish(3, url=url)
        return (await waiting)["checkpoint"]

    checkpoint = run(scene())
    assert (checkpoint["step"], checkpoint["url"]) == (3, url)


def test_sensors_that_name_the_configured_place_share_its_readings(run, publish, tmp_path, monkeypatch):
    looks = []
    fingerprint = CheckpointSource.fingerprint
    monkeypatch.setattr(
        CheckpointSource, "fingerprint", lambda self, watch: looks.append(watch) or fingerprint(self, watch)
    )
    urls = [None, (tmp_path / "store").as_uri(), *[(tmp_path / "other").as_uri()] * 2]

    async def scene():
        waiting = [
            asyncio.create_task(first_event(CheckpointTrigger("train", "fit", "r1", condition=ANY, url=url)))
            for url in urls
        ]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()

    run(scene())
    assert [watch.url for watch in looks] == [None, urls[-1]]


def test_a_cleared_task_starts_again(run, publish):
    async def scene():
        publish(10)
        publish(1, epoch=1)
        waiting = await still_waiting(waiting_for(step=5))
        publish(5, epoch=1)
        return (await waiting)["checkpoint"]["step"]

    assert run(scene()) == 5


def test_a_configuration_that_cant_work_ends_it_with_the_error(run, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", "ftp://models")
    error = run(first_event(waiting_for(step=1)))["error"]
    assert "ftp" in error
    assert "s3://bucket/prefix" in error


def test_a_mapped_instance_that_is_no_number_ends_it_with_the_error(run):
    trigger = CheckpointTrigger("train", "fit", "r1", map_index="{{ nothing }}", condition={"step": 1})
    assert "invalid literal" in run(first_event(trigger))["error"]


def test_garbage_in_place_of_an_index_is_waited_out(run, publish, tmp_path):
    async def scene():
        index = tmp_path / "store" / checkpoint_path("train", "fit", "r1", -1) / "index.json"
        index.parent.mkdir(parents=True)
        index.write_text('{"token": "many"}')
        waiting = await still_waiting(waiting_for(step=1))
        index.unlink()
        publish(1)
        return (await waiting)["checkpoint"]["step"]

    assert run(scene()) == 1


# As Airflow stores and runs them


def workload(number, run_id, kwargs, dag=None):
    ti = TaskInstanceDTO(
        id=uuid.uuid4(),
        task_id="wait",
        dag_id="train",
        run_id=run_id,
        try_number=1,
        map_index=-1,
        dag_version_id=uuid.uuid4(),
        pool_slots=1,
        queue="default",
        priority_weight=1,
    )
    now = datetime.now(UTC)
    dates = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "end_date", "partition_date"))
    dag_run = {
        "dag_id": "train",
        "run_id": run_id,
        "run_after": now,
        "start_date": now,
        "run_type": "manual",
        "state": "running",
        "consumed_asset_events": [],
        "partition_key": None,
        "clear_number": 0,
        "conf": {},
        **dates,
    }
    return workloads.RunTrigger(
        id=number,
        ti=ti,
        classpath="hetero_airflow.sensors.checkpoint_trigger.CheckpointTrigger",
        encrypted_kwargs=Trigger.encrypt_kwargs(kwargs),
        dag_data=dag,
        dag_run_data=dag_run if dag else None,
    )


@pytest.fixture
def no_plugins(monkeypatch):
    monkeypatch.setattr("airflow.sdk.plugins_manager.integrate_macros_plugins", lambda: None)


@pytest.mark.parametrize("folder", [None, "other"])
def test_a_sensor_starts_in_the_triggerer_and_finds_its_own_run_there(run, publish, no_plugins, tmp_path, folder):
    url = folder and (tmp_path / folder).as_uri()
    with DAG("train", schedule=None) as dag:
        CheckpointSensor(task_id="wait", of_task="fit", metric="loss", below=1, url=url)
    data = DagSerialization.to_dict(dag)
    stored = DagSerialization.from_dict(data).get_task("wait")
    assert stored.start_from_trigger

    async def scene():
        runner = TriggerRunner()
        for number, run_id in enumerate(("r1", "r2")):
            runner.to_create.append(workload(number, run_id, stored.start_trigger_args.trigger_kwargs, data))
        publish(7, run_id="r2", loss=0.5, url=url)
        await runner.create_triggers()
        await runner.triggers[1]["task"]
        assert not runner.triggers[0]["task"].done()
        runner.triggers[0]["task"].cancel()
        return [(entry.trigger_id, entry.event.payload["checkpoint"]["step"]) for entry in runner.events]

    assert run(scene()) == [(1, 7)]


def test_a_waiting_trigger_keeps_no_copy_of_the_dag(run, publish, no_plugins, monkeypatch):
    with DAG("train", schedule=None) as dag:
        CheckpointSensor(task_id="wait", of_task="fit", step=1)
    data = DagSerialization.to_dict(dag)
    kwargs = DagSerialization.from_dict(data).get_task("wait").start_trigger_args.trigger_kwargs
    dags = []
    create = TriggerRunner.create_runtime_ti

    def noting(*args):
        ti = create(*args)
        dags.append(weakref.ref(ti.task.dag))
        return ti

    monkeypatch.setattr(TriggerRunner, "create_runtime_ti", staticmethod(noting))

    async def scene():
        runner = TriggerRunner()
        runner.to_create.append(workload(0, "r1", kwargs, data))
        await runner.create_triggers()
        await asyncio.sleep(1)
        gc.collect()
        references = [ref() for ref in dags]
        runner.triggers[0]["task"].cancel()
        return references, len(dags)

    assert run(scene()) == ([None], 1)


def test_a_deferred_sensor_survives_airflows_storage():
    condition = {"step": 3, "metric": "loss", "below": 0.25}
    trigger = CheckpointTrigger("train", "fit", "r1", condition=condition, url="s3://models/team-b")
    classpath, kwargs = trigger.serialize()
    assert kwargs["url"] == "s3://models/team-b"
    assert deserialize(serialize(kwargs)) == kwargs
    assert Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs)) == kwargs
    assert CheckpointTrigger(**kwargs).serialize() == (classpath, kwargs)


# Of whatever run


class Memory:
    """What Airflow injects as the asset's state store."""

    def __init__(self, error=None):
        self.values = {}
        self.error = error

    async def aget(self, key):
        if self.error:
            raise self.error
        return self.values.get(key)

    async def aset(self, key, value):
        if self.error:
            raise self.error
        self.values[key] = value


def watcher(memory=None, url=None):
    trigger = CheckpointPublished(of_dag="train", of_task="fit", url=url)
    trigger.asset_state_store = memory
    return trigger


async def watched(trigger, published, for_s=100.0):
    """The steps that it announces while something is published every so many seconds."""
    steps = []

    async def listen():
        async for event in trigger.run():
            steps.append((event.payload["path"].split("/")[2], event.payload["step"]))

    listening = asyncio.create_task(listen())
    for act in published:
        await asyncio.sleep(for_s)
        act()
    await asyncio.sleep(for_s)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return steps


def test_each_checkpoint_of_the_task_is_announced_once_in_whatever_run(run, publish):
    acts = [lambda: publish(1), lambda: publish(2), lambda: publish(5, run_id="r2"), lambda: publish(9, task="other")]
    assert run(watched(watcher(), acts)) == [("r1", 1), ("r1", 2), ("r2", 5)]


def test_a_watcher_of_another_url_announces_what_is_published_there(run, publish, tmp_path):
    url, memory = (tmp_path / "other").as_uri(), Memory()
    acts = [lambda: publish(1), lambda: publish(2, url=url)]
    assert run(watched(watcher(memory, url + "/"), acts)) == [("r1", 2)]
    assert run(watched(watcher(memory, url), [])) == []
    assert run(watched(watcher(memory), [])) == [("r1", 1)]


@pytest.mark.parametrize("url", ["ftp://models", "/srv/models", "s3://key:hunter@models", 7])
def test_a_watcher_of_a_url_that_cant_be_read_is_refused_when_the_file_is_parsed(url):
    with pytest.raises(ValueError, match=r"^url.* can't be used; found .*\. .*\.$") as caught:
        CheckpointPublished(of_dag="train", of_task="fit", url=url)
    assert "hunter" not in str(caught.value)


def test_an_announced_checkpoint_is_not_announced_again_after_a_restart(run, publish):
    memory = Memory()
    assert run(watched(watcher(memory), [lambda: publish(1)])) == [("r1", 1)]
    assert run(watched(watcher(memory), [])) == []
    publish(2)
    assert run(watched(watcher(memory), [])) == [("r1", 2)]
    assert len(memory.values) == 1


@pytest.mark.parametrize("memory", [None, Memory(ValueError("several assets"))])
def test_without_a_memory_the_last_one_is_announced_again(run, publish, memory):
    publish(1)
    assert [run(watched(watcher(memory), [])) for _ in range(2)] == [[("r1", 1)]] * 2


def test_a_watcher_outlives_a_wrong_configuration(run, publish, monkeypatch):
    option = "AIRFLOW__HETERO__CHECKPOINT_URL"
    right = os.environ[option]
    monkeypatch.setenv(option, "ftp://models")
    acts = [lambda: monkeypatch.setenv(option, right), lambda: publish(1)]
    assert run(watched(watcher(), acts)) == [("r1", 1)]


def test_two_tasks_of_one_asset_have_a_memory_each():
    urls = (None, "s3://models/a", "s3://models/b")
    memories = {CheckpointPublished("train", task, url)._memory for task in ("fit", "fit2") for url in urls}
    assert len(memories) == 6
    assert all(len(CheckpointPublished("d" * 250, "t" * 250, url)._memory) <= 512 for url in urls)


def test_its_arguments_hold_no_secret_and_rebuild_it():
    trigger = CheckpointPublished(of_dag="train", of_task="fit")
    classpath, kwargs = trigger.serialize()
    assert (classpath, kwargs) == (
        "hetero_airflow.sensors.checkpoint_trigger.CheckpointPublished",
        {"of_dag": "train", "of_task": "fit"},
    )
    assert CheckpointPublished(**kwargs).serialize() == trigger.serialize()
    elsewhere = CheckpointPublished(of_dag="train", of_task="fit", url="s3://models/team-b/")
    assert elsewhere.serialize() == (classpath, {**kwargs, "url": "s3://models/team-b"})
    assert CheckpointPublished(**elsewhere.serialize()[1]).serialize() == elsewhere.serialize()


@pytest.mark.parametrize("url", [None, "s3://models/team-b"])
def test_a_dag_that_a_watcher_starts_survives_airflows_serialisation(url):
    watcher = AssetWatcher(name="fit", trigger=CheckpointPublished(of_dag="train", of_task="fit", url=url))
    with DAG("evaluate", schedule=[Asset("fitted", watchers=[watcher])]) as dag:
        pass
    stored = DagSerialization.to_dict(dag)
    (asset,) = DagSerialization.from_dict(stored).timetable.asset_condition.objects
    (stored_watcher,) = asset.watchers
    classpath, kwargs = watcher.trigger.serialize()
    assert (stored_watcher.trigger["classpath"], stored_watcher.trigger["kwargs"]) == (classpath, kwargs)
    in_database = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs))
    assert BaseEventTrigger.hash(classpath, in_database) == BaseEventTrigger.hash(
        classpath, stored_watcher.trigger["kwargs"]
    )
    assert CheckpointPublished(**in_database).serialize() == (classpath, kwargs)


def test_each_event_loop_has_a_poller_of_its_own_that_goes_with_it(run, publish):
    publish(1)
    gc.collect()
    before = set(checkpoint_trigger._pollers)
    for _ in range(3):
        run(first_event(waiting_for(step=1)))
    end = time.monotonic() + 600
    while not set(checkpoint_trigger._pollers) <= before and time.monotonic() < end:
        gc.collect()  # a thread that just answered may still hold its loop for a moment
    assert set(checkpoint_trigger._pollers) <= before
