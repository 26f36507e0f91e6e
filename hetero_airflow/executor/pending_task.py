"""A device task that is QUEUED for Airflow and waits here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.contract.envelope import RequestOrTemplate, unpack_gang
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.executor.task_names import with_task_names
from hetero_airflow.model.gang import GangMember, gang_member
from hetero_airflow.model.plan import Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.runtime.task_lease import TaskLease

SETTLING_TIME = timedelta(seconds=1)
"""A task that was held for less is not looked up again: Airflow itself refuses to start one that is not QUEUED. And
what was placed for less is not written about yet."""


@dataclass(slots=True)
class PendingTask:
    """The workload, what it asks for, and since when."""

    workload: ExecuteTask
    asked: RequestOrTemplate
    since: datetime
    request: DeviceRequest | None = None
    """As the store knows it; None until its templates are rendered."""
    first: DeviceRequest | None = None
    """The same before its alternatives were turned; `request` where they were not."""
    not_started: tuple[TaskLease, ...] = ()
    """Those under which it was handed over and did not begin."""
    told: str = ""
    """The last reason for waiting that its log has."""
    gang: str = ""
    """The placement of its gang for which it waits; empty for a task of its own."""
    gang_size: int = 1
    """Of that placement."""
    is_left_out: bool = False
    """Its gang goes without it, and it is not submitted."""
    seat: GangMember | None = field(init=False)
    """Its place in its gang."""
    least: int = field(init=False)
    """With how many members its gang may go on without the others, once all have waited for `patience_s`."""
    patience_s: float = field(init=False)

    def __post_init__(self) -> None:
        ti = self.workload.ti
        most, self.least, self.patience_s = unpack_gang(ti.executor_config)
        is_member = most > 1 and ti.map_index is not None
        self.seat = gang_member(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, most) if is_member else None

    @property
    def request_id(self) -> str:
        """The store's name of the request: the id of the task instance, new for each try."""
        return str(self.workload.ti.id)

    def resolve(self, tasks: TaskInstances) -> DeviceRequest:
        """What it asks for, its templates rendered.

        :raises RequestError: they can't be, or make no request
        """
        return self.asked if isinstance(self.asked, DeviceRequest) else tasks.render(self.workload, self.asked)

    def number(self, alternative: int) -> int:
        """Where an alternative of `request` stood before its alternatives were turned."""
        assert self.request is not None
        first = self.first or self.request
        return first.alternatives.index(self.request.alternatives[alternative])

    def pending(self, request: DeviceRequest, submitted_at: datetime, served: Mapping[str, float]) -> PendingRequest:
        """What the queue knows of it."""
        ti = self.workload.ti
        return PendingRequest(
            id=self.request_id,
            request=request,
            submitted_at=submitted_at,
            weight=ti.priority_weight,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            attained_service_s=served,
            gang=self.gang,
            gang_size=self.gang_size,
        )


def log_wait(held: PendingTask, decision: Wait, snapshot: Snapshot, now: datetime) -> None:
    """Write into the task's log why it waits, if that is news."""
    text = f"Waiting for {held.request}: {decision.reason}"
    if text != held.told:
        held.told = text
        named = with_task_names(text, snapshot)
        write_task_log(held.workload.log_path, f"{named} (place {decision.position} in the queue)", now)
