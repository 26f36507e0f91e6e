"""The leases that have tasks on this host: a file for each, from before its process starts until after it has ended.

Coordinators and local runs write the files. Agents and schedulers read those of the same user (`lease_folders`). The
files name processes, so all must be in one container or share its process namespace.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.engines.host.cgroups import remove_group
from hetero_airflow.engines.host.lease_folders import lease_folders, usual_folders, write_in_folder
from hetero_airflow.engines.host.processes import (
    LeaseRoot,
    ProcessIdentity,
    lease_processes,
    named_processes,
    process_identity,
)
from hetero_airflow.errors import HeteroError
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.worker import DeviceUser

log = logging.getLogger(__name__)

_PROC = Path("/proc")

_SUPERVISOR_S = 10.0
"""How long a supervisor may take to end a run and to look at its devices itself."""


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
    members: tuple[ProcessIdentity, ...] = ()
    """Processes that the supervisor saw below the task, outside of its group."""
    control: Path | None = None
    """The folder that the task shares with its supervisor: its progress, and the notice that asks it to stop."""
    group: Path | None = None
    """Folder of the control group of the lease, if it has one."""
    devices: tuple[str, ...] = ()
    """Ids of its devices that a process outside of the lease can use unseen: accelerators that are not simulated."""
    claims: tuple[Claim, ...] = ()
    """What the lease takes of this host, for a local run beside it. The cores are those of the host's CPU."""
    local_run: str = ""
    """For the lease of a local run, which no scheduler knows: what runs. Empty for a scheduler's lease."""
    is_unchecked: bool = False
    """The run is over, and a process that is not of the task may use its devices. The agent, or the scheduler on its
    own host, looks at them and then removes the file. The lease counts until then."""
    is_over: bool = False
    """The supervisor has ended all processes of the task that it could end, and may have the end to report."""

    @property
    def is_running(self) -> bool:
        """Whether the supervisor or the task's own process runs."""
        return self.supervisor.is_running or (self.task is not None and self.task.is_running)

    @property
    def is_starting(self) -> bool:
        """Whether a supervisor is about to start the task's process."""
        return self.task is None and self.supervisor.is_running

    @property
    def is_active(self) -> bool:
        """Whether the task runs or is about to, under its supervisor. No search for its processes is necessary."""
        return self.supervisor.is_running and not self.is_over and (self.task is None or self.task.is_running)

    @property
    def needs_check(self) -> bool:
        """Whether the devices must be looked at before others get them, once no process of the lease is left."""
        has_ended = self.task is not None and not self.task.is_running and not self.is_over
        return self.is_unchecked or (bool(self.devices) and has_ended)

    @property
    def root(self) -> LeaseRoot:
        """Where the search for its processes begins."""
        has_supervisor = self.task is not None and not self.is_over and self.supervisor.is_running
        return LeaseRoot(
            leader=None if self.task is None or self.task.is_reused else self.task.pid,
            members=self.members,
            supervisor=self.supervisor.pid if has_supervisor else None,
            since_ticks=0 if self.task is None else self.task.ticks,
            group=self.group,
        )


class LeaseInUse(HeteroError):
    """A run under the same lease goes on; a lease belongs to one run."""


