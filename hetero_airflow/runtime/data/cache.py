"""The cache of this process: a folder of the host if there is one, else files that end with the process."""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal, TypedDict, TypeVar, get_args

from hetero_airflow.checkpoints import CHECKPOINT_STORES, GROUP
from hetero_airflow.checkpoints.object_version import ObjectChanged, ObjectVersion
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.errors import CheckpointStoreUnavailable, DataError, shorten
from hetero_airflow.model.data_url import DataUrl
from hetero_airflow.registry import load
from hetero_airflow.runtime.data import zstd
from hetero_airflow.runtime.data.bucket import Bucket
from hetero_airflow.runtime.data.counting import CacheCounter
from hetero_airflow.runtime.data.folder import CacheFolder, Unusable
from hetero_airflow.runtime.scratch_folder import ScratchFolder

logger = logging.getLogger(__name__)

T = TypeVar("T")

Revalidate = Literal["run", "always", "never"]


class Published(TypedDict):
    """What was written to an object."""

    etag: str | None
    """None: another writer has replaced it at once, or the store did not say."""
    sha256: str
    size_bytes: int


AT_ONCE = 16
"""Objects that are downloaded at once, of one process."""

_AHEAD_AT_ONCE = 4
"""Of those that are read ahead."""

_MOST_AHEAD = 100_000
"""Objects that are looked up to be read ahead."""

