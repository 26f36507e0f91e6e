"""The cache folder of a host, which any number of processes use.

::

    objects/<2 digits>/<digest of the URL>/<digest of the ETag>-<bytes>/    one content of an object:
        data/<name>        the content, read-only
        url                where it is from
    pins/<digest>          a URL: it and all below it stay
    locks/<3 digits>       locked while an object whose digest begins so is downloaded
    locks/counts           locked while `counts` is written
    locks/ahead            locked while a process reads ahead
    counts                 how often processes found data here, see `counting`
    evicting               locked while something is evicted, or looked up
    process-…/             of one process: what it downloads, and the list of what it uses

There is no index, and no file is written twice. So a process that is killed leaves only its own folder behind, which
the next one removes, and the locks end with it. Data is renamed into place when it is complete. What a process has
looked up stays until it ends.
"""

import contextlib
import fcntl
import math
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.model.data_url import digest_of
from hetero_airflow.runtime.scratch_folder import LOCK, ScratchFolder

PROCESS = "process-"
OBJECTS, LOCKS = "objects", "locks"
DATA, URL, USED = "data", "url", "used"
TOUCH_S = 60.0
"""How exact the order of last use is."""

WAIT_S = 600.0
"""A lock of another process that is held for longer is passed by; two then download the same."""

_VERSION = re.compile(r"[0-9a-f]{16}-([0-9]{1,18})")


class Unusable(Exception):
    """The folder can't be used as a cache."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached content of an object."""

    folder: Path
    size_bytes: int
    used: float
    """Seconds since 1970."""

    @property
    def name(self) -> str:
        """As `USED` lists it."""
        return _entry_name(self.folder)

    @property
    def url(self) -> str | None:
        """Where it is from; None if that can't be read."""
        try:
            return (self.folder / URL).read_text(encoding="utf-8") or None
        except (OSError, ValueError):
            return None

    def is_below(self, urls: Iterable[str]) -> bool:
        """Whether it is one of these objects, or below one of these folders."""
        own = self.url
        return own is not None and any(own == url or own.startswith(f"{url.rstrip('/')}/") for url in urls)


