"""What triggers read: the index of one task instance, or the newest checkpoint of a task in any run."""

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from hetero_airflow.checkpoints import CHECKPOINT_STORES, GROUP, OBJECT_STORES
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.configured import checkpoint_options, checkpoint_place, store_credentials
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.index import INDEX, CheckpointEntry, Index, Newest
from hetero_airflow.checkpoints.loading import read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.opening import check_url, open_store, split_url
from hetero_airflow.checkpoints.place import checkpoint_path, newest_key
from hetero_airflow.contract.local_run import is_local_run
from hetero_airflow.errors import CheckpointStoreUnavailable, HeteroError, RequestError
from hetero_airflow.registry import load
from hetero_airflow.sensors.poller import ABSENT

REOPEN_S = 60.0
"""A store that does not answer is opened again at most this often, because its credentials may have changed."""
MAX_OPEN_STORES = 1024
"""Number of stores of one bucket that stay open."""


def parse_watched_url(url: object) -> str | None:
    """The URL that a sensor or a watcher was given, as it is written in `Watch`; None for none.

    :raises RequestError: no text
    :raises SettingsError: a URL that can't be read, or a scheme without a store
    """
    if url is None:
        return None
    if not isinstance(url, str):
        raise RequestError(
            "url",
            url,
            found=f"a value of the type {type(url).__name__}",
            remedy='Give a text, as in url="s3://bucket/prefix"',
        )
    check_url(url, "url")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class WatchedCheckpoint:
    """An object that triggers wait for."""

    dag_id: str
    task_id: str
    run_id: str | None = None
    """None for the newest checkpoint of the task in any run."""
    map_index: int = -1
    url: str | None = None
    """URL of the store; None for the configured one."""


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """The content that was read, and its place."""

    url: str
    path: str
    content: Index | Newest

    def announcement(self, entry: CheckpointEntry) -> dict[str, Any]:
        """The checkpoint for XCom and events: plain values, sufficient to load exactly this one."""
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
    """Reads the configured store and named ones, from any number of threads. Opens each store on first use.

    It never lists and never writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str] | None, _BucketStores] = {}
        """The key None stands for the configured store."""

    def fingerprint(self, watch: WatchedCheckpoint) -> Hashable | None:
        """A value that changes with a local file; None for an object store, or if only reading shows a change."""
        try:
            _, store = self._open(watch)
        except HeteroError:
            return None
        if not isinstance(store, FilesystemStore):
            return None
        try:
            status = (store.root / _key(watch)).stat()
        except FileNotFoundError:
            return ABSENT
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self, watch: WatchedCheckpoint) -> PublishedCheckpoint | None:
        """What is published now; None if nothing is. Blocks for one request.

        :raises CheckpointStoreUnavailable: the store, or Airflow's connection to it, does not answer
        :raises InvalidCheckpoint: the content is no index
        :raises SettingsError: the configured store can't be opened
        """
        url, store = self._open(watch)
        try:
            if watch.run_id is None:
                newest = read_newest_checkpoint(store, watch.dag_id, watch.task_id)
                return PublishedCheckpoint(url, newest.path, newest) if newest else None
            index = read_index(store, _path(watch))
            return PublishedCheckpoint(url, _path(watch), index) if index else None
        except CheckpointStoreUnavailable:
            self._forget(watch)
            raise

    def _open(self, watch: WatchedCheckpoint) -> tuple[str, CheckpointStore]:
        name = _bucket_name(watch)
        with self._lock:
            bucket = self._buckets.get(name) or _BucketStores()
            url = bucket.configured_url if name is None or watch.url is None else watch.url
            store = bucket.store(url)
            self._buckets[name] = bucket
            return url, store

    def _forget(self, watch: WatchedCheckpoint) -> None:
        """Open the bucket again next time, unless it is new: its credentials may have changed."""
        name = _bucket_name(watch)
        with self._lock:
            bucket = self._buckets.get(name)
            if bucket and time.monotonic() - bucket.opened_at >= REOPEN_S:
                del self._buckets[name]


class _BucketStores:
    """The stores of one bucket, which share a client, or the stores of folders.

    :raises CheckpointStoreUnavailable: Airflow does not answer a request for the connection
    :raises SettingsError: the configuration can't be read
    """

    def __init__(self) -> None:
        self._options = checkpoint_options()
        try:
            self._credentials = store_credentials(self._options)
        except AirflowRuntimeError as error:
            raise CheckpointStoreUnavailable(
                f"the Airflow connection {self._options.conn_id}", found=f"{error}", remedy="The trigger asks again"
            ) from error
        self._first: Any = None
        self.configured_url = self._options.url
        self.opened_at = time.monotonic()
        self.store = lru_cache(MAX_OPEN_STORES)(self._open)

    def _open(self, url: str) -> CheckpointStore:
        options = replace(self._options, url=url)
        place = checkpoint_place("", "", "", -1, epoch=None, options=options, credentials=self._credentials)
        scheme = split_url(url).scheme
        if scheme not in OBJECT_STORES:
            return open_store(place)
        # keep credentials from other triggers; one request for each read: the poller asks again at its rate
        store: CheckpointStore = load(GROUP, CHECKPOINT_STORES, scheme)(
            place, self._credentials, attempts=1, share_client_of=self._first
        )
        self._first = store
        return store


def _bucket_name(watch: WatchedCheckpoint) -> tuple[str, str] | None:
    if watch.url is None or is_local_run():  # a local run has one place for all checkpoints
        return None
    return split_url(watch.url)[:2]


def _path(watch: WatchedCheckpoint) -> str:
    return checkpoint_path(watch.dag_id, watch.task_id, watch.run_id or "", watch.map_index)


def _key(watch: WatchedCheckpoint) -> str:
    return newest_key(watch.dag_id, watch.task_id) if watch.run_id is None else f"{_path(watch)}/{INDEX}"