_ATTEMPTS = 3
_USUAL_RATIO = 5
"""How many times larger than a compressed object its content may be; so much is evicted where the disk is full."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Cache:
    """For any number of threads of one process.

    :param is_idle: its process has the lowest priority, so that others don't wait for what it downloads
    """

    def __init__(self, settings: DataSettings, *, is_idle: bool = False) -> None:
        self._settings = settings
        self._is_idle = is_idle
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._outside: dict[tuple[str, str], Path] = {}
        self._scratch: ScratchFolder | None = None
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="data")
        root = settings.root
        self._folder: CacheFolder | None = None
        try:
            self._folder = CacheFolder(root, settings.size_bytes)
        except Unusable as error:
            logger.warning("Data is read without a cache: the folder %s can't be used (%s)", root, error)
        self._counter = CacheCounter(root if self._folder else None)

    def file(self, url: str, revalidate: Revalidate) -> Path:
        """See `cached`."""
        location = _object_at(url, "Use cached_tree for a folder")
        if revalidate not in get_args(Revalidate):
            remedy = f"Use one of {', '.join(get_args(Revalidate))}"
            raise DataError(f"revalidate={shorten(revalidate)}", found="no such rule", remedy=remedy)
        if revalidate == "never" and self._folder and (path := self._folder.newest(location.url)):
            self._counter.note_hit(path, path.stat().st_size)
            return path
        with _named(location):
            return self._current(location, self._content, is_fresh=revalidate == "always")

    def unpacked(self, url: str) -> Path:
        """A file with the content of an object, which is decompressed once per host if its name ends with ``.zst``."""
        location = _object_at(url, "Pass a list of URLs, or the folder alone")
        with _named(location):
            return self._current(location, self._unpacked if url.endswith(zstd.SUFFIX) else self._content)

    def begin(self, read: Callable[[T], Path], item: T) -> Future[Path]:
        """Call it in a thread of the cache."""
        return self._threads.submit(read, item)

    def urls(self, url: str) -> list[str]:
        """The URLs of all objects below a folder, in order.

        :raises DataError: nothing is there, or the store does not answer
        """
        location = DataUrl.of(url)
        return [DataUrl(location.scheme, location.bucket, version.key).url for version in self._listed(location)]

    def files(self, urls: Iterable[str], revalidate: Revalidate) -> list[Path]:
        """See `cached_all`."""
        if isinstance(urls, str):
            raise DataError(f"the URLs {shorten(urls)}", found="one text", remedy="Pass a list, or use cached")
        return self._each(lambda url: self.file(url, revalidate), list(urls))

    def tree(self, url: str) -> Path:
        """See `cached_tree`."""
        location = DataUrl.of(url)
        prefix, versions = _prefix(location), self._listed(location)
        with _named(location):
            names = {version.key: _relative(version.key.removeprefix(prefix)) for version in versions}
            root = self._own().path()
            items = [DataUrl(location.scheme, location.bucket, version.key) for version in versions]
            paths = self._each(lambda item: self._current(item, self._content), items)
            for version, path in zip(versions, paths, strict=True):
                link = root / names[version.key]
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        return root

    def read_ahead(self, urls: Iterable[str]) -> tuple[int, int]:
        """Read what is not in the folder yet, in order, up to a quarter of what it may hold.

        Blocks while another process of the host reads ahead.

        :return: the number of objects that were read, and their bytes
        """
        folder = self._folder
        if folder is None:
            return 0, 0
        with folder.in_turn():
            room = limit = folder.capacity() // 4
            missing = []
            for location, version in islice(self._versions(urls), _MOST_AHEAD):
                if not _is_in(folder, location.url, version):
                    if version.size_bytes > room:
                        break
                    missing.append(location)
                    room -= version.size_bytes
            for first in range(0, len(missing), _AHEAD_AT_ONCE):
                self._each(lambda location: self.file(location.url, "run"), missing[first : first + _AHEAD_AT_ONCE])
        return len(missing), limit - room

    def _versions(self, urls: Iterable[str]) -> Iterator[tuple[DataUrl, ObjectVersion]]:
        """What is at these URLs now, and below those that are folders."""
        for location in map(DataUrl.of, urls):
            bucket = self._bucket(location)
            with _named(location, "list"):
                if not location.is_folder and (version := bucket.version(location.key)):
                    yield location, version
                    continue
                for version in bucket.folder(location.key.rstrip("/")):
                    if not version.key.endswith("/"):
                        yield DataUrl(location.scheme, location.bucket, version.key), version

    def publish(self, source: Path, url: str) -> Published:
        """See `publish`. A copy is uploaded, since the file can change meanwhile and what is cached must not."""
        location = _object_at(url, "Publish each file under a key of its own")
        with source.open("rb") as content, _named(location, "write"):

            def copied(file: Path) -> Path:
                with file.open("xb") as target:
                    shutil.copyfileobj(content, target, 1 << 20)
                return file

            copy = self._in_folder(location.url, os.fstat(content.fileno()).st_size, copied)
            try:
                version = self._bucket(location).upload(location.key, copy or source)
                with (copy or source).open("rb") as written:
                    digest = hashlib.file_digest(written, "sha256").hexdigest()
                    size = os.fstat(written.fileno()).st_size
                if self._folder and copy and version:
                    self._folder.publish(copy, location.url, version)
                return {"etag": version.etag if version else None, "sha256": digest, "size_bytes": size}
            finally:
                if self._folder and copy:
                    self._folder.discard(copy)

    def _listed(self, location: DataUrl) -> list[ObjectVersion]:
        with _named(location, "list"):
            listed = self._bucket(location).folder(_prefix(location).rstrip("/"))
            versions = [version for version in listed if not version.key.endswith("/")]
        if not versions:
            raise _missing(location)
        return versions

    def _each(self, read: Callable[[T], Path], items: Sequence[T]) -> list[Path]:
        futures = [self.begin(read, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        finally:
            self._counter.write()

    def _current(
        self,
        location: DataUrl,
        store: Callable[[str, ObjectVersion, Bucket], Path],
        *,
        is_fresh: bool = False,
    ) -> Path:
        bucket = self._bucket(location)
        for _ in range(_ATTEMPTS):
            version = bucket.version(location.key, is_fresh=is_fresh)
            if version is None:
                raise _missing(location)
            try:
                return store(location.url, version, bucket)
            except ObjectChanged:
                is_fresh = True
        raise DataError(
            f"to read {shorten(location.url)}",
            found=f"another content at each of {_ATTEMPTS} attempts",
            remedy="Write each version under a key of its own, or read it when its writer has ended",
        )

    def _content(self, url: str, version: ObjectVersion, bucket: Bucket) -> Path:
        def write(file: Path) -> ObjectVersion:
            with self._counter.reading(version.size_bytes):
                bucket.download(version, file)
            return version

        def find(folder: CacheFolder) -> Path | None:
            return folder.find(url, version)

        return self._stored(url, version, version.size_bytes, find, write)

    def _unpacked(self, url: str, version: ObjectVersion, bucket: Bucket) -> Path:
        """The decompressed content."""
        own = zstd.unpacked_url(url, version.etag)

        def write(file: Path) -> ObjectVersion:
            kept = self._folder.find(url, version) if self._folder else None
            compressed = kept or file.with_name(f"{file.name}~")
            try:
                if kept is None:
                    with self._counter.reading(version.size_bytes):
                        bucket.download(version, compressed)
                zstd.decompress(compressed, file, self._most_bytes(file))
            except ModuleNotFoundError:
                remedy = "Install hetero-airflow[zstd] on the workers"
                raise DataError(f"to decompress {shorten(url)}", found="no package zstandard", remedy=remedy) from None
            except zstd.BadZstd as error:
                remedy = "Write it again, or see data_cache_size if it is too large"
                raise DataError(f"to decompress {shorten(url)}", found=str(error), remedy=remedy) from error
            finally:
                if kept is None:
                    compressed.unlink(missing_ok=True)
            return replace(version, size_bytes=file.stat().st_size)

        room = version.size_bytes * _USUAL_RATIO
        return self._stored(own, version, room, lambda folder: folder.newest(own), write)

    def _stored(
        self,
        url: str,
        version: ObjectVersion,
        room_bytes: int,
        find: Callable[[CacheFolder], Path | None],
        write: Callable[[Path], ObjectVersion],
    ) -> Path:
        """The file that `find` finds in the cache, or a new one.

        :param url: under which a new one is known
        :param room_bytes: how much is evicted for it where the disk is full
        :param write: writes the new one, and returns the ETag and size under which it is kept
        """
        if (folder := self._folder) is None:
            return self._without_folder(url, version, write)
        if path := find(folder):
            self._counter.note_hit(path, version.size_bytes)
            return path

        def made(file: Path) -> Path:
            path = folder.publish(file, url, write(file))
            self._counter.note_read(path)
            return path

        with contextlib.nullcontext() if self._is_idle else folder.alone(url):
            if path := find(folder) or self._in_folder(url, room_bytes, made):
                self._counter.note_hit(path, version.size_bytes)
        return path or self._without_folder(url, version, write)

    def _most_bytes(self, file: Path) -> int:
        """How much a new file may hold: not more than the cache, or than half of what is free where there is none."""
        if self._folder is None or not file.is_relative_to(self._folder.root):
            return shutil.disk_usage(file.parent).free // 2
        return self._folder.capacity()

    def _in_folder(self, url: str, size_bytes: int, make: Callable[[Path], Path]) -> Path | None:
        """What `make` returns for a new file of the folder; None if there is no folder, or no room in it."""
        if (folder := self._folder) is None:
            return None
        for is_last in (False, True):
            try:
                file = folder.new_file(url)
                try:
                    return make(file)
                except BaseException:
                    folder.discard(file)
                    raise
            except OSError as error:
                if is_last or error.errno not in _FULL:
                    logger.warning("%s does not go into the cache: %s", shorten(url), error.strerror)
                    break
                folder.make_room(size_bytes)
        return None

    def _without_folder(self, url: str, version: ObjectVersion, write: Callable[[Path], ObjectVersion]) -> Path:
        with self._lock:
            path = self._outside.get((url, version.etag))
        if path is None:
            path = self._own().path() / DataUrl.of(url).key.rpartition("/")[2]
            path.parent.mkdir()
            try:
                write(path)
            except BaseException:
                shutil.rmtree(path.parent)
                raise
            with self._lock:
                self._outside[url, version.etag] = path
        return path

    def _own(self) -> ScratchFolder:
        with self._lock:
            self._scratch = self._scratch or ScratchFolder("hetero-airflow-data-")
            return self._scratch

    def _bucket(self, location: DataUrl) -> Bucket:
        at = location.scheme, location.bucket
        with self._lock:
            if at not in self._buckets:
                settings, url = self._settings, f"{location.scheme}://{location.bucket}"
                place = CheckpointPlace(
                    url=url,
                    path="-",
                    endpoint=settings.own_endpoints.get(location.scheme),
                    endpoints=settings.endpoints,
                )
                self._buckets[at] = Bucket(load(GROUP, CHECKPOINT_STORES, location.scheme)(place))
            return self._buckets[at]


@contextlib.contextmanager
def _named(location: DataUrl, action: str = "read") -> Iterator[None]:
    asked = f"to {action} {shorten(location.url)}"
    try:
        yield
    except CheckpointStoreUnavailable as error:
        raise DataError(asked, found=error.found, remedy=error.remedy) from error.__cause__
    except OSError as error:
        found, remedy = error.strerror or type(error).__name__, "See that the local disk has room"
        raise DataError(asked, found=f"{found} on this host", remedy=remedy) from error


def _object_at(url: str, remedy: str) -> DataUrl:
    location = DataUrl.of(url)
    if location.is_folder:
        raise DataError(f"the data URL {shorten(url)}", found="a folder", remedy=remedy)
    return location


def _is_in(folder: CacheFolder, url: str, version: ObjectVersion) -> bool:
    """Whether a content is cached, or what it is when it is decompressed."""
    if url.endswith(zstd.SUFFIX) and folder.newest(zstd.unpacked_url(url, version.etag)):
        return True
    return folder.find(url, version) is not None


def _missing(location: DataUrl) -> DataError:
    remedy = "Look at the URL, and whether the identity of the task may list there"
    return DataError(f"to read {shorten(location.url)}", found="nothing there", remedy=remedy)


def _prefix(location: DataUrl) -> str:
    """How the keys of a folder begin."""
    return f"{location.key.rstrip('/')}/".lstrip("/")


def _relative(name: str) -> str:
    """A key below a folder as a path."""
    if not name.isprintable() or any(part in ("", ".", "..") for part in name.split("/")):
        remedy = "Name the objects one by one with cached, or rename it"
        raise DataError(f"the key {shorten(name)}", found="no name of a file", remedy=remedy)
    return name
