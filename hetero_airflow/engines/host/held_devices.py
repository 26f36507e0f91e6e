"""What the leases on this host hold: so a local run and the tasks of a scheduler respect each other's devices.

A scheduler does not know local runs, and a local run has no database. Both have lease files. A local run takes nothing
that a lease file names (`held_devices`). A scheduler's host and an agent report a device that a local run holds as not
leasable (`LocalRunDevices`). A task that was placed on it a moment before does not start (`check_no_local_run`); it is
placed again and uses no retry. Both sides write their file first and then read the others', so one of them sees both.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hetero_airflow.engines.host.lease_files import (
    LeaseFile,
    current_process_namespace,
    read_lease_files,
    remove_lease_file,
)
from hetero_airflow.engines.host.lease_folders import usual_folders
from hetero_airflow.engines.host.processes import lease_processes
from hetero_airflow.errors import HeteroError
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import MILLI_PER_DEVICE

_SETTLE_S = 1.0
"""For how long a local run may have a file before it finds that a task was faster, and takes other devices."""

_POLL_S = 0.1


class HeldByLocalRun(HeteroError):
    """A task was placed on a device that a local run has taken meanwhile."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What leases hold, together."""

    usage: Mapping[str, DeviceUsage] = field(default_factory=dict)
    """Device id → used amount; without the cores of CPUs."""
    cores: frozenset[int] = frozenset()
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Device id → who holds it, for people."""

    def has_room_for(self, claims: Iterable[Claim]) -> bool:
        """Whether nothing is held twice if these claims are held too."""
        return not any(
            self.cores.intersection(claim.cores)
            or (not claim.cores and self.share_milli(claim.device_id) + claim.share_milli > MILLI_PER_DEVICE)
            for claim in claims
        )

    def share_milli(self, device_id: str) -> int:
        """The used thousandths of a device."""
        return self.usage[device_id].share_milli if device_id in self.usage else 0


def live_lease_files(user: int | None = None) -> list[LeaseFile]:
    """The files of the leases on this host that have processes, or are about to."""
    return _live(read_lease_files(user).values())


def _live(files: Iterable[LeaseFile]) -> list[LeaseFile]:
    place = current_process_namespace()
    files = [file for file in files if file.place == place]
    idle = {file.lease: file.root for file in files if not file.is_active}
    used = lease_processes(idle) if idle else {}
    return [file for file in files if file.is_active or file.lease in used or file.is_unchecked]


def held_devices(files: Iterable[LeaseFile]) -> HeldDevices:
    """What these leases hold. Pure."""
    shares: defaultdict[str, int] = defaultdict(int)
    memory: defaultdict[str, int] = defaultdict(int)
    holders: defaultdict[str, list[str]] = defaultdict(list)
    cores: set[int] = set()
    for holder, claim in [(_holder(file), claim) for file in files for claim in file.claims]:
        cores.update(claim.cores)
        memory[claim.device_id] += claim.memory_bytes
        shares[claim.device_id] += 0 if claim.cores else claim.share_milli
        holders[claim.device_id].append(holder)
    usage = {device_id: DeviceUsage(shares[device_id], memory[device_id]) for device_id in holders}
    return HeldDevices(usage, frozenset(cores), {device_id: tuple(texts) for device_id, texts in holders.items()})


def remove_ended_local_runs() -> None:
    """Remove the lease files of local runs that were killed and have no processes left."""
    place = current_process_namespace()
    files = {path: file for path, file in read_lease_files().items() if file.local_run and file.place == place}
    files = {path: file for path, file in files.items() if not file.supervisor.is_running}
    used = lease_processes({file.lease: file.root for file in files.values()}) if files else {}
    for path, file in files.items():
        if file.lease not in used:
            with suppress(OSError):
                remove_lease_file(path, file)


def check_no_local_run(lease_id: str, claims: tuple[Claim, ...]) -> None:
    """See that no local run holds the accelerators of a task that is about to start. Blocks for a second at most.

    Cores are not checked: a local run takes the last free ones, and a task that needs these too shares them.

    :raises HeldByLocalRun: one does
    """
    accelerators = [claim for claim in claims if claim.share_milli and not claim.cores]
    until = time.monotonic() + _SETTLE_S
    while True:
        files = read_lease_files(folders=[*usual_folders()]).values()  # the other names take long to find
        held = held_devices(_live(_local_runs(files)))
        if held.has_room_for(accelerators):
            return
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    holders = sorted({holder for claim in accelerators for holder in held.holders.get(claim.device_id, ())})
    raise HeldByLocalRun(
        f"the devices of lease {lease_id}",
        found=", ".join(holders),
        remedy="The task is placed again. End the local run if the task must not wait for it",
    )


class LocalRunDevices:
    """The accelerators that local runs hold, as at the last look.

    :param user: number of the user that runs the worker's tasks; None: the user of this process
    """

    def __init__(self, user: int | None = None) -> None:
        self._user = user
        self._held: Mapping[str, tuple[str, ...]] = {}

    def look(self) -> bool:
        """Read the lease files. Returns whether anything changed."""
        files = [file for file in read_lease_files(self._user).values() if file.local_run]
        held = held_devices(_local_runs(live_lease_files(self._user))).holders if files else {}
        before, self._held = self._held, held
        return held != before

    def without_held(self, worker: Worker) -> Worker:
        """The worker with these devices made not leasable, each with its cause. CPUs stay leasable."""
        if not self._held:
            return worker
        devices = tuple(
            device.model_copy(update={"leasable": False, "problem": f"Used by {', '.join(holders)}"[:500]})
            if device.kind != "cpu" and (holders := self._held.get(device.id))
            else device
            for device in worker.devices
        )
        return worker.model_copy(update={"devices": devices})


def _local_runs(files: Iterable[LeaseFile]) -> list[LeaseFile]:
    return [file for file in files if file.local_run]


def _holder(file: LeaseFile) -> str:
    pid = file.supervisor.pid
    return f"the local run of {file.local_run} (process {pid})" if file.local_run else f"a task (process {pid})"
