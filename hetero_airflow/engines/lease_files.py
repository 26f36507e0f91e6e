"""The leases that have tasks on this host: a file for each, from before its process starts until after it has ended.

The coordinator writes the files. The worker's agent reads them, and on a scheduler's host the scheduler does, from the
folders of the same user (`lease_folders`). The files name processes, so both must be in one container or share its
process namespace.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.engines.lease_folders import lease_folders, write_in_folder
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
    def is_running(self) -> bool:
        """Whether the supervisor or the task's own process runs."""
        return self.supervisor.is_running or (self.task is not None and self.task.is_running)

    @property
    def is_starting(self) -> bool:
        """Whether a supervisor is about to start the task's process."""
        return self.task is None and self.supervisor.is_running


class LeaseInUse(HeteroError):
    """A run under the same lease goes on; a lease belongs to one run."""


def process_identity(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None if there is none."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessIdentity(pid=pid, ticks=ticks)


def current_process_namespace() -> str:
    """The current boot of the host, and the current process namespace."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"


class LeaseFileWriter:
    """Keeps the file of a lease whose task this process supervises.

    :raises LeaseInUse: a run under the lease goes on
    :raises HeteroError: no folder takes the file; the text names each one and its problem
    """

    def __init__(self, content: LeaseFile) -> None:
        run = recorded_run(content.lease)
        if run is not None and run.is_running:
            raise LeaseInUse(
                f"to begin a run under lease {content.lease}",
                found=f"a run under it that process {run.supervisor.pid} supervises",
                remedy="Nothing: the engine has delivered the task twice, and the first run goes on",
            )
        self._content, self._path = content, Path()
        self._written: LeaseFile | None = None
        self._write()

    def begin(self, pid: int) -> None:
        """Note that the task's process has started. Until that is written, the lease counts as long as this process."""
        self._content = self._content.model_copy(update={"task": process_identity(pid)})
        self.keep()

    def keep(self) -> None:
        """Touch the file. Write it again if it is outdated or gone, as after a full disk or a user's last logout."""
        try:
            if self._written != self._content or not _touch(self._path):
                self._write()
        except (OSError, HeteroError) as error:
            log.warning("The file of lease %s does not name its process; it is tried again: %s", self._lease, error)

    def end(self) -> None:
        """Remove the file, unless a process of the task's group is still there that could not be ended."""
        task = self._content.task
        group = None if task is None or task.is_reused or not _has_members(task.pid) else task.pid
        if group is None or not lease_processes({self._lease: (group, None)}):
            self._path.unlink(missing_ok=True)

    @property
    def _lease(self) -> str:
        return self._content.lease

    def _write(self) -> None:
        name, before = _file_name(self._lease), self._path
        self._path = write_in_folder(lambda folder: _write_file(folder / name, self._content))
        self._written = self._content
        if before not in (Path(), self._path):
            before.unlink(missing_ok=True)


def _touch(path: Path) -> bool:
    """Set the time of a file to now, for those who remove old files. Returns whether the file is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _write_file(path: Path, content: LeaseFile) -> Path:
    """Write or replace a file. Nothing is left of it if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(content.model_dump_json())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return path


@contextmanager
def recorded_lease(lease_id: str, worker_id: str) -> Iterator[LeaseFileWriter]:
    """Within the context the lease has a file. Without one its task must not start: it would count as lost.

    :raises LeaseInUse: another run under the lease goes on here
    :raises HeteroError: the file can't be written
    """
    supervisor = process_identity(os.getpid())
    assert supervisor is not None, "this process runs"
    writer = LeaseFileWriter(
        LeaseFile(lease=lease_id, worker=worker_id, place=current_process_namespace(), supervisor=supervisor)
    )
    try:
        yield writer
    finally:
        with suppress(OSError):
            writer.end()


def read_lease_files(user: int | None = None) -> dict[Path, LeaseFile]:
    """The current files of a user, of this process's user by default. A file that can't be read is logged and skipped.

    A lease has two files for the moment in which its file moves to another folder.
    """
    files = {}
    for path in [path for folder in lease_folders(user) for path in sorted(folder.glob("[!.]*.json"))]:
        try:
            files[path] = LeaseFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            log.warning("The lease file %s can't be read: %s", path, type(error).__name__)
    return files


def recorded_run(lease_id: str) -> LeaseFile | None:
    """The run that began under a lease on this host; None if its file is missing or its pids are not valid here."""
    for folder in lease_folders():
        try:
            content = LeaseFile.model_validate_json((folder / _file_name(lease_id)).read_bytes())
        except (OSError, ValidationError):
            continue
        if content.place == current_process_namespace():
            return content
    return None


def _file_name(lease_id: str) -> str:
    return f"{quote(lease_id, safe='')}.json"


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