def current_process_namespace() -> str:
    """The current boot of the host, and the current process namespace."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"


class LeaseFileWriter:
    """Keeps the file of a lease whose task this process supervises.

    :param make_group: as in `recorded_lease`
    :raises LeaseInUse: a run under the lease goes on
    :raises HeteroError: no folder takes the file; the text names each one and its problem
    """

    def __init__(self, content: LeaseFile, make_group: Callable[[str], Path | None]) -> None:
        run = recorded_runs([content.lease], list(usual_folders()) or None).get(content.lease)
        if run is not None and run.is_running:
            raise LeaseInUse(
                f"to begin a run under lease {content.lease}",
                found=f"a run under it that process {run.supervisor.pid} supervises",
                remedy="Do nothing: the engine has delivered the task twice, and the first run goes on",
            )
        self._content = content.model_copy(update={"group": make_group(content.lease)})
        self._path = Path()
        self._written: LeaseFile | None = None
        try:
            self._write()
        except HeteroError:
            if self.group is not None:
                remove_group(self.group)
            raise

    @property
    def group(self) -> Path | None:
        """The control group of the run."""
        return self._content.group

    def begin(self, pid: int, control: Path | None = None) -> None:
        """Note that the task's process has started. Until that is written, the lease counts as long as this process.

        :param control: see `LeaseFile`
        """
        self.update(task=process_identity(pid), control=control)

    def update(self, **changes: object) -> None:
        """Note changes; see the fields of `LeaseFile`. Touches the file if there are none, as `keep` does."""
        self._content = self._content.model_copy(update=changes)
        self.keep()

    def keep(self) -> None:
        """Touch the file. Write it again if it is outdated or gone, as after a full disk or a user's last logout."""
        try:
            if self._written != self._content or not _touch(self._path):
                self._write()
        except (OSError, HeteroError) as error:
            log.warning("The file of lease %s does not name its processes; it is tried again: %s", self._lease, error)

    def end(self) -> None:
        """Remove the file, unless a process is left, or the devices are unchecked. A fork of its process keeps it."""
        file = self._content
        if file.supervisor.pid == os.getpid() and not (file.is_unchecked or lease_processes({file.lease: file.root})):
            remove_lease_file(self._path, file)

    @property
    def is_unchecked(self) -> bool:
        """Whether the devices must still be looked at: nobody who did so has removed the file."""
        return self._content.is_unchecked and self._path.exists()

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
def recorded_lease(
    lease_id: str,
    worker_id: str,
    devices: tuple[str, ...] = (),
    make_group: Callable[[str], Path | None] = lambda lease_id: None,
    claims: tuple[Claim, ...] = (),
    local_run: str = "",
) -> Iterator[LeaseFileWriter]:
    """Within the context the lease has a file. Without one its task must not start: it would count as lost.

    :param devices: see `LeaseFile`, as for `claims` and `local_run`
    :param make_group: makes the control group of the run, or returns None
    :raises LeaseInUse: another run under the lease goes on here
    :raises HeteroError: the file can't be written
    """
    supervisor = process_identity(os.getpid())
    assert supervisor is not None, "this process runs"
    content = LeaseFile(
        lease=lease_id,
        worker=worker_id,
        place=current_process_namespace(),
        supervisor=supervisor,
        devices=devices,
        claims=claims,
        local_run=local_run,
    )
    writer = LeaseFileWriter(content, make_group)
    try:
        yield writer
    finally:
        with suppress(OSError):
            writer.end()


def read_lease_files(user: int | None = None, folders: Iterable[Path] | None = None) -> dict[Path, LeaseFile]:
    """The current files of a user, of this process's user by default. A file that can't be read is logged and skipped.

    A lease has two files for the moment in which its file moves to another folder. Of no `folders`, all are read.
    """
    files = {}
    for path in [path for folder in folders or lease_folders(user) for path in sorted(folder.glob("[!.]*.json"))]:
        try:
            files[path] = LeaseFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            log.warning("The lease file %s can't be read: %s", path, type(error).__name__)
    return files


@dataclass(frozen=True, slots=True)
class CurrentLeases:
    """The runs on this host, and which uses of devices are theirs."""

    pids: frozenset[int]
    """Their supervisors, and the processes that belong to them for certain."""
    named: Mapping[int, frozenset[str]]
    """Pid → devices of the run that its environment names, whose supervisor is gone."""
    devices: frozenset[str]
    """The devices of these runs."""

    def include(self, user: DeviceUser) -> bool:
        """Whether a process that uses a device belongs to a run.

        Anybody can copy an environment. So a process that only names a run belongs to it if no supervisor is left that
        would have adopted it, and if it uses a device of that run. A process that this container does not see belongs
        to a run if its device does.
        """
        return (
            user.pid in self.pids
            or user.device_id in self.named.get(user.pid, ())
            or (not user.name and user.device_id in self.devices)
        )


