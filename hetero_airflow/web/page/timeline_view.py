"""The leases of the past hours, and when the current ones will probably end. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from pydantic import BaseModel

from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.lease_history import PastLease
from hetero_airflow.web.page.task_rows import TaskLink, leased_device, likely_end


class TimelineBar(BaseModel):
    """A lease on one device."""

    task: TaskLink | None
    """None where the reader may not see the task."""
    begin: datetime
    end: datetime | None
    """None for a live lease."""
    likely_end: datetime | None
    """For a live lease, by the median of similar runs; None if unknown or overdue."""
    state: str
    outcome: str | None


class TimelineRow(BaseModel):
    """A device and its leases, the oldest first."""

    worker: str
    device: str
    name: str
    bars: list[TimelineBar]


class Timeline(BaseModel):
    """A page of devices with their leases."""

    total: int
    """Matching devices."""
    since: datetime
    until: datetime
    """Now."""
    rows: list[TimelineRow]


def timeline(
    snapshot: Snapshot,
    page: Sequence[tuple[Worker, str]],
    total: int,
    leases: Iterable[PastLease],
    readable: Collection[str],
    since: datetime,
    now: datetime,
) -> Timeline:
    """The rows of the page.

    :param page: (worker, id of a device of it)
    :param leases: those of the workers of the page since that time
    """
    live = {lease.id: lease for lease in snapshot.leases}
    workers = {worker.id: worker for worker, _ in page}
    bars: dict[tuple[str, str], list[TimelineBar]] = {(worker.id, device): [] for worker, device in page}
    for lease in leases:
        is_readable = lease.dag_id in readable
        task = TaskLink.model_validate(lease)
        likely = None
        if (current := live.get(lease.id)) is not None:
            holder = snapshot.holders.get(current.request_id)
            device = leased_device(current, workers.get(lease.worker_id))
            likely = likely_end(current, holder, device, snapshot.estimates, now)
        bar = TimelineBar(
            task=task if is_readable else None,
            begin=lease.granted_at,
            end=lease.ended_at,
            likely_end=likely,
            state=lease.state,
            outcome=lease.outcome,
        )
        for device_id in lease.device_ids:
            if (lease.worker_id, device_id) in bars:
                bars[lease.worker_id, device_id].append(bar)
    names = {
        (worker.id, device.id): f"{device.vendor}/{device.model}" for worker, _ in page for device in worker.devices
    }
    rows = [
        TimelineRow(worker=worker, device=device, name=names[worker, device], bars=bar_list)
        for (worker, device), bar_list in bars.items()
    ]
    return Timeline(total=total, since=since, until=now, rows=rows)
