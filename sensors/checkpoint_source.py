"""What triggers look at: the index of one task instance, or the newest checkpoint of a task in whatever run."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from hetero_airflow.checkpoints import CHECKPOINT_STORES, GROUP
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.index import INDEX, Entry, Index, Newest
from hetero_airflow.checkpoints.loading import newest_of, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import feed_of, place_of
from hetero_airflow.errors import CheckpointStoreUnavailable, HeteroError
from hetero_airflow.executor.checkpoint_place import (
    CheckpointOptions,
    checkpoint_options,
    checkpoint_place,
    store_credentials,
)
from hetero_airflow.registry import load
from hetero_airflow.sensors.poller import ABSENT

REOPEN_S = 60.0
"""A store that does not answer is opened anew at most this often: its credentials may have changed."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One object that is waited for."""

    dag_id: str
    task_id: str
    run_id: str | None = None
    """None: the newest of the task, in whatever run."""
    map_index: int = -1


@dataclass(frozen=True, slots=True)
class Published:
    """What was read: where, and what is there."""

    url: str
    path: str
    content: Index | Newest

    def announcement(self, entry: Entry) -> dict[str, Any]:
        """A checkpoint as XCom and events carry it: plain values, enough to load this very one."""
        return {
            "step": entry.step,
            "metrics": dict(entry.metrics),
            "url": self.url,
            "path": self.path,
            "key": entry.key,
            "digest": entry.digest,
            "published_at": entry.published_at.isoformat(),
            "is_final": entry.is_final,
        }


class CheckpointSource:
    """Reads the configured store, for any number of threads; opens it at the first need.

    It never lists, and never writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: tuple[CheckpointOptions, CheckpointStore] | None = None
        self._opened_at = 0.0

    def glance(self, watch: Watch) -> Hashable | None:
        """What shows a change of a local file; None for an object store, and where only reading can tell."""
        try:
            _, store = self._open()
        except HeteroError:
            return None
        if not isinstance(store, FilesystemStore):
            return None
        try:
            found = (store.root / _key(watch)).stat()
        except FileNotFoundError:
            return ABSENT
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self, watch: Watch) -> Published | None:
        """What is published now; None if nobody has begun there. Blocks for one request.

        :raises CheckpointStoreUnavailable: the store, or Airflow's connection to it, does not answer
        :raises InvalidCheckpoint: what is there is no index
        :raises SettingsError: the configuration names no store that can be opened
        """
        options, store = self._open()
        try:
            if watch.run_id is None:
                newest = newest_of(store, watch.dag_id, watch.task_id)
                return Published(options.url, newest.path, newest) if newest else None
            index = read_index(store, _path(watch))
            return Published(options.url, _path(watch), index) if index else None
        except CheckpointStoreUnavailable:
            self._forget(store)
            raise

    def _open(self) -> tuple[CheckpointOptions, CheckpointStore]:
        with self._lock:
            if self._opened is None:
                options = checkpoint_options()
                try:
                    credentials = store_credentials(options.conn_id)
                except AirflowRuntimeError as error:
                    raise CheckpointStoreUnavailable(
                        f"the Airflow connection {options.conn_id}",
                        found=f"{error}",
                        remedy="It is asked for again",
                    ) from error
                self._opened = options, _opened_store(options, credentials)
                self._opened_at = time.monotonic()
            return self._opened

    def _forget(self, store: CheckpointStore) -> None:
        """Open the store anew the next time, if this one is not new: its credentials may have changed."""
        with self._lock:
            if self._opened and self._opened[1] is store and time.monotonic() - self._opened_at >= REOPEN_S:
                self._opened = None


def _opened_store(options: CheckpointOptions, credentials: Mapping[str, str]) -> CheckpointStore:
    place = checkpoint_place("", "", "", -1, epoch=None, token=None, options=options, credentials=credentials)
    if not options.url.startswith("s3:"):
        return open_store(place)
    # the credentials are no other trigger's business; one request for each read: the poller asks again, at its rate
    store: CheckpointStore = load(GROUP, CHECKPOINT_STORES, "s3")(place, credentials, attempts=1)
    return store


def _path(watch: Watch) -> str:
    return place_of(watch.dag_id, watch.task_id, watch.run_id or "", watch.map_index)


def _key(watch: Watch) -> str:
    return feed_of(watch.dag_id, watch.task_id) if watch.run_id is None else f"{_path(watch)}/{INDEX}"
