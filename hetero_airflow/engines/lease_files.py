"""Which leases have tasks on this host: a file for each, from before its process begins until after it has ended.

The coordinator writes them, the worker's agent reads them, as the same user and with the same folder for temporary
files. They name processes, so both have to be in one container, or to share its process namespace.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.engines.processes import lease_processes
from hetero_airflow.errors import HeteroError

log = logging.getLogger(__name__)

_PROC = Path("/proc")


class ProcessIdentity(BaseModel):
    """A process, told from a later one of the same pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    ticks: int
    """When it started, in the kernel's clock ticks since the host did: no change of the time of day moves that."""

    @property
    def runs(self) -> bool:
        """Whether that very process is there; a zombie is not."""
        return _start_ticks(self.pid) == self.ticks

    @property
    def is_reused(self) -> bool:
        """Whether another process has the pid now."""
        return _start_ticks(self.pid) not in (self.ticks, None)


class LeaseFile(BaseModel):
    """What one file says."""

    model_config = ConfigDict(frozen=True)

    lease: str
    worker: str
    place: str
    """The start of the host and the process namespace in which the pids mean something."""
    supervisor: ProcessIdentity
    task: ProcessIdentity | None = None
    """None until the process has begun. It leads the task's process group."""


def mark(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None if there is none."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessIdentity(pid=pid, ticks=ticks)


def current_process_namespace() -> str:
    """This start of the host, and this process namespace."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"


def lease_folder() -> Path:
    """This user's folder of lease files, made if it is not there.

    :raises HeteroError: it is another user's, or others may write to it
    :raises OSError: it can't be made
    """
    folder = Path(tempfile.gettempdir(), f"hetero-airflow-leases-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HeteroError(
            f"the folder {folder} for this user's lease files",
            found=f"one of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):03o}",
            remedy="Remove it; it is made anew, for this user alone",
        )
    return folder


class LeaseFileWriter:
    """The file of a lease whose task is run by this process."""

    def __init__(self, path: Path, content: LeaseFile) -> None:
        self._path, self._content = path, content
        self._write()

    def begin(self, pid: int) -> None:
        """The task's process has begun. Where that can't be written, the lease counts until this process has ended."""
        self._content = self._content.model_copy(update={"task": mark(pid)})
        try:
            self._write()
        except OSError as error:
            log.warning("The file of lease %s does not name its process: %s", self._content.lease, error)

    def end(self) -> None:
        """Remove the file, unless a process of the task's group is still there that nothing could end."""
        task = self._content.task
        group = None if task is None or task.is_reused or not _has_members(task.pid) else task.pid
        if group is None or not lease_processes({self._content.lease: (group, None)}):
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        half = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(self._content.model_dump_json())
        half.replace(self._path)


@contextmanager
def recorded_lease(lease_id: str, worker_id: str) -> Iterator[LeaseFileWriter | None]:
    """Within: the lease has a file. None where none can be written, which is logged: the task runs all the same."""
    try:
        supervisor = mark(os.getpid())
        assert supervisor is not None, "this process runs"
        content = LeaseFile(lease=lease_id, worker=worker_id, place=current_process_namespace(), supervisor=supervisor)
        note = LeaseFileWriter(lease_folder() / f"{quote(lease_id, safe='')}.json", content)
    except (OSError, HeteroError) as error:
        log.warning("The worker's agent will not see the process of lease %s: %s", lease_id, error)
        yield None
        return
    try:
        yield note
    finally:
        with suppress(OSError):
            note.end()


def read_lease_files(folder: Path) -> dict[Path, LeaseFile]:
    """The files that are there now. One that can't be read is logged and passed over."""
    found = {}
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            found[path] = LeaseFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            log.warning("The lease file %s can't be read: %s", path, type(error).__name__)
    return found


def _has_members(group: int) -> bool:
    """Whether a process group is there, be it of processes that have ended and that nobody has waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_ticks(pid: int) -> int | None:
    """When a process started; None if it is not there, or has ended and only waits to be forgotten."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