class CacheFolder:
    """The cache folder as this process uses it; a forked process makes its own.

    :param size_bytes: how much it may hold; None: half of what its file system has free for it
    :raises Unusable: it belongs to another user, others may write there, or it can't be written
    """

    def __init__(self, root: Path, size_bytes: int | None = None) -> None:
        self.root = root
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._unchecked_bytes = math.inf
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = root.stat()
            if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise Unusable("it belongs to another user, or others may write there")
            for name in (OBJECTS, "pins", LOCKS):
                (root / name).mkdir(exist_ok=True)
            (root / "evicting").touch()
            self._process = ScratchFolder(PROCESS, root)
            self._list = os.open(self._process.root / USED, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unusable(error.strerror or type(error).__name__) from error

    def find(self, url: str, version: ObjectVersion) -> Path | None:
        """The file with this content, which stays until this process ends; None if it is not here."""
        folder = self._at(url, version)
        with locked(self.root / "evicting", fcntl.LOCK_SH):
            path = self._file_in(folder)
            if path is not None:
                self._use(_entry_name(folder))
        return path

    def newest(self, url: str, *, uses: bool = True) -> Path | None:
        """The file with the content that was downloaded last; None if no content is here.

        :param uses: False: it can go at any time
        """
        with locked(self.root / "evicting", fcntl.LOCK_SH), contextlib.suppress(OSError):
            paths = filter(None, map(self._file_in, self._of(url).iterdir()))
            if path := max(paths, key=lambda path: path.stat().st_mtime, default=None):
                if uses:
                    self._use(_entry_name(path.parent.parent))
                return path
        return None

    @contextlib.contextmanager
    def alone(self, url: str) -> Iterator[None]:
        """While it is entered, no other process or thread downloads this object to this folder."""
        with locked(self.root / LOCKS / digest_of(url)[:3], fcntl.LOCK_EX, WAIT_S):
            yield

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """While it is entered, no other process of the host reads ahead. Waits for as long as that takes."""
        with (self.root / LOCKS / "ahead").open("a") as turn:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    def new_file(self, url: str) -> Path:
        """The path of a new file of this process; `publish` makes it known."""
        folder = self._process.path()
        (folder / DATA).mkdir(parents=True)
        (folder / URL).write_text(url, encoding="utf-8")
        return folder / DATA / _name(url)

    def discard(self, file: Path) -> None:
        """Remove a new file that was not completed."""
        shutil.rmtree(file.parents[1], ignore_errors=True)

    def publish(self, file: Path, url: str, version: ObjectVersion, *, uses: bool = True) -> Path:
        """Make a complete file known to all processes; its path from now on.

        :param uses: False: it can go at any time
        """
        file.chmod(0o444)
        folder = self._at(url, version)
        if uses:
            self._use(_entry_name(folder))
        while file.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                file.parents[1].rename(folder)
            except FileNotFoundError:  # an eviction has just removed the parent
                continue
            except OSError:
                if self._file_in(folder) is None:
                    folder.rename(self._process.path())  # incomplete: others have written here
                else:
                    self.discard(file)  # another process was first
        self._check_size(version.size_bytes)
        return folder / DATA / file.name

    def make_room(self, size_bytes: int) -> None:
        """Evict what was not used for the longest time, so that this much more fits."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        held = sum(entry.size_bytes for entry in entries)
        free = shutil.disk_usage(self.root).free
        limit = self.limit(held, free)
        excess = max(held + size_bytes - limit, size_bytes - free)
        chosen = []
        if excess > 0:
            used, pinned = self.used(), self.pinned()
            for entry in entries:
                if entry.name not in used and not (pinned and entry.is_below(pinned)):
                    chosen.append(entry)
                    excess -= entry.size_bytes
                if excess <= 0:
                    break
        self.evict(chosen)

    def limit(self, held: int, free: int) -> int:
        """How many bytes it may hold, if it holds and its disk has free as many as given."""
        return (held + free) // 2 if self._size_bytes is None else self._size_bytes

    def capacity(self) -> int:
        """How many bytes it may hold now. Without a configured size, this looks at each entry."""
        if self._size_bytes is not None:
            return self._size_bytes
        return self.limit(sum(entry.size_bytes for entry in self.entries()), shutil.disk_usage(self.root).free)

    def entries(self) -> Iterator[Entry]:
        """All that is cached."""
        for directory in (self.root / OBJECTS).glob("*/*"):
            yield from entries_of(directory)

    def evict(self, entries: list[Entry]) -> int:
        """Remove those that no process has begun to use; the number of bytes that they had."""
        if not entries:
            return 0
        removed = []
        with locked(self.root / "evicting", fcntl.LOCK_EX) as is_alone:
            used = self.used()
            for entry in entries:
                if is_alone and entry.name not in used:
                    target = self._process.path()
                    with contextlib.suppress(OSError):  # another process was first
                        entry.folder.rename(target)
                        removed.append((target, entry))
        for target, entry in removed:
            shutil.rmtree(target, ignore_errors=True)
            with contextlib.suppress(OSError):  # it has other contents
                entry.folder.parent.rmdir()
        return sum(entry.size_bytes for _, entry in removed)

    def remove(self, url: str) -> None:
        """Remove the contents of an object that no process uses."""
        self.evict(list(entries_of(self._of(url))))

    def used(self) -> set[str]:
        """The names of the entries that processes use that have not ended."""
        used: set[str] = set()
        for process in self.root.glob(f"{PROCESS}*"):
            with contextlib.suppress(OSError):
                if process == self._process.root or _is_locked(process / LOCK):
                    used.update((process / USED).read_text().split())
        return used

    def pinned(self) -> set[str]:
        """The URLs of what stays."""
        pins = set()
        for pin in (self.root / "pins").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pins.add(pin.read_text(encoding="utf-8"))
        return pins - {""}

    def pin(self, url: str) -> None:
        """Let an object, or all objects of a folder, stay."""
        (self.root / "pins" / digest_of(url)).write_text(url, encoding="utf-8")

    def unpin(self, url: str) -> bool:
        """Take a pin back; whether there was one."""
        try:
            (self.root / "pins" / digest_of(url)).unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Let others evict what this process has used."""
        os.close(self._list)
        self._process.remove()

    def _check_size(self, new_bytes: int) -> None:
        """Look through the folder at first, and then whenever a twentieth of what fits has come in."""
        with self._lock:
            self._unchecked_bytes += new_bytes
            if self._unchecked_bytes < self.limit(0, shutil.disk_usage(self.root).free) / 20:
                return
            self._unchecked_bytes = 0
        self.make_room(0)

    def _use(self, name: str) -> None:
        with self._lock:
            if name not in self._used:
                os.write(self._list, f"{name}\n".encode())
                self._used.add(name)

    def _file_in(self, folder: Path) -> Path | None:
        try:
            (path,) = (folder / DATA).iterdir()
            size = _VERSION.fullmatch(folder.name)
            if size is None or path.stat().st_size != int(size[1]):
                return None
            if time.time() - folder.stat().st_mtime > TOUCH_S:
                os.utime(folder)
        except (OSError, ValueError):
            return None
        return path

    def _at(self, url: str, version: ObjectVersion) -> Path:
        return self._of(url) / f"{digest_of(version.etag)[:16]}-{version.size_bytes}"

    def _of(self, url: str) -> Path:
        digest = digest_of(url)
        return self.root / OBJECTS / digest[:2] / digest


def entries_of(directory: Path) -> Iterator[Entry]:
    """The cached contents of the object that has this directory."""
    with contextlib.suppress(OSError):
        for folder in directory.iterdir():
            size = _VERSION.fullmatch(folder.name)
            with contextlib.suppress(OSError):
                if size:
                    yield Entry(folder, int(size[1]), folder.stat().st_mtime)


def _entry_name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _name(url: str) -> str:
    """The last part of a URL as the name of a file, so that its suffix stays."""
    name = url.rstrip("/").rpartition("/")[2]
    return "object" if name in ("", ".", "..") else name[-100:]


def _is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


@contextlib.contextmanager
def locked(path: Path, kind: int, timeout_s: float = 10.0) -> Iterator[bool]:
    """Hold a lock that ends with the process, and say so. False: it was held for too long, or there are no locks."""
    file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(file, kind, time.monotonic() + timeout_s)
    finally:
        os.close(file)


def _lock(file: int, kind: int, end: float) -> bool:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        except OSError:
            return False
        else:
            return True
