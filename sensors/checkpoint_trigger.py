"""Triggers that wait for checkpoints. All of one triggerer share one `Poller`."""

from __future__ import annotations

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

from hetero_airflow.checkpoints.index import Index, Newest
from hetero_airflow.contract.checkpoint_place import checkpoint_options
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
"""Key of an event's payload: the checkpoint that was waited for."""
ERROR = "error"
"""Key of an event's payload instead: why it is waited for no longer."""
RECHECK_INTERVAL_S = 60.0
"""How often a watcher looks whether its configuration was corrected."""

_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, Poller[WatchedCheckpoint, PublishedCheckpoint]] = (
    WeakKeyDictionary()
)
"""The one thing that triggers of a process have in common is their event loop."""


def readings(watch: WatchedCheckpoint) -> AsyncGenerator[PublishedCheckpoint | None, None]:
    """What is published, now and after each change; shared with all who wait in this event loop.

    :raises HeteroError: the configuration names no store that can be opened
    """
    loop = asyncio.get_running_loop()
    if loop not in _pollers:
        _pollers[loop] = Poller(CheckpointSource(), random.Random())  # noqa: S311  jitter is no secret
    if watch.url is not None and watch.url == checkpoint_options().url:
        watch = replace(watch, url=None)  # so that it is looked at once for all, whoever names the place
    return _pollers[loop].readings(watch)


class CheckpointTrigger(BaseTrigger):
    """Fires once, when a task instance has a checkpoint that meets a condition.

    Its arguments are stored by Airflow: they hold no secret, and what opens the store, the triggerer finds in its own
    configuration.

    :param condition: see `CheckpointCondition.to_json`
    :param url: of the store; None: the configured one
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
        """What Airflow stores: the class and its arguments."""
        names = ("of_dag", "of_task", "run_id", "map_index", "condition")
        return f"{CLASSPATH}.CheckpointTrigger", {name: getattr(self, name) for name in names} | url_argument(self.url)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: the checkpoint, or why none can be waited for. A store that is gone is waited for."""
        self._release_dag()
        condition = CheckpointCondition.from_json(self.condition)
        try:
            watch = WatchedCheckpoint(self.of_dag, self.of_task, self.run_id, int(self.map_index), self.url)
            found = await _first_match(watch, condition)
        except (HeteroError, ValueError) as error:
            yield TriggerEvent({ERROR: str(error)})
        else:
            yield TriggerEvent({CHECKPOINT: found})

    def _release_dag(self) -> None:
        """Let go of what templates were rendered with, before the wait.

        Airflow gives each trigger that starts its task a copy of the whole DAG, and keeps it as long as the trigger
        runs: 173 KiB for 100 tasks (Airflow 3.3.2), which a thousand triggers would not have room for.
        """
        ti: Any = self.task_instance
        context = getattr(ti, "_cached_template_context", None)
        if context:
            context.clear()
            ti.task = None


def url_argument(url: str | None) -> dict[str, str]:
    """What a trigger's arguments say of the store; nothing where it is the configured one, as ever."""
    return {} if url is None else {"url": url}


async def _first_match(watch: WatchedCheckpoint, condition: CheckpointCondition) -> dict[str, Any]:
    async with aclosing(readings(watch)) as published:
        async for one in published:
            if one is not None and isinstance(one.content, Index):
                entry = condition.met_in(one.content, datetime.now(UTC))
                if entry is not None:
                    return one.announcement(entry)
    raise AssertionError("readings never end")


class CheckpointPublished(BaseEventTrigger):
    """Announces the checkpoints of a task, in whatever run: for an asset watcher that starts a DAG.

    Of several that are published within one look (1 to 60 s), the last is announced. What is there already when it
    begins is announced too, unless it was before: the last one is remembered in the asset's state store. An event
    may come twice if the triggerer dies in the moment after it, or where several assets watch the same task.

    :param of_dag: the task's DAG
    :param of_task: whose checkpoints
    :param url: where the task publishes, if it has ``checkpoint={"url": ...}``; None: ``[hetero] checkpoint_url``. A
        task keeps the URL that it began with, until a clear starts it anew
    :raises RequestError: when the DAG file is parsed, if the URL is no text
    :raises SettingsError: when the DAG file is parsed, if the URL can't be read or has no store

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
        """What Airflow stores: the class and its arguments."""
        arguments = {"of_dag": self.of_dag, "of_task": self.of_task}
        return f"{CLASSPATH}.CheckpointPublished", arguments | url_argument(self.url)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event for each checkpoint that it sees, without end: its payload is the checkpoint."""
        watch = WatchedCheckpoint(self.of_dag, self.of_task, url=self.url)
        seen = await self._recall()
        while True:
            try:
                async with aclosing(readings(watch)) as published:
                    async for one in published:
                        if one is None or not isinstance(one.content, Newest):
                            continue
                        name = f"{one.path}/{one.content.entry.key}"
                        if name != seen:
                            yield TriggerEvent(one.announcement(one.content.entry))
                            seen = name
                            await self._remember(name)
            except HeteroError as error:
                self.log.warning("Checkpoints of %s in %s: %s", self.of_task, self.of_dag, error)
                await asyncio.sleep(RECHECK_INTERVAL_S)

    async def _recall(self) -> Any:
        """Which checkpoint was announced last; None if that is not known."""
        with self._forgetting():
            return await self.asset_state_store.aget(self._memory) if self.asset_state_store else None
        return None

    async def _remember(self, name: str) -> None:
        with self._forgetting():
            if self.asset_state_store:
                await self.asset_state_store.aset(self._memory, name)

    @property
    def _memory(self) -> str:
        """Key in the asset's state store; it takes 512 characters, and names of Airflow have at most 250."""
        name = f"{self.of_dag}.{self.of_task}"
        return f"hetero.{name if self.url is None else sha256(f'{name} {self.url}'.encode()).hexdigest()}"

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Go on without a memory where there is none: ValueError says that several assets have this trigger."""
        try:
            yield
        except (AirflowRuntimeError, ValueError) as error:
            self.log.warning("The last checkpoint may be announced again after a restart: %s", error)
