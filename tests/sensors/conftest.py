"""Checkpoints to wait for, and a loop whose clock jumps to the next thing to do: minutes of polling in milliseconds."""

import asyncio
import selectors
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from airflow.dag_processing.dagbag import DagBag

from hetero_airflow.checkpoints.configured import checkpoint_options, checkpoint_place, store_credentials
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.publishing import claim_place
from hetero_airflow.checkpoints.publishing import publish as publish_entry

DAG_FILE = """
from airflow.sdk import DAG
from hetero_airflow.sensors import CheckpointSensor, DeviceAvailableSensor
with DAG("a_dag", schedule=None):
    {statement}
"""


@pytest.fixture
def parsed(tmp_path):
    """The import errors of a DAG file with this statement, and its DAG."""

    def _parsed(statement):
        (tmp_path / "a_dag.py").write_text(DAG_FILE.format(statement=statement))
        bag = DagBag(tmp_path)
        return list(bag.import_errors.values()), bag.dags.get("a_dag")

    return _parsed


async def first_event(trigger):
    """What a trigger fires with."""
    events = trigger.run()
    try:
        return (await anext(events)).payload
    finally:
        await events.aclose()


async def still_waiting(trigger, for_s=300):
    """The task that waits for a trigger, after this time in which it has not fired."""
    waiting = asyncio.create_task(first_event(trigger))
    await asyncio.sleep(for_s)
    assert not waiting.done()
    return waiting


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time stands still while anything runs, in threads too, and jumps while everybody waits."""

    def __init__(self):
        super().__init__(JumpingSelector(self))
        self.jumped_s = 0.0
        self.in_threads = 0

    def time(self):
        return self.jumped_s

    def run_in_executor(self, executor, func, *args):
        self.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._count_down)
        return future

    async def shutdown_default_executor(self, *args):
        self.in_threads += 1  # from 3.12 on it has a time-out, up to which the clock would jump
        await super().shutdown_default_executor(*args)

    def _count_down(self, _):
        self.in_threads -= 1


class JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.loop.in_threads or timeout is None:
            return super().select(10)
        self.loop.jumped_s += timeout
        return []


@pytest.fixture
def run():
    """Runs a coroutine on a loop whose clock jumps."""

    def _run(coroutine):
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            return runner.run(coroutine)

    return _run


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Publishes a checkpoint of a task, in the store that is configured: a folder, unless a test says otherwise."""
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", (tmp_path / "store").as_uri())
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text("{}")

    def _publish(step, *, dag="train", task="fit", run_id="r1", epoch=0, is_final=False, url=None, **metrics):
        options = checkpoint_options()
        options = replace(options, url=url or options.url)
        credentials = store_credentials(options)
        place = checkpoint_place(
            dag, task, run_id, -1, epoch=epoch, token=1 + epoch, options=options, credentials=credentials
        )
        store = open_store(place)
        now = datetime.now(UTC)
        return publish_entry(
            store, claim_place(store, place), saved, step=step, metrics=metrics, now=now, is_final=is_final
        )

    return _publish
