"""Checkpoints of object stores with the data cache of this host before them.

A task that goes on where it was stopped, the other ranks of its host, and an evaluation beside it read the files from
the local disk. Files of checkpoints are written once, and whoever loads them compares their digests, so a cached file
needs no question to the store. Of each place, the host keeps the newest checkpoint.
"""

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

from hetero_airflow.checkpoints import OBJECT_STORES
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore, StoredObject
from hetero_airflow.checkpoints.keys import MANIFEST
from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.checkpoints.opening import split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.errors import shorten
from hetero_airflow.runtime.data.folder import CacheFolder, Unusable
from hetero_airflow.settings import DATA_VARIABLE

logger = logging.getLogger(__name__)

FILES = "files"
"""The folder of the task's files in a checkpoint."""

_ETAG = "written once"


def with_host_cache(store: CheckpointStore, place: CheckpointPlace) -> CheckpointStore:
    """The store with this host's data cache before it; the store itself if it is a folder, or there is no cache."""
    if split_url(place.url).scheme not in OBJECT_STORES:
        return store
    settings = DataSettings.of(os.environ.get(DATA_VARIABLE))
    try:
        return CachedCheckpoints(store, place, _folder(os.getpid(), settings.root, settings.size_bytes))
    except Unusable as error:
        logger.info("Checkpoints are read without a cache: the folder %s can't be used (%s)", settings.root, error)
        return store


@lru_cache(maxsize=1)
def _folder(process: int, root: Path, size_bytes: int | None) -> CacheFolder:
    """The cache folder as this process uses it."""
    return CacheFolder(root, size_bytes)


class CachedCheckpoints:
    """A `CheckpointStore` whose files come from the cache folder if they are there; for any number of threads."""

    def __init__(self, store: CheckpointStore, place: CheckpointPlace, folder: CacheFolder) -> None:
        self._store = store
        self._url = place.url.rstrip("/")
        self._path = place.path
        self._folder = folder
        self._given: set[str] = set()
        """Keys that were asked for. Who asks again has found the file damaged, and gets it from the store."""
        self._kept: defaultdict[str, list[str]] = defaultdict(list)
        """Checkpoint → URLs under which this process knows its files in the cache."""

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """See `CheckpointStore.read`."""
        return self._store.read(key, at_most=at_most)

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """See `CheckpointStore.replace`."""
        return self._store.replace(key, content, version)

    def put(self, key: str, source: Path) -> None:
        """See `CheckpointStore.put`. The manifest comes last: then the checkpoints before this one leave the cache."""
        self._store.put(key, source)
        checkpoint, name = self._parts(key)
        if name != MANIFEST:
            self._keep(key, source)
            return
        for earlier in [kept for kept in self._kept if kept != checkpoint]:
            for url in self._kept.pop(earlier):
                with suppress(OSError):
                    self._folder.remove(url)

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """See `CheckpointStore.fetch`."""
        url, is_first = f"{self._url}/{key}", key not in self._given
        self._given.add(key)
        with ExitStack() as lock:
            try:
                lock.enter_context(self._folder.alone(url))  # the other ranks of this host wait for one download
                if is_first and self._take(url, key, target, at_most):
                    return
                self._folder.remove(url)
            except OSError as error:
                logger.info("%s is not looked up in the cache: %s", shorten(key), error.strerror)
            self._store.fetch(key, target, at_most=at_most)
            self._keep(key, target)

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """See `CheckpointStore.sweep`."""
        return self._store.sweep(prefix, is_garbage)

    def _parts(self, key: str) -> tuple[str, str]:
        """The checkpoint of a key, and the name of the file in it."""
        checkpoint, _, name = key.removeprefix(f"{self._path}/").partition("/")
        return checkpoint, name

    def _is_private(self, key: str) -> bool:
        """Whether the task may write to the file that it gets; all other files it only reads."""
        return self._parts(key)[1].startswith(f"{FILES}/")

    def _take(self, url: str, key: str, target: Path, at_most: int) -> bool:
        """Whether a cached file is at the target now. One can be evicted meanwhile, and a damaged one be too large."""
        cached = self._folder.newest(url, uses=False)
        if cached is None or target.exists():
            return False
        try:
            if cached.stat().st_size > at_most:
                return False
            _link(cached, target, is_copy=self._is_private(key))
        except OSError:
            target.unlink(missing_ok=True)
            return False
        self._kept[self._parts(key)[0]].append(url)
        return True

    def _keep(self, key: str, file: Path) -> None:
        """Put a file into the cache. What would fill the most of it, or what the disk can't take, is left out."""
        url = f"{self._url}/{key}"
        try:
            if file.stat().st_size > self._folder.limit(0, shutil.disk_usage(self._folder.root).free) / 2:
                return
            kept = self._folder.new_file(url)
            try:
                _link(file, kept, is_copy=self._is_private(key))
                version = ObjectVersion(key, _ETAG, kept.stat().st_size)
                self._folder.publish(kept, url, version, uses=False)
            except BaseException:
                self._folder.discard(kept)
                raise
        except OSError as error:
            logger.info("%s does not go into the cache: %s", shorten(key), error.strerror)
        else:
            self._kept[self._parts(key)[0]].append(url)


def _link(source: Path, target: Path, *, is_copy: bool) -> None:
    """Another name of a file, or a copy if that is wanted or the target is on another disk."""
    if not is_copy:
        try:
            os.link(source, target)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
