"""One job on its way through a simulation: its progress, its stays on devices, what becomes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hetero_airflow.model.lease import Lease
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval
from hetero_airflow.simulator.workload import Job


@dataclass(frozen=True, slots=True)
class RankLease:
    """The devices that one rank holds."""

    lease: Lease
    device_class: str
    devices: float


@dataclass(slots=True)
class JobRun:
    """The state of a job. `remaining` is work as of the start of the present stay."""

    job: Job
    best_s: float
    """That all its work takes on the fastest device class of the cluster."""
    remaining: float = field(init=False)
    submitted_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None
    is_withdrawn: bool = False
    holds: list[RankLease] = field(default_factory=list)
    since_s: float = 0.0
    overhead_s: float = 0.0
    speed: float = 0.0
    due_s: float = 0.0
    """When the work of the present stay is done."""
    stay: int = 0
    """Number of the present stay; a finish that was foreseen in an earlier one is void."""
    served: dict[str, float] = field(default_factory=dict)
    intervals: list[RunInterval] = field(default_factory=list)
    preemptions: int = 0
    migrations: int = 0

    def __post_init__(self) -> None:
        self.remaining = self.job.work

    @property
    def devices(self) -> float:
        """That it holds while it runs; a share counts as its fraction, a core of a CPU as one."""
        asked = self.job.request.alternatives[0]
        return asked.count * asked.share_milli / 1000 * self.job.ranks

    @property
    def is_running(self) -> bool:
        """Whether it holds all its devices."""
        return bool(self.holds) and len(self.holds) == self.job.ranks

    def begin(self, now_s: float, overhead_s: float) -> float:
        """Start or go on; the time at which it will have finished if nothing happens."""
        hosts = {hold.lease.worker_id for hold in self.holds}
        slowest = min(self.job.speed(hold.device_class) for hold in self.holds)
        self.speed = slowest * (self.job.spread if len(hosts) > 1 else 1.0)
        self.since_s, self.overhead_s = now_s, overhead_s
        self.stay += 1
        if self.started_s is None:
            self.started_s = now_s
        elif self._moved():
            self.migrations += 1
        self.due_s = now_s + overhead_s + self.remaining / self.speed
        return self.due_s

    def _moved(self) -> bool:
        last = self.intervals[-len(self.holds) :]
        return [(i.worker_id, i.device_class) for i in last] != [
            (hold.lease.worker_id, hold.device_class) for hold in self.holds
        ]

    def end_interval(self, now_s: float, lost_s: float = 0.0) -> list[Lease]:
        """Give the devices back; `lost_s` of the progress is undone. The leases to release."""
        held_s = now_s - self.since_s
        overhead_s = min(held_s, self.overhead_s + lost_s)
        self.remaining = max(0.0, self.remaining - (held_s - overhead_s) * self.speed)
        for hold in self.holds:
            self.intervals.append(
                RunInterval(self.since_s, now_s, hold.lease.worker_id, hold.device_class, hold.devices, overhead_s)
            )
        for name in {hold.device_class for hold in self.holds}:
            self.served[name] = self.served.get(name, 0.0) + held_s
        leases = [hold.lease for hold in self.holds]
        self.holds = []
        self.stay += 1
        return leases

    def lost_progress_s(self, now_s: float, checkpoint_s: float) -> float:
        """How much of the progress of this stay is undone where it can't save now: what was made since it last did."""
        if checkpoint_s <= 0:
            return 0.0
        progress_s = max(0.0, now_s - self.since_s - self.overhead_s)
        return progress_s if math.isinf(checkpoint_s) else math.fmod(progress_s, checkpoint_s)

    def record(self, end_s: float) -> JobRecord:
        """What became of it by the end."""
        outcome = JobOutcome.WAITING
        intervals = list(self.intervals)
        if self.finished_s is not None:
            outcome = JobOutcome.FINISHED
        elif self.is_withdrawn:
            outcome = JobOutcome.LEFT
        elif self.is_running:
            outcome = JobOutcome.RUNNING
            overhead_s = min(self.overhead_s, end_s - self.since_s)
            intervals += (
                RunInterval(self.since_s, end_s, hold.lease.worker_id, hold.device_class, hold.devices, overhead_s)
                for hold in self.holds
            )
        return JobRecord(
            self.job.id,
            self.job.group,
            self.job.task,
            self.job.arrival_s if self.submitted_s is None else self.submitted_s,
            self.started_s,
            self.finished_s,
            outcome,
            self.devices,
            tuple(intervals),
            self.best_s * self.devices,
            self.preemptions,
            self.migrations,
        )
