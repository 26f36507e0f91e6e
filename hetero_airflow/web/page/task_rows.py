"""Tasks in the page: a name with what a link needs, or none where the reader may not see the DAG. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict

from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker


class TaskLink(BaseModel):
    """A task instance that the reader may see."""

    model_config = ConfigDict(from_attributes=True)

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    """-1 for a task that is not mapped."""

    @classmethod
    def of(cls, pending: PendingRequest | None, readable: Collection[str]) -> "TaskLink | None":
        """The task of a request; None if it is not known, or of a DAG that the reader may not see."""
        return cls.model_validate(pending) if pending is not None and pending.dag_id in readable else None


class LeaseRow(BaseModel):
    """A live lease."""

    task: TaskLink | None
    """None where the reader may not see the task."""
    worker: str
    devices: list[str]
    state: str
    granted_at: datetime
    likely_end: datetime | None
    """When its task will probably end, by the median of similar runs; None if unknown or overdue."""


def lease_row(
    lease: Lease,
    holders: Mapping[str, PendingRequest],
    workers: Mapping[str, Worker],
    estimates: Estimates,
    readable: Collection[str],
    now: datetime,
) -> LeaseRow:
    """A lease for a reader of these DAGs."""
    holder = holders.get(lease.request_id)
    device = leased_device(lease, workers.get(lease.worker_id))
    return LeaseRow(
        task=TaskLink.of(holder, readable),
        worker=lease.worker_id,
        devices=[claim.device_id for claim in lease.claims],
        state=lease.state,
        granted_at=lease.granted_at,
        likely_end=likely_end(lease, holder, device, estimates, now),
    )


def leased_device(lease: Lease, worker: Worker | None) -> Device | None:
    """The first device of the worker that a lease holds; None if the worker has none of them any more."""
    held = {claim.device_id for claim in lease.claims}
    return next((device for device in worker.devices if device.id in held), None) if worker else None


def likely_end(
    lease: Lease, holder: PendingRequest | None, device: Device | None, estimates: Estimates, now: datetime
) -> datetime | None:
    """When the task of a lease will probably end, by the median of similar runs; None if unknown or overdue."""
    if holder is None or device is None:
        return None
    held_s = (now - lease.granted_at).total_seconds()
    name, before = device_class(device), holder.attained_service_s
    remaining = estimates.lease_remaining_s(lease.id, holder.task, name, held_s, before, now)
    return None if remaining is None else now + timedelta(seconds=remaining.middle)
