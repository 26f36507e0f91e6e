"""What a task asks for that is QUEUED for Airflow and waits here."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.contract.envelope import RequestOrTemplate, unpack_gang
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.model.gang import GangMember, gang_member
from hetero_airflow.model.plan import ReasonCode, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import ServiceRecord
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.task_names import TaskNames

SETTLING_TIME = timedelta(seconds=1)
"""How long after a task was queued Airflow's database is asked whether it is still QUEUED; Airflow checks this itself
before it starts a task. Also how long after a placement it is written to the task's log: an earlier write would slow
the start."""

_LOG_PAUSE = timedelta(seconds=30)
"""The least time between two lines about the wait of a task."""

_LOG_PART = 0.05
"""The part of the time that a task has waited, after which its log gets another line: some 130 lines in a day."""


@dataclass(slots=True)
class PendingTask:
    """The workload, what it requests, and since when."""

    workload: ExecuteTask
    requested: RequestOrTemplate
    since: datetime
    request: DeviceRequest | None = None
    """As the store has it; None until its templates are rendered."""
    original_request: DeviceRequest | None = None
    """`request` before its alternatives were reordered; None if they were not."""
    service: ServiceRecord | None = None
    """What it had when it ran before; None if it did not."""
    not_started: tuple[TaskLease, ...] = ()
    """The leases under which it was handed over and did not start."""
    failed_starts: int = 0
    """How many of its starts failed one after the other while the API server answered."""
    not_before: datetime | None = None
    """When it may be placed again; None for at once."""
    logged_wait: str = ""
    """What its log says last of its wait."""
    logged_code: ReasonCode | None = None
    """The kind of reason in it."""
    logged_at: datetime | None = None
    unlogged_wait: Wait | None = None
    """The last decision on it, if its log may not say yet why it waits."""
    gang: str = ""
    """The placement of its gang for which it waits; empty if it is in no gang."""
    gang_size: int = 1
    """The size of that placement."""
    is_excluded: bool = False
    """Its gang runs without it, so it is not submitted."""
    request_id: str = field(init=False)
    """The id of the request in the store: the id of the task instance, new for each try."""
    member: GangMember | None = field(init=False)
    """Its place in its gang."""
    min_gang_size: int = field(init=False)
    """The size with which its gang may run once all members have waited for `full_size_wait_s`."""
    full_size_wait_s: float = field(init=False)

    def __post_init__(self) -> None:
        ti = self.workload.ti
        self.request_id = str(ti.id)  # each round reads it several times
        full_size, self.min_gang_size, self.full_size_wait_s = unpack_gang(ti.executor_config)
        is_member = full_size > 1 and ti.map_index is not None
        self.member = gang_member(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, full_size) if is_member else None

    def again(self, lease: TaskLease | None, not_before: datetime | None) -> "PendingTask":
        """The task after a start that failed; see `commands.Again`."""
        return PendingTask(
            self.workload,
            self.requested,
            self.since,
            not_started=self.not_started if lease is None else (*self.not_started, lease),
            failed_starts=0 if not_before is None else self.failed_starts + 1,
            not_before=not_before,
            service=self.service,
        )

    def is_delayed(self, now: datetime) -> bool:
        """Whether it is not to be placed now: its gang runs without it, or its last start has just failed."""
        return self.is_excluded or (self.not_before is not None and now < self.not_before)

    def waited_s(self, now: datetime) -> float:
        """Seconds since the task was queued."""
        return (now - self.since).total_seconds()

    def hardware_deadline(self, limit: timedelta) -> datetime:
        """Until when it waits for hardware that no known worker has.

        :param limit: ``[hetero] wait_for_hardware``, which its own ``wait_timeout`` can shorten
        """
        own_s = None if self.request is None else self.request.wait_timeout_s
        return self.since + (limit if own_s is None else min(limit, timedelta(seconds=own_s)))

    def original_number(self, alternative: int) -> int:
        """The position of an alternative of `request` before the alternatives were reordered."""
        assert self.request is not None
        return (self.original_request or self.request).alternatives.index(self.request.alternatives[alternative])

    def as_pending(self) -> PendingRequest:
        """The task in the store's queue; its request must be resolved."""
        assert self.request is not None
        ti, before = self.workload.ti, self.service or ServiceRecord(self.since)
        return PendingRequest(
            id=self.request_id,
            request=self.request,
            submitted_at=before.submitted_at,
            weight=ti.priority_weight,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            attained_service_s=before.seconds,
            interruptions=before.interruptions,
            gang=self.gang,
            gang_size=self.gang_size,
        )

    def may_log_wait(self, decision: Wait, now: datetime) -> bool:
        """Whether the last line in its log about its wait is old enough for another one.

        A new kind of reason comes after `_LOG_PAUSE`. Other changes also wait for a part of the time that the task has
        waited, so that days in the queue do not fill the disk.
        """
        if self.logged_at is None or now < self.logged_at:  # the clock was set back
            return True
        is_new_kind = decision.reason.code != self.logged_code
        return now - self.logged_at >= (_LOG_PAUSE if is_new_kind else max(_LOG_PAUSE, (now - self.since) * _LOG_PART))

    def log_wait(self, decision: Wait, names: TaskNames, now: datetime, more: str = "") -> bool:
        """Write into the task's log why it waits and at which place; False if it says that already.

        :param more: what the line says beside; nothing that is worth a line of its own
        """
        wait = f"Waiting for {self.request}: {decision.reason} (place {decision.position} in the queue)"
        text = names.put_into(wait, {self.workload.ti.dag_id})
        if text == self.logged_wait:
            return False
        self.logged_wait, self.logged_code, self.logged_at = text, decision.reason.code, now
        write_task_log(self.workload.log_path, text + more, now)
        return True
