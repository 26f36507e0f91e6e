"""Checkpoints in a folder, local or shared (NFS, Lustre). Every write is all or nothing.

No access leaves the root: each part of a key is opened from its parent's descriptor, and no link is followed. So a link
below the root never leads outside, even if it is put there during the access. The root itself may be a link.

Rejected: ``link()`` as compare-and-swap, since FUSE and SMB mounts often have no hard links; a lock on the folder
itself, since NFS refuses it.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from hetero_airflow.checkpoints.checkpoint_store import StoredObject, check_size, existing_file, missing_object
from hetero_airflow.checkpoints.keys import OWN_SUFFIX, check_key
from hetero_airflow.checkpoints.opening import check_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, shorten

LOCK_TIMEOUT_S = 30.0
"""A lock is held for milliseconds, unless its process is stopped (SIGSTOP) or its disk hangs."""

LOCK = f"lock{OWN_SUFFIX}"
NEXT = f"next{OWN_SUFFIX}"

CHUNK_BYTES = 1 << 20
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_PLAIN_OBJECT = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


def open_filesystem(place: CheckpointPlace) -> "FilesystemStore":
    """The store of a place whose URL is ``file:///folder``. The first write creates the folder.

    :raises SettingsError: a URL that names a host, no folder, or the root of the file system
    """
    return FilesystemStore(Path(check_url(place.url).path))


class FilesystemStore:
    """A `CheckpointStore` below one folder, for any number of processes on any number of hosts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FilesystemStore(Path(folder))
    ...     version = store.replace("a/index.json", b"1", None)
    ...     store.replace("a/index.json", b"2", None) is None, store.read("a/index.json", at_most=10).content
    (True, b'1')
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """See `CheckpointStore.read`."""
        with (
            _translated_errors("read", key),
            contextlib.suppress(FileNotFoundError),
            self._folder(key) as (folder, name),
        ):
            with _open(folder, name) as file:
                content = file.read(at_most + 1)
            check_size(key, len(content), at_most)
            return StoredObject(content, hashlib.sha256(content).hexdigest())
        return None

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """See `CheckpointStore.replace`; waits at most 30 s for the lock."""
        with _translated_errors("write", key), self._folder(key, create=True) as (folder, name), _locked(folder, key):
            if _version(folder, name) != version:
                return None
            with _written(folder, name, NEXT, os.O_TRUNC) as file:
                file.write(content)
            return hashlib.sha256(content).hexdigest()

    def put(self, key: str, source: Path) -> None:
        """See `CheckpointStore.put`."""
        with (
            source.open("rb") as origin,
            _translated_errors("write", key),
            self._folder(key, create=True) as (folder, name),
            _written(folder, name, secrets.token_hex(8) + OWN_SUFFIX, os.O_EXCL) as file,
        ):
            shutil.copyfileobj(origin, file, CHUNK_BYTES)

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """See `CheckpointStore.fetch`."""
        with _translated_errors("fetch", key), self._folder(key) as (folder, name), _open(folder, name) as file:
            check_size(key, os.fstat(file.fileno()).st_size, at_most)
            with target.open("xb") as copy:
                try:
                    shutil.copyfileobj(file, copy, CHUNK_BYTES)
                except BaseException:
                    target.unlink()
                    raise

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """See `CheckpointStore.sweep`. Links are left alone."""
        any_key = f"{prefix}/x"
        with (
            _translated_errors("sweep", prefix),
            contextlib.suppress(FileNotFoundError),
            self._folder(any_key) as (folder, _),
        ):
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                    if is_garbage(name, time.time() - _last_written(folder, name)):
                        shutil.rmtree(name, dir_fd=folder)
                        yield name

    @contextlib.contextmanager
    def _folder(self, key: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Descriptor of a key's folder, and the name in it."""
        *parts, name = check_key(key).split("/")
        if create:
            self.root.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                parent, folder = folder, _open_folder(folder, part, create=create)
                os.close(parent)
            yield folder, name
        finally:
            os.close(folder)


def _open_folder(parent: int, name: str, *, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        _sync_folder(parent)
    return os.open(name, flags, dir_fd=parent)


def _open(folder: int, name: str) -> BufferedReader:
    """A plain file for reading. A pipe in its place does not block."""
    file = open(  # noqa: SIM115  the caller closes it
        os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb"
    )
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EISDIR, "no plain file")


@contextlib.contextmanager
def _written(folder: int, name: str, draft: str, flag: int) -> Iterator[IO[bytes]]:
    """A new file that gets its name when it is whole and on the disk; on an error it is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flag
    try:
        with os.fdopen(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    _sync_folder(folder)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:  # as PostgreSQL's fsync_fname: some file systems can't sync a folder
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise


def _version(folder: int, name: str) -> str | None:
    try:
        with _open(folder, name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _locked(folder: int, key: str) -> Iterator[None]:
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointStoreUnavailable(
                        f"to write {shorten(key)}",
                        found=f"another process that holds its lock for {LOCK_TIMEOUT_S:.0f} s",
                        remedy="Look for a stopped or hanging process: lsof shows which one has lock~ open",
                    ) from None
                time.sleep(0.01)
        yield
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a fork has the descriptor too
    finally:
        os.close(lock)


def _last_written(folder: int, name: str) -> float:
    """POSIX time of the last write; for an empty folder, of its creation."""
    times = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime]
    for _, _, files, descriptor in os.fwalk(name, dir_fd=folder):
        times += [os.stat(file, dir_fd=descriptor, follow_symlinks=False).st_mtime for file in files]
    return max(times)


@contextlib.contextmanager
def _translated_errors(action: str, key: str) -> Iterator[None]:
    """Turns the system's errors into ours."""
    asked = f"to {action} {shorten(key)}"
    try:
        yield
    except FileNotFoundError as error:
        raise missing_object(asked) from error
    except FileExistsError as error:
        raise existing_file(asked) from error
    except OSError as error:
        if error.errno in NO_PLAIN_OBJECT:
            raise InvalidCheckpoint(
                asked,
                found="a link, or something that is no plain file or folder, in its path",
                remedy="Remove what another program put there",
            ) from error
        raise CheckpointStoreUnavailable(
            asked,
            found=os.strerror(error.errno) if error.errno else type(error).__name__,
            remedy=(
                "Free space there, keep fewer checkpoints, or set checkpoint_url to a larger disk"
                if error.errno in FULL
                else "See that the folder is mounted, and that the task's user may write there"
            ),
        ) from error
