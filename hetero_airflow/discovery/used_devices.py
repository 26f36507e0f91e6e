"""Takes devices out of scheduling that processes outside of all leases use."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import DeviceUser, Worker
from hetero_airflow.settings import SECTION

log = logging.getLogger(__name__)

ANY_PROCESS = frozenset({"*"})
"""Names that allow all processes."""


_MAX_NAME = 15
"""The kernel keeps so many bytes of a process's name."""


def parse_processes(text: str) -> frozenset[str]:
    """The names of processes in [hetero] allowed_device_processes.

    >>> sorted(parse_processes("Xorg, nvtop"))
    ['Xorg', 'nvtop']

    :raises SettingsError: a name is longer than the kernel keeps, so it matches no process
    """
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    too_long = sorted(name for name in names if len(name.encode()) > _MAX_NAME)
    if too_long:
        raise SettingsError(
            f"[{SECTION}] allowed_device_processes = {shorten(text)}",
            found=f"{shorten(too_long[0])}, of which Linux keeps {_MAX_NAME} bytes",
            remedy="Write it as in /proc/PID/comm",
        )
    return names


class UsedDevices:
    """The devices of this host that foreign processes use, as at the last look.

    :param allowed: names of processes that may use devices; ``*`` allows all
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = allowed
        self._foreign: dict[str, list[DeviceUser]] = {}

    @property
    def has_changed(self) -> bool:
        """Whether one of the foreign processes has ended since."""
        return any(user.name and not _is_there(user) for users in self._foreign.values() for user in users)

    def take(self, users: Iterable[DeviceUser], is_leased: Callable[[DeviceUser], bool]) -> None:
        """Take over a new look; see `foreign_users`."""
        present = [user for user in users if not user.name or _is_there(user)]
        before, self._foreign = self._foreign, foreign_users(present, is_leased, self._allowed)
        for device_id in sorted(self._foreign.keys() - before.keys()):
            log.warning("Device %s gets no task: %s", device_id, _problem(self._foreign[device_id]))
        for device_id in sorted(before.keys() - self._foreign.keys()):
            log.info("No process outside of all leases uses device %s any more.", device_id)

    def without_used(self, worker: Worker) -> Worker:
        """The worker with these devices made not leasable, each with its cause."""
        return without_used(worker, self._foreign)


def foreign_users(
    users: Iterable[DeviceUser], is_leased: Callable[[DeviceUser], bool], allowed: Collection[str]
) -> dict[str, list[DeviceUser]]:
    """Device id → the processes outside of all leases that use it and are not allowed to. Pure.

    :param is_leased: whether the user belongs to a live lease
    :param allowed: names of processes; ``*`` allows all
    """
    foreign: dict[str, list[DeviceUser]] = {}
    for user in users:
        if "*" not in allowed and user.name not in allowed and not is_leased(user):
            foreign.setdefault(user.device_id, []).append(user)
    return foreign


def without_used(worker: Worker, foreign: Mapping[str, list[DeviceUser]]) -> Worker:
    """The worker with the devices that foreign processes use made not leasable, each with its cause. Pure."""

    def marked(device: Device) -> Device:
        users = [*foreign.get(device.id, ()), *foreign.get(device.parent or "", ())]
        if not users:
            return device
        return device.model_copy(update={"leasable": False, "problem": _problem(users)[:500]})

    return worker.model_copy(update={"devices": tuple(map(marked, worker.devices))})


def _problem(users: list[DeviceUser]) -> str:
    names = ", ".join(map(str, users[:3])) + (" and others" if users[3:] else "")
    return f"Used outside of all leases by {names}. End them, or allow them with [hetero] allowed_device_processes."


def _is_there(user: DeviceUser) -> bool:
    return Path(f"/proc/{user.pid}").exists()
