"""A snapshot as a JSON file, for a rehearsal on another host or for a bug report. Pure."""

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.model.worker import Worker
from hetero_airflow.validation import first_problem

T = TypeVar("T", PendingRequest, Lease)

SAVE_ONE = "Save one: airflow hetero snapshot > snapshot.json"
"""What to do without a good file."""


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class SavedSnapshot(NamedTuple):
    """A snapshot and its time."""

    snapshot: Snapshot
    taken_at: datetime


def _check_times(value: T) -> T:
    times = (getattr(value, name, None) for name in ("submitted_at", "granted_at", "expires_at"))
    if any(time is not None and time.tzinfo is None for time in times):
        raise ValueError(f"a time of {shorten(value.id)} without a zone")
    return value


def _check_work(work: Interval) -> Interval:
    if not 0 < work.low <= work.middle <= work.high < math.inf:
        raise ValueError(f"{tuple(work)}, not three finite numbers above 0 in order")
    return work


def _check_ids(values: Iterable[_HasId]) -> None:
    twice = next((key for key, times in Counter(value.id for value in values).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{shorten(twice)} twice")


class _UsageRow(BaseModel):
    worker_id: str
    device_id: str
    usage: DeviceUsage


class _TaskRow(BaseModel):
    dag_id: str
    task_id: str
    speeds: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    work: Annotated[Interval, AfterValidator(_check_work)] | None = None
    before: tuple[TaskName, ...] = ()
    """The tasks directly after this one."""
    speed_deviations: dict[str, Annotated[float, Field(ge=0, le=100)]] = {}


class _SnapshotFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1]
    taken_at: AwareDatetime
    sequence: int
    workers: tuple[Worker, ...]
    usage: tuple[_UsageRow, ...]
    pending: tuple[Annotated[PendingRequest, AfterValidator(_check_times)], ...]
    leases: tuple[Annotated[Lease, AfterValidator(_check_times)], ...]
    holders: tuple[Annotated[PendingRequest, AfterValidator(_check_times)], ...]
    dag_tokens: dict[str, int]
    tasks: tuple[_TaskRow, ...]
    finished_s: tuple[float, ...]
    mix: tuple[tuple[Alternative, float], ...]
    default_speeds: dict[str, float]
    used_device_s: dict[str, dict[str, float]] = {}
    used_at: datetime | None = None
    shares: TeamShares = NO_TEAM_SHARES
    reported_ends: dict[str, AwareDatetime] = {}
    held_data: dict[str, dict[str, int]] = {}

    @model_validator(mode="after")
    def _check_unique_ids(self) -> "_SnapshotFile":
        _check_ids(self.workers)
        _check_ids((*self.pending, *self.holders))
        return self


def snapshot_text(snapshot: Snapshot, taken_at: datetime) -> str:
    """The file's text.

    >>> from hetero_airflow.testing import EPOCH, a_pending, a_worker
    >>> snapshot = Snapshot(7, (a_worker(),), pending=(a_pending("r1", "gpu:2"),))
    >>> read_snapshot(snapshot_text(snapshot, EPOCH)).snapshot.pending == snapshot.pending
    True
    """
    estimates = snapshot.estimates
    tasks = (
        _TaskRow(
            dag_id=name[0],
            task_id=name[1],
            speeds=dict(estimates.speeds.get(name, {})),
            work=estimates.works.get(name),
            before=estimates.edges.get(name, ()),
            speed_deviations=dict(estimates.speed_deviations.get(name, {})),
        )
        for name in sorted({*estimates.speeds, *estimates.works, *estimates.edges, *estimates.speed_deviations})
    )
    file = _SnapshotFile(
        schema_version=1,
        taken_at=taken_at,
        sequence=snapshot.sequence,
        workers=snapshot.workers,
        usage=tuple(_UsageRow(worker_id=w, device_id=d, usage=usage) for (w, d), usage in snapshot.usage.items()),
        pending=snapshot.pending,
        leases=snapshot.leases,
        holders=tuple(snapshot.holders.values()),
        dag_tokens=dict(snapshot.dag_tokens),
        tasks=tuple(tasks),
        finished_s=estimates.finished_s,
        mix=estimates.mix,
        default_speeds=dict(estimates.default_speeds),
        used_device_s={dag_id: dict(used) for dag_id, used in estimates.used_device_s.items()},
        used_at=estimates.used_at,
        shares=estimates.shares,
        reported_ends=dict(estimates.reported_ends),
        held_data={worker_id: dict(held) for worker_id, held in snapshot.held_data.items()},
    )
    return file.model_dump_json(indent=1) + "\n"


def read_snapshot(text: str) -> SavedSnapshot:
    """The snapshot in a text that `snapshot_text` made.

    :raises SettingsError: any other text, or the text of another version
    """
    try:
        file = _SnapshotFile.model_validate_json(text)
    except ValidationError as error:
        invalid = error.errors(include_url=False)[0]["input"]
        path, problem = first_problem(error)
        value = f", {shorten(invalid)}" if isinstance(invalid, int | float) else ""
        found = f"{problem}{value} at {path or 'the top'}"
        raise SettingsError("a saved snapshot", found=found, remedy=SAVE_ONE) from error
    names = {(row.dag_id, row.task_id): row for row in file.tasks}
    estimates = Estimates(
        {name: row.speeds for name, row in names.items() if row.speeds},
        {name: row.work for name, row in names.items() if row.work is not None},
        file.finished_s,
        file.mix,
        file.default_speeds,
        {name: row.before for name, row in names.items() if row.before},
        file.used_device_s,
        file.used_at,
        file.shares,
        {name: row.speed_deviations for name, row in names.items() if row.speed_deviations},
        file.reported_ends,
    )
    snapshot = Snapshot(
        file.sequence,
        file.workers,
        {(row.worker_id, row.device_id): row.usage for row in file.usage},
        file.pending,
        file.leases,
        file.dag_tokens,
        {pending.id: pending for pending in file.holders},
        estimates,
        held_data=file.held_data,
    )
    return SavedSnapshot(snapshot, file.taken_at)
