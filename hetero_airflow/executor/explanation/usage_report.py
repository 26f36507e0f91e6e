"""Adds usage up by DAG, owner, team, device and other subjects, with its cost. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.model.usage.device_time import DEVICE_SECOND, DeviceDay, TaskDay
from hetero_airflow.model.usage.prices import Prices

NO_OWNER = "unknown"
"""The owner of a DAG that Airflow does not know any more."""


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What the tasks of a subject held of a class of devices."""

    subject: str
    device_class: str
    kind: str
    held: int
    """Device-time; see `hetero_airflow.model.usage.device_time`."""
    leases: int
    """Leases that began in this time."""
    cost: float | None
    """None if the devices have no price."""


@dataclass(frozen=True, slots=True)
class DeviceUsageSum:
    """What the devices of a subject did."""

    subject: str
    device_class: str
    kind: str
    existed: int
    """Device-time, as the three below; held + free + on hold is what existed."""
    held: int
    free: int
    on_hold: int
    cost: float | None
    """Of what was held."""


def task_subjects(by: str, shares: TeamShares, owners: Mapping[str, str]) -> Callable[[TaskDay], str] | None:
    """What tells the subject of a task's usage; None if `by` is a subject of devices.

    :param by: dag, task, owner or team
    :param owners: DAG id → its owners
    """
    subjects: dict[str, Callable[[TaskDay], str]] = {
        "dag": lambda row: row.dag_id,
        "task": lambda row: f"{row.dag_id}.{row.task_id}",
        "owner": lambda row: owners.get(row.dag_id) or NO_OWNER,
        "team": lambda row: "/".join(shares.path_of(row.dag_id)),
    }
    return subjects.get(by)


def device_subjects(by: str) -> Callable[[DeviceDay], str]:
    """What tells the subject of a device's usage.

    :param by: model, worker, device or day
    """
    subjects: dict[str, Callable[[DeviceDay], str]] = {
        "model": lambda row: row.device_class,
        "worker": lambda row: row.worker_id,
        "device": lambda row: f"{row.worker_id}/{row.device_id}",
        "day": lambda row: row.day.isoformat(),
    }
    return subjects[by]


def sum_tasks(rows: Iterable[TaskDay], subject: Callable[[TaskDay], str], prices: Prices) -> list[TaskUsage]:
    """The sums of each subject and class of devices: accelerators first, then the longest device-time."""
    sums: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = sums[subject(row), row.device_class, row.kind]
        entry[0] += row.held
        entry[1] += row.leases
    found = [TaskUsage(*key, held, leases, prices.cost(held, key[1], key[2])) for key, (held, leases) in sums.items()]
    return sorted(found, key=lambda row: (row.kind == "cpu", -row.held, row.subject, row.device_class))


def sum_devices(rows: Iterable[DeviceDay], subject: Callable[[DeviceDay], str], prices: Prices) -> list[DeviceUsageSum]:
    """The sums of each subject and class of devices, ordered by subject; accelerators first."""
    sums: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        entry = sums[subject(row), row.device_class, row.kind]
        for number, amount in enumerate((row.existed, row.held, row.free, row.on_hold)):
            entry[number] += amount
    found = [
        DeviceUsageSum(*key, existed, held, free, on_hold, prices.cost(held, key[1], key[2]))
        for key, (existed, held, free, on_hold) in sums.items()
    ]
    return sorted(found, key=lambda row: (row.kind == "cpu", row.subject, row.device_class))


def hours(amount: int) -> float:
    """Device-hours, or core-hours of a CPU.

    >>> hours(1800 * DEVICE_SECOND)
    0.5
    """
    return amount / (3600 * DEVICE_SECOND)
