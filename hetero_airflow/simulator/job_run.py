"""The state of one job during a simulation: its progress, the devices that it holds, and how it ends."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.simulator.options import simulated_time
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval
from hetero_airflow.simulator.workload import ANY_DEVICE, Job


@dataclass(frozen=True, slots=True)
class RankLease:
    """The devices that one rank holds."""

    lease: Lease
    device_class: str
    devices: float


@dataclass(slots=True)
class JobRun:
    """The state of a job. An interval is the time from getting all its devices to giving them back."""

    job: Job
    best_s: float
    """Time of all its work on the fastest device class of the cluster."""
    remaining: float = field(init=False)
    """Work that was left when the present interval began."""
    submitted_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None
    is_withdrawn: bool = False
    rank_leases: list[RankLease] = field(default_factory=list)
    since_s: float = 0.0
    """Start of the present interval."""
    overhead_s: float = 0.0
    speed: float = 0.0
    due_s: float = 0.0
    """When the work of the present interval is done."""
    interval_number: int = 0
    """A finish that was planned in an earlier interval does not happen."""
    attained_service_s: dict[str, float] = field(default_factory=dict)
    """Device class → seconds in earlier intervals."""
    intervals: list[RunInterval] = field(default_factory=list)
    preemptions: int = 0
    migrations: int = 0

    def __post_init__(self) -> None:
        self.remaining = self.job.work

    @property
    def devices(self) -> float:
        """Devices that it holds while it runs; a share counts as its fraction, a core of a CPU as one."""
        return self.job.request.alternatives[0].devices * self.job.ranks

    @property
    def device_class(self) -> str:
        """The class of its slowest devices while it runs."""
        return min((rank.device_class for rank in self.rank_leases), key=self.job.speed)

    @property
    def is_running(self) -> bool:
        """Whether it holds all its devices."""
        return bool(self.rank_leases) and len(self.rank_leases) == self.job.ranks

    def still_in(self, interval_number: int) -> Callable[[], bool]:
        """A function that says whether the job is still in that interval."""
        return lambda: self.interval_number == interval_number

    def holds(self, lease: Lease) -> bool:
        """Whether one of its ranks has the lease."""
        return any(rank.lease.id == lease.id for rank in self.rank_leases)

    @property
    def request_ids(self) -> list[str]:
        """The id of the request of each rank."""
        job = self.job
        return [job.id] if job.ranks == 1 else [f"{job.id}/{rank}" for rank in range(job.ranks)]

    def requests(self, submitted_s: float, task_id: str) -> Iterator[PendingRequest]:
        """The request of each rank, as the queue sees it."""
        job = self.job
        is_gang = job.ranks > 1
        for rank, request_id in enumerate(self.request_ids):
            yield PendingRequest(
                request_id, job.request, simulated_time(submitted_s), job.weight, job.group, job.run or job.id,
                task_id, rank if is_gang else -1, 1, dict(self.attained_service_s),
                job.id if is_gang else job.gang, job.ranks if is_gang else job.gang_size,
                interruptions=self.preemptions,
            )  # fmt: skip

    def begin(self, now_s: float, overhead_s: float) -> float:
        """Start or go on; the time at which it finishes if nothing happens."""
        self.speed = min(self.job.speed(rank.device_class) for rank in self.rank_leases)
        self.since_s, self.overhead_s = now_s, overhead_s
        self.interval_number += 1
        if self.started_s is None:
            self.started_s = now_s
        elif self._has_migrated():
            self.migrations += 1
        self.due_s = now_s + overhead_s + self.remaining / self.speed
        return self.due_s

    def _has_migrated(self) -> bool:
        last = self.intervals[-len(self.rank_leases) :]
        return [(interval.worker_id, interval.device_class) for interval in last] != [
            (rank.lease.worker_id, rank.device_class) for rank in self.rank_leases
        ]

    def end_interval(self, now_s: float, lost_s: float = 0.0) -> list[Lease]:
        """Give the devices back; the leases to release.

        :param lost_s: how much of the progress is undone
        """
        held_s = now_s - self.since_s
        overhead_s = min(held_s, self.overhead_s + lost_s)
        self.remaining = max(0.0, self.remaining - (held_s - overhead_s) * self.speed)
        self.intervals += self._interval(now_s, overhead_s)
        for name in {rank.device_class for rank in self.rank_leases}:
            self.attained_service_s[name] = self.attained_service_s.get(name, 0.0) + held_s
        leases = [rank.lease for rank in self.rank_leases]
        self.rank_leases = []
        self.interval_number += 1
        return leases

    def lost_progress_s(self, now_s: float, checkpoint_s: float) -> float:
        """How much progress is undone if it can't save now: what was made since the last checkpoint."""
        if checkpoint_s <= 0:
            return 0.0
        progress_s = max(0.0, now_s - self.since_s - self.overhead_s)
        return progress_s if math.isinf(checkpoint_s) else math.fmod(progress_s, checkpoint_s)

    def record(self, end_s: float) -> JobRecord:
        """The record of the job if the simulation ends now."""
        outcome = JobOutcome.WAITING
        intervals = list(self.intervals)
        if self.finished_s is not None:
            outcome = JobOutcome.FINISHED
        elif self.is_withdrawn:
            outcome = JobOutcome.LEFT
        elif self.is_running:
            outcome = JobOutcome.RUNNING
            intervals += self._interval(end_s, min(self.overhead_s, end_s - self.since_s))
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

    def _interval(self, end_s: float, overhead_s: float) -> Iterator[RunInterval]:
        """The present interval of each rank, if it ends then."""
        for rank in self.rank_leases:
            yield RunInterval(self.since_s, end_s, rank.lease.worker_id, rank.device_class, rank.devices, overhead_s)


class JobGraph:
    """Which jobs form a gang, and which jobs come after which."""

    def __init__(self, runs: Collection[JobRun]) -> None:
        self._gangs: defaultdict[str, list[JobRun]] = defaultdict(list)
        self._successors: defaultdict[str, list[JobRun]] = defaultdict(list)
        self._blockers = {run.job.id: len(run.job.after) for run in runs}
        for run in runs:
            self._gangs[run.job.gang].append(run)
            for before in run.job.after:
                self._successors[before].append(run)

    def unblock(self, run: JobRun) -> bool:
        """Note that the job arrived or that one before it ended; whether it can be submitted now."""
        self._blockers[run.job.id] -= 1
        return self._blockers[run.job.id] < 0

    def running_gang(self, run: JobRun) -> list[JobRun]:
        """The running jobs of its gang, or the job alone."""
        return [member for member in self._gangs[run.job.gang] if member.is_running] if run.job.gang else [run]

    def successors(self, run: JobRun) -> list[JobRun]:
        """The jobs that come directly after it."""
        return self._successors[run.job.id]


def best_s(job: Job, classes: Collection[str]) -> float:
    """Time of all the job's work on the fastest of the classes; infinite if it can run on none."""
    if not job.ranks:
        return job.work / job.speed(ANY_DEVICE)
    speed = max((job.speed(name) for name in classes if not name.startswith("generic/")), default=0.0)
    speed = speed or max((job.speed(name) for name in classes), default=0.0)
    return job.work / speed if speed else math.inf
