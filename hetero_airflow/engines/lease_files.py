"""The leases that have tasks on this host: a file for each, from before its process starts until after it has ended.

The coordinator writes the files. The worker's agent reads them, and on a scheduler's host the scheduler does, as the
same user and with the same folder for temporary files. The files name processes, so both must be in one container or
share its process namespace.
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
    """A process. A later one with the same pid is not equal."""

    model_config = ConfigDict(frozen=True)

    pid: int
    ticks: int
    """Start time in the kernel's clock ticks since boot. Changes of the time of day do not affect it."""

    @property
    def is_running(self) -> bool:
        """Whether this process still runs. A zombie does not."""
        return _start_ticks(self.pid) == self.ticks

    @property
    def is_reused(self) -> bool:
        """Whether another process has the pid now."""
        return _start_ticks(self.pid) not in (self.ticks, None)


class LeaseFile(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(frozen=True)

    lease: str
    worker: str
    place: str
    """The boot of the host and the process namespace in which the pids are valid."""
    supervisor: ProcessIdentity
    task: ProcessIdentity | None = None
    """Leader of the task's process group; None until the process has started."""

    @property
    def is_starting(self) -> bool:
        """Whether a supervisor is about to start the task's process."""
        return self.task is None and self.supervisor.is_running


def process_identity(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None if there is none."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessIdentity(pid=pid, ticks=ticks)


def current_process_namespace() -> str:
    """The current boot of the host, and the current process namespace."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"


def lease_folder() -> Path:
    """This user's folder of lease files. Creates it if it is missing.

    :raises HeteroError: it belongs to another user, or others may write to it
    :raises OSError: it can't be created
    """
    folder = Path(tempfile.gettempdir(), f"hetero-airflow-leases-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise HeteroError(
            f"the folder {folder} for this user's lease files",
            found=f"owner {status.st_uid} and mode {stat.S_IMODE(status.st_mode):03o}",
            remedy="Remove it; it is created again for this user alone",
        )
    return folder


class LeaseFileWriter:
    """Writes the file of a lease whose task this process supervises."""

    def __init__(self, path: Path, content: LeaseFile) -> None:
        self._path, self._content = path, content
        self._write()

    def begin(self, pid: int) -> None:
        """Note that the task's process has started. If the write fails, the lease counts until this process ends."""
        self._content = self._content.model_copy(update={"task": process_identity(pid)})
        try:
            self._write()
        except OSError as error:
            log.warning("The file of lease %s does not name its process: %s", self._content.lease, error)

    def end(self) -> None:
        """Remove the file, unless a process of the task's group is still there that could not be ended."""
        task = self._content.task
        group = None if task is None or task.is_reused or not _has_members(task.pid) else task.pid
        if group is None or not lease_processes({self._content.lease: (group, None)}):
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(self._content.model_dump_json())
        temporary.replace(self._path)


@contextmanager
def recorded_lease(lease_id: str, worker_id: str) -> Iterator[LeaseFileWriter | None]:
    """Within the context the lease has a file. Yields None if it can't be written; the task runs anyway."""
    try:
        supervisor = process_identity(os.getpid())
        assert supervisor is not None, "this process runs"
        content = LeaseFile(lease=lease_id, worker=worker_id, place=current_process_namespace(), supervisor=supervisor)
        note = LeaseFileWriter(_file_of(lease_id), content)
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
    """The current files. A file that can't be read is logged and skipped."""
    files = {}
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            files[path] = LeaseFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            log.warning("The lease file %s can't be read: %s", path, type(error).__name__)
    return files


def recorded_run(lease_id: str) -> LeaseFile | None:
    """The run that began under a lease on this host; None if its file is missing or its pids are not valid here."""
    try:
        content = LeaseFile.model_validate_json(_file_of(lease_id).read_bytes())
    except (OSError, HeteroError, ValidationError):
        return None
    return content if content.place == current_process_namespace() else None


def _file_of(lease_id: str) -> Path:
    return lease_folder() / f"{quote(lease_id, safe='')}.json"


def _has_members(group: int) -> bool:
    """Whether a process group exists, even if it has only ended processes that nobody has waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks; None if it is gone or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