def current_leases(user: int | None = None, is_known: Callable[[LeaseFile], bool] = lambda _: True) -> CurrentLeases:
    """The runs of a user on this host.

    :param user: as in `read_lease_files`
    :param is_known: whether the lease of a file counts; that of another Airflow, or a made-up one, does not
    """
    place = current_process_namespace()
    files = [file for file in read_lease_files(user).values() if file.place == place and not file.is_over]
    files = [file for file in files if is_known(file)]
    orphaned = {file.lease: frozenset(file.devices) for file in files if not file.supervisor.is_running}
    roots = {file.lease: file.root for file in files}
    certain, named = named_processes(roots, orphaned) if files else ({}, {})
    used = {*certain.values(), *named.values()}
    running = [file for file in files if file.lease in used or file.is_active]
    return CurrentLeases(
        pids=frozenset(certain) | {file.supervisor.pid for file in running if file.supervisor.is_running},
        named={pid: orphaned[id_] for pid, id_ in named.items()},
        devices=frozenset(device for file in running for device in file.devices),
    )


def remove_lease_file(path: Path, content: LeaseFile) -> None:
    """Remove the file of a lease that has no processes any more, and its control group.

    :raises OSError: the file can't be removed
    """
    path.unlink(missing_ok=True)
    if content.group is not None:
        remove_group(content.group)


def recorded_runs(lease_ids: Collection[str], folders: Iterable[Path] | None = None) -> dict[str, LeaseFile]:
    """Lease id → the run that began under it on this host. Left out: no file, or its pids are not valid here.

    :param folders: where to look; None for all folders
    """
    runs: dict[str, LeaseFile] = {}
    missing = set(lease_ids)
    for folder in (folders or lease_folders()) if missing else ():
        for id_ in missing:
            with suppress(OSError, ValidationError):
                content = LeaseFile.model_validate_json((folder / _file_name(id_)).read_bytes())
                if content.place == current_process_namespace():
                    runs[id_] = content
        missing -= runs.keys()
    return runs


def recorded_run(lease_id: str) -> LeaseFile | None:
    """The run that began under a lease on this host, as in `recorded_runs`."""
    return recorded_runs([lease_id]).get(lease_id)


def _file_name(lease_id: str) -> str:
    return f"{quote(lease_id, safe='')}.json"


class UncheckedLeases:
    """The leases whose runs are over, and whose devices must be looked at before others get them.

    It remembers since when each of them is known here.

    :param clock: as that of the discovery which looks at the devices; seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Path, LeaseFile]] = {}

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the leases."""
        return frozenset(self._known)

    @property
    def is_look_due(self) -> bool:
        """Whether a look at the devices is necessary: their supervisor has none, is gone, or takes long to look."""
        return any(
            file.is_unchecked or not file.supervisor.is_running or self._clock() - known_at >= _SUPERVISOR_S
            for known_at, _, file in self._known.values()
        )

    def update(self, files: Mapping[Path, LeaseFile], used: Container[str]) -> None:
        """Take over the current lease files.

        :param used: leases that still have processes
        """
        now, first_seen = self._clock(), self._known
        self._known = {
            file.lease: (first_seen[file.lease][0] if file.lease in first_seen else now, path, file)
            for path, file in files.items()
            if file.needs_check and file.lease not in used
        }

    def note_checked(self, since: float) -> None:
        """Forget the leases whose devices were looked at, and remove their files: nothing of them is left.

        :param since: when the look began whose result is recorded
        """
        for lease_id, (known_at, path, file) in list(self._known.items()):
            if known_at <= since:
                log.info("Lease %s is over: its processes are gone, and its devices were looked at.", lease_id)
                try:
                    remove_lease_file(path, file)
                except OSError as error:
                    log.warning("The lease file %s can't be removed: %s", path, error)
                    continue
                del self._known[lease_id]
