"""The folders of lease files on this host. Each user has one, and all of the user's processes must find it.

A process may see another environment than the agent, and a runtime directory comes and goes with the user's logins. So
readers look into all places, and a writer takes a folder that exists before it makes one. Two of the places are open to
all users of the host. Another user who takes the name first can't stop the agent: the folder then gets another name.
"""

import errno
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from hetero_airflow.errors import HeteroError

log = logging.getLogger(__name__)

T = TypeVar("T")

_NAME = "hetero-airflow-leases"

_MEMORY = Path("/dev/shm")  # noqa: S108  checked like the others
"""A place that is there when the disk is full."""


def lease_folders(user: int | None = None) -> Iterator[Path]:
    """The folders of lease files that exist and belong to one user alone, the one for new files first.

    Those with the usual name come first. To find the others, all names in three places are read, and a folder for
    temporary files may have thousands: stop as soon as you have what you need.

    :param user: the user's number; None for the user of this process
    """
    yield from usual_folders(user)
    number = _number(user)
    for place in _places(number):
        with suppress(OSError):
            names = sorted(name for name in os.listdir(place) if name.startswith(f"{_NAME}-{number}-"))
            yield from [place / name for name in names if not _refusal_of(place / name, number)]


def usual_folders(user: int | None = None) -> Iterator[Path]:
    """Those of `lease_folders` that have the usual name. If there are any, no writer makes one with another name."""
    number = _number(user)
    for place in _places(number):
        with suppress(OSError):
            if not _refusal_of(folder := place / f"{_NAME}-{number}", number):
                yield folder


def _number(user: int | None) -> int:
    return os.getuid() if user is None else user


def _places(user: int) -> tuple[Path, ...]:
    return _temporary_folder(), _runtime_folder(user), _MEMORY  # earlier versions knew only the first one


def write_in_folder(write: Callable[[Path], T]) -> T:
    """Write into a folder of lease files: into one that exists, else into a new one, and where it succeeds first.

    :param write: gets the folder, writes into it, and raises `OSError` if it can't, as on a full disk
    :raises HeteroError: there is no folder into which it could write; the text names each place and its problem
    """
    problems = []
    for path, make in _folders_to_write():
        try:
            return write(make(path))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
    raise HeteroError(
        "a file in the folder of this user's leases",
        found="; ".join(problems),
        remedy=f"Free disk space in {_temporary_folder()}, or let this user write there",
    )


def _folders_to_write() -> Iterator[tuple[Path, Callable[[Path], Path]]]:
    """The folders that exist, then the places where none exists; with the function that makes the folder."""
    places = set()
    for folder in lease_folders():
        places.add(folder.parent)
        yield folder, Path
    for place in (_runtime_folder(os.getuid()), _temporary_folder(), _MEMORY):
        if place not in places:
            yield place, _make_folder


@contextmanager
def local_runs_locked() -> Iterator[None]:
    """Within the context no other local run of this user decides which devices it takes. Blocks until that is so.

    The kernel frees the lock of a process that dies. Tasks of a scheduler never wait for it: see `LeaseFileWriter`.

    :raises HeteroError: there is no folder for lease files, and none can be made
    """
    folders = [*lease_folders()] or [write_in_folder(lambda folder: folder)]
    with ExitStack() as stack:
        for folder in sorted(folders):
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, number)
            fcntl.flock(number, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, number, fcntl.LOCK_UN)  # a child may have a copy of the descriptor
        yield


def _make_folder(place: Path) -> Path:
    """A new folder for this user alone; under another name if the usual one is taken.

    :raises OSError: it can't be made
    """
    path = place / f"{_NAME}-{os.getuid()}"
    if place == _runtime_folder(os.getuid()) and (refusal := _refusal_of(place, os.getuid())):
        raise PermissionError(errno.EACCES, refusal)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return path
    refusal = _refusal_of(path, os.getuid())
    if not refusal:  # another process was faster
        return path
    folder = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=place))
    _warn_of_taken_name(path, refusal, folder)
    return folder


def _refusal_of(path: Path, user: int) -> str:
    """What makes a path unfit for the lease files of a user; empty if it is a folder of that user alone.

    :raises OSError: it can't be looked at
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "nothing"
    if stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077:
        return ""
    kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no folder"
    return f"{kind} with owner {status.st_uid} and mode {stat.S_IMODE(status.st_mode):03o}"


@cache
def _warn_of_taken_name(path: Path, conflict: str, folder: Path) -> None:
    log.warning(
        "The folder %s for this user's lease files can't be used; found %s. %s is used instead. Remove the first one.",
        path,
        conflict,
        folder,
    )


def _runtime_folder(user: int) -> Path:
    """The runtime directory of a user ("XDG Base Directory Specification", 0.8); it need not exist."""
    configured = os.environ.get("XDG_RUNTIME_DIR") if user == os.getuid() else None
    return Path(configured or f"/run/user/{user}")


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir())
