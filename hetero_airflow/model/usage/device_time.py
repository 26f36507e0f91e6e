"""Device-time: how long devices were there, were held by leases, were free, or were on hold. Pure.

An amount of device-time is an integer, in millionths of a second times thousandths of a device (`DEVICE_SECOND`). So
sums are exact: held + free + on hold is the time that existed, whatever is added up in whichever order. The device-time
of a CPU counts its cores.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from hetero_airflow.model.device import Device, device_class
from hetero_airflow.units import MILLI_PER_DEVICE

DEVICE_SECOND = 1_000_000 * MILLI_PER_DEVICE
"""The device-time of one device in one second."""

SIMULATED = " (simulated)"
"""The end of the class of simulated devices."""

_MICROSECOND = timedelta(microseconds=1)


def usage_class(device: Device) -> str:
    """The class under which the usage of a device is counted; that of simulated devices says so.

    >>> from hetero_airflow.testing import a_device
    >>> usage_class(a_device(model="h100", simulated=True))
    'nvidia/h100 (simulated)'
    """
    return device_class(device) + (SIMULATED if device.simulated else "")


@dataclass(frozen=True, slots=True)
class Present:
    """A time in which an online worker reported a device, with nothing about the device changing."""

    worker_id: str
    device_id: str
    device_class: str
    """As `usage_class` writes it."""
    kind: str
    capacity_milli: int
    is_on_hold: bool
    """It got no new task: because of a hold, or because it reported a problem."""
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """A time in which a lease held a device, or a part of it."""

    lease_id: str
    dag_id: str
    task_id: str
    worker_id: str
    device_id: str
    device_class: str
    kind: str
    share_milli: int
    since: datetime
    until: datetime
    is_begun: bool = True
    """Whether the lease began at `since`; otherwise it began before the time that is asked for."""


@dataclass(frozen=True, slots=True)
class DeviceDay:
    """What a device did in a day (UTC), or in the part of it that was asked for."""

    day: date
    worker_id: str
    device_id: str
    device_class: str
    kind: str
    existed: int
    """Device-time in which it was there. A device of a lost worker is there while a lease holds it."""
    held: int
    on_hold: int
    """Neither held by a lease nor free, because the device was on hold or reported a problem."""

    @property
    def free(self) -> int:
        """Device-time in which it would have taken a task."""
        return self.existed - self.held - self.on_hold


@dataclass(frozen=True, slots=True)
class TaskDay:
    """What the tries of a task held of a class of devices in a day (UTC), or in the part of it that was asked for."""

    day: date
    dag_id: str
    task_id: str
    device_class: str
    kind: str
    held: int
    leases: int
    """Leases that began on this day."""


def device_days(present: Iterable[Present], held: Iterable[Held]) -> list[DeviceDay]:
    """The sums for each device and day, ordered by day, worker and device.

    >>> from hetero_airflow.testing import EPOCH
    >>> noon, later = EPOCH + timedelta(hours=12), EPOCH + timedelta(hours=13)
    >>> there = Present("host", "GPU-0", "nvidia/v100", "gpu", 1000, False, EPOCH, later)
    >>> half = Held("lease", "dag", "task", "host", "GPU-0", "nvidia/v100", "gpu", 500, noon, later)
    >>> (sums,) = device_days([there], [half])
    >>> [amount // DEVICE_SECOND for amount in (sums.existed, sums.held, sums.free, sums.on_hold)]
    [46800, 1800, 45000, 0]
    """
    changes: defaultdict[tuple[str, str], list[tuple[datetime, int, int, int]]] = defaultdict(list)
    """Device → (time, change of its capacity, of what is held, and of the number of holds)."""
    classes: dict[tuple[str, str], tuple[str, str]] = {}
    for lease in held:
        key = (lease.worker_id, lease.device_id)
        classes[key] = (lease.device_class, lease.kind)
        changes[key] += [(lease.since, 0, lease.share_milli, 0), (lease.until, 0, -lease.share_milli, 0)]
    for interval in present:
        key, on_hold = (interval.worker_id, interval.device_id), int(interval.is_on_hold)
        classes[key] = (interval.device_class, interval.kind)
        changes[key] += [
            (interval.since, interval.capacity_milli, 0, on_hold),
            (interval.until, -interval.capacity_milli, 0, -on_hold),
        ]
    days = (row for key, rows in changes.items() for row in _device_days(key, classes[key], sorted(rows)))
    return sorted(days, key=lambda row: (row.day, row.worker_id, row.device_id))


def _device_days(
    key: tuple[str, str], named: tuple[str, str], changes: list[tuple[datetime, int, int, int]]
) -> Iterator[DeviceDay]:
    """The sums of one device, from its changes in the order of time."""
    sums: defaultdict[date, list[int]] = defaultdict(lambda: [0, 0, 0])
    capacity = held = holds = 0
    before = changes[0][0]
    for at, more_capacity, more_held, more_holds in changes:
        for day, length in split_by_day(before, at):
            idle = max(0, capacity - held)
            for number, amount in enumerate((max(capacity, held), held, idle if holds else 0)):
                sums[day][number] += amount * length
        before, capacity, held, holds = at, capacity + more_capacity, held + more_held, holds + more_holds
    for day, (existed, in_use, on_hold) in sums.items():
        if existed:
            yield DeviceDay(day, *key, *named, existed, in_use, on_hold)


def task_days(held: Iterable[Held]) -> list[TaskDay]:
    """The sums for each task, class of devices and day, ordered by day, DAG and task."""
    sums: defaultdict[tuple[date, str, str, str, str], int] = defaultdict(int)
    begun: defaultdict[tuple[date, str, str, str, str], set[str]] = defaultdict(set)
    for lease in held:
        name = (lease.dag_id, lease.task_id, lease.device_class, lease.kind)
        for day, length in split_by_day(lease.since, lease.until):
            sums[day, *name] += lease.share_milli * length
        if lease.is_begun:
            begun[lease.since.astimezone(UTC).date(), *name].add(lease.lease_id)
    return [TaskDay(*key, sums.get(key, 0), len(begun.get(key, ()))) for key in sorted(sums.keys() | begun.keys())]


def split_by_day(since: datetime, until: datetime) -> Iterator[tuple[date, int]]:
    """The days (UTC) between two times, and how many millionths of a second of each lie between them.

    >>> since = datetime(2026, 1, 1, 23, 59, 58, tzinfo=UTC)
    >>> [(day.day, length // 1_000_000) for day, length in split_by_day(since, since + timedelta(days=1, seconds=5))]
    [(1, 2), (2, 86400), (3, 3)]
    """
    at, end = since.astimezone(UTC), until.astimezone(UTC)
    while at < end:
        midnight = datetime.combine(at.date() + timedelta(days=1), datetime.min.time(), UTC)
        upto = min(midnight, end)
        yield at.date(), (upto - at) // _MICROSECOND
        at = upto
