"""A snapshot as a JSON file: to rehearse against later, elsewhere, or as a bug report. Pure."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.model.worker import Worker

SCHEMA = 1


class SavedSnapshot(NamedTuple):
    """A snapshot and when it was taken."""

    snapshot: Snapshot
    taken_at: datetime


class _UsageRow(BaseModel):
    worker_id: str
    device_id: str
    usage: DeviceUsage


class _TaskRow(BaseModel):
    dag_id: str
    task_id: str
    speeds: dict[str, float] = {}
    work: Interval | None = None
    spread: float | None = None
    before: tuple[TaskName, ...] = ()
    """Those that come right after it."""


class _SnapshotFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: int
    taken_at: datetime
    sequence: int
    workers: tuple[Worker, ...]
    usage: tuple[_UsageRow, ...]
    pending: tuple[PendingRequest, ...]
    leases: tuple[Lease, ...]
    holders: tuple[PendingRequest, ...]
    dag_tokens: dict[str, int]
    tasks: tuple[_TaskRow, ...]
    finished_s: tuple[float, ...]
    mix: tuple[tuple[Alternative, float], ...]
    default_speeds: dict[str, float]
    used_device_s: dict[str, dict[str, float]] = {}
    used_at: datetime | None = None
    shares: TeamShares = NO_TEAM_SHARES


def snapshot_text(snapshot: Snapshot, taken_at: datetime) -> str:
    """The file's text.

    >>> from hetero_airflow.testing import EPOCH, a_pending, a_worker
    >>> snapshot = Snapshot(7, (a_worker(),), pending=(a_pending("r1", "gpu:2"),))
    >>> read_snapshot(snapshot_text(snapshot, EPOCH)).snapshot.pending == snapshot.pending
    True
    """
    known = snapshot.estimates
    tasks = (
        _TaskRow(
            dag_id=name[0],
            task_id=name[1],
            speeds=dict(known.speeds.get(name, {})),
            work=known.works.get(name),
            spread=known.spread.get(name),
            before=known.edges.get(name, ()),
        )
        for name in sorted({*known.speeds, *known.works, *known.spread, *known.edges})
    )
    file = _SnapshotFile(
        schema_version=SCHEMA,
        taken_at=taken_at,
        sequence=snapshot.sequence,
        workers=snapshot.workers,
        usage=tuple(_UsageRow(worker_id=w, device_id=d, usage=usage) for (w, d), usage in snapshot.usage.items()),
        pending=snapshot.pending,
        leases=snapshot.leases,
        holders=tuple(snapshot.holders.values()),
        dag_tokens=dict(snapshot.dag_tokens),
        tasks=tuple(tasks),
        finished_s=known.finished_s,
        mix=known.mix,
        default_speeds=dict(known.default_speeds),
        used_device_s={dag_id: dict(used) for dag_id, used in known.used_device_s.items()},
        used_at=known.used_at,
        shares=known.shares,
    )
    return file.model_dump_json(indent=1) + "\n"


def _find_fault(file: _SnapshotFile) -> str:
    """What no snapshot can say, in words; empty where there is nothing of the kind."""
    if file.schema_version != SCHEMA:
        return f"version {file.schema_version} of its form"
    requests = [*file.pending, *file.holders]
    for what, ids in (("worker", [one.id for one in file.workers]), ("request", [one.id for one in requests])):
        twice = next((id_ for id_, times in Counter(ids).items() if times > 1), None)
        if twice is not None:
            return f"the {what} {shorten(twice)} twice"
    times = [file.taken_at, *(one.submitted_at for one in requests)]
    times += [time for lease in file.leases for time in (lease.granted_at, lease.expires_at)]
    if not all(time.tzinfo is not None for time in times):
        return "a time without its zone"
    for row in file.tasks:
        speeds, work = row.speeds.values(), row.work or Interval(1.0, 1.0, 1.0)
        is_work = 0 < work.low <= work.middle <= work.high < math.inf
        if not (is_work and all(0 <= speed < math.inf for speed in speeds)):
            return f"an estimate of {shorten('.'.join((row.dag_id, row.task_id)))} that can't be"
    return ""


def read_snapshot(text: str) -> SavedSnapshot:
    """The snapshot that a text made by `snapshot_text` holds.

    :raises SettingsError: another text, or one that another version made
    """
    try:
        file = _SnapshotFile.model_validate_json(text)
        found = _find_fault(file)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"at {'.'.join(map(str, first['loc'])) or 'the top'}: {shorten(first['msg'])}"
    if found:
        raise SettingsError("a saved snapshot", found=found, remedy="Save one: airflow hetero snapshot > snapshot.json")
    names = {(row.dag_id, row.task_id): row for row in file.tasks}
    estimates = Estimates(
        {name: row.speeds for name, row in names.items() if row.speeds},
        {name: row.work for name, row in names.items() if row.work is not None},
        file.finished_s,
        file.mix,
        file.default_speeds,
        {name: row.spread for name, row in names.items() if row.spread is not None},
        {name: row.before for name, row in names.items() if row.before},
        file.used_device_s,
        file.used_at,
        file.shares,
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
    )
    return SavedSnapshot(snapshot, file.taken_at)
