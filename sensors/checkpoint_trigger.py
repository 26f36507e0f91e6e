"""Triggers that wait for checkpoints. All triggers of one triggerer share one `Poller`."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from hetero_airflow.checkpoints.configured import checkpoint_options
from hetero_airflow.checkpoints.index import Index, Newest
from hetero_airflow.errors import HeteroError
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from hetero_airflow.sensors.checkpoint_source import (
    CheckpointSource,
    PublishedCheckpoint,
    WatchedCheckpoint,
    parse_watched_url,
)
from hetero_airflow.sensors.poller import Poller

CLASSPATH = "hetero_airflow.sensors.checkpoint_trigger"

CHECKPOINT = "checkpoint"
"""Key of an event's payload for the checkpoint."""
ERROR = "error"
"""Key of an event's payload for the reason why the trigger gave up."""
RECHECK_INTERVAL_S = 60.0
"""How often a watcher checks whether its configuration was corrected."""

_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, Poller[WatchedCheckpoint, PublishedCheckpoint]] = (
    WeakKeyDictionary()
)
"""One poller for each event loop, which the triggers of a process share."""


def shared_readings(watch: WatchedCheckpoint) -> AsyncGenerator[PublishedCheckpoint | None, None]:
    """What is published now, then after each change. All waiters in this event loop share it.

    :raises HeteroError: the configured store can't be opened
    """
    loop = asyncio.get_running_loop()
    if loop not in _pollers:
        _pollers[loop] = Poller(CheckpointSource(), random.Random())  # noqa: S311  jitter is no secret
    if watch.url is not None and watch.url == checkpoint_options().url:
        watch = replace(watch, url=None)  # so that all waiters share it, with and without a URL
    return _pollers[loop].readings(watch)


class CheckpointTrigger(BaseTrigger):
    """Fires once, when a task instance has a checkpoint that meets a condition.

    Airflow stores its arguments, so they hold no secret. The triggerer takes the credentials of the store from its own
    configuration.

    :param condition: see `CheckpointCondition.to_json`
    :param url: URL of the store; None for the configured one
    """

    def __init__(
        self,
        of_dag: str,
        of_task: str,
        run_id: str,
        map_index: int | str = -1,
        condition: dict[str, Any] | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of_dag = of_dag
        self.of_task = of_task
        self.run_id = run_id
        self.map_index = map_index
        self.condition = condition or {}
        self.url = url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, which Airflow stores."""
        names = ("of_dag", "of_task", "run_id", "map_index", "condition")
        return f"{CLASSPATH}.CheckpointTrigger", {name: getattr(self, name) for name in names} | url_argument(self.url)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: the checkpoint, or why the trigger gave up. It waits for a store that does not answer."""
        self._release_dag()
        condition = CheckpointCondition(**self.condition)
        try:
            watch = WatchedCheckpoint(self.of_dag, self.of_task, self.run_id, int(self.map_index), self.url)
            checkpoint = await _first_match(watch, condition)
        except (HeteroError, ValueError) as error:
            yield TriggerEvent({ERROR: str(error)})
        else:
            yield TriggerEvent({CHECKPOINT: checkpoint})

    def _release_dag(self) -> None:
        """Release the template context before the wait.

        Airflow gives each trigger that starts its task a copy of the whole DAG, and keeps it while the trigger runs:
        173 KiB for 100 tasks (Airflow 3.3.2), too much for a thousand triggers.
        """
        ti: Any = self.task_instance
        context = getattr(ti, "_cached_template_context", None)
        if context:
            context.clear()
            ti.task = None


def url_argument(url: str | None) -> dict[str, str]:
    """The trigger's argument for the store; none for the configured store."""
    return {} if url is None else {"url": url}


async def _first_match(watch: WatchedCheckpoint, condition: CheckpointCondition) -> dict[str, Any]:
    async with aclosing(shared_readings(watch)) as published:
        async for reading in published:
            if reading is not None and isinstance(reading.content, Index):
                entry = condition.met_in(reading.content, datetime.now(UTC))
                if entry is not None:
                    return reading.announcement(entry)
    raise AssertionError("readings never end")


class CheckpointPublished(BaseEventTrigger):
    """Announces the checkpoints of a task in any run, for an asset watcher that starts a DAG.

    If several are published between two reads (1 to 60 s), only the last is announced. A checkpoint from before the
    start is announced too, unless it was announced already: the asset's state store has the last one. An event may
    come twice if the triggerer dies right after it, or if several assets watch the same task.

    :param of_dag: the task's DAG
    :param of_task: the task that publishes the checkpoints
    :param url: where the task publishes, if it has ``checkpoint={"url": ...}``; None for ``[hetero] checkpoint_url``.
        A task keeps its first URL until a clear starts it afresh
    :raises RequestError: when the DAG file is parsed, if the URL is no text
    :raises SettingsError: when the DAG file is parsed, if the URL is invalid or has no store

    >>> from airflow.sdk import Asset, AssetWatcher
    >>> trigger = CheckpointPublished(of_dag="train", of_task="fit")
    >>> asset = Asset("fitted", watchers=[AssetWatcher(name="fitted", trigger=trigger)])
    """

    def __init__(self, of_dag: str, of_task: str, url: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of_dag = of_dag
        self.of_task = of_task
        self.url = parse_watched_url(url)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, which Airflow stores."""
        arguments = {"of_dag": self.of_dag, "of_task": self.of_task}
        return f"{CLASSPATH}.CheckpointPublished", arguments | url_argument(self.url)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event for each checkpoint that it sees, without end. The payload is the checkpoint."""
        watch = WatchedCheckpoint(self.of_dag, self.of_task, url=self.url)
        seen = await self._recall()
        while True:
            try:
                async with aclosing(shared_readings(watch)) as published:
                    async for reading in published:
                        if reading is None or not isinstance(reading.content, Newest):
                            continue
                        name = f"{reading.path}/{reading.content.entry.key}"
                        if name != seen:
                            yield TriggerEvent(reading.announcement(reading.content.entry))
                            seen = name
                            await self._remember(name)
            except HeteroError as error:
                self.log.warning("Checkpoints of %s in %s: %s", self.of_task, self.of_dag, error)
                await asyncio.sleep(RECHECK_INTERVAL_S)

    async def _recall(self) -> Any:
        """The checkpoint that was announced last; None if it is unknown."""
        with self._tolerate_no_memory():
            return await self.asset_state_store.aget(self._memory) if self.asset_state_store else None
        return None

    async def _remember(self, name: str) -> None:
        with self._tolerate_no_memory():
            if self.asset_state_store:
                await self.asset_state_store.aset(self._memory, name)

    @property
    def _memory(self) -> str:
        """Key in the asset's state store, which takes 512 characters. Names in Airflow have at most 250."""
        name = f"{self.of_dag}.{self.of_task}"
        return f"hetero.{name if self.url is None else sha256(f'{name} {self.url}'.encode()).hexdigest()}"

    @contextmanager
    def _tolerate_no_memory(self) -> Iterator[None]:
        """Go on without the state store if it fails. ValueError means that several assets have this trigger."""
        try:
            yield
        except (AirflowRuntimeError, ValueError) as error:
            self.log.warning("The last checkpoint may be announced again after a restart: %s", error)
