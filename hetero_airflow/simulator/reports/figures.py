"""The figures of a simulation: completion times, waits, makespan, utilisation.

On a finite trace, better scheduling lowers the busy utilisation, since the same work takes less device-time. It does
not lower the goodput utilisation. Compare both with the completion times of the same run.

No policy can beat the lower bounds. Each of them is the optimum of a problem in which all that the cluster can do is
allowed, so no schedule is below it. Restarts cost nothing in it, and it ignores which devices are on one host. A job
that ran on accelerators only is taken to need them.
"""

import heapq
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_airflow.errors import TraceError
from hetero_airflow.simulator.record import JobOutcome, JobRecord, SimulationRecord


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The part of a simulation that is measured: jobs by their number, and a span of time in seconds.

    A job counts if its number is in the range and it was submitted within the span. Utilisation and throughput are
    measured over the span; if it has no bound, from the first submission of the counted jobs to their last finish.
    They include the devices of all jobs, since jobs before and after the measured ones hold devices too.
    """

    first_job: int = 0
    last_job: int | None = None
    """The first that does not count."""
    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        is_job_range = self.first_job >= 0 and (self.last_job is None or self.first_job < self.last_job)
        if not (is_job_range and 0 <= self.start_s < (math.inf if self.end_s is None else self.end_s)):
            raise TraceError(
                f"figures of the jobs {self.first_job} to {self.last_job}, {self.start_s:g} to {self.end_s} s",
                found="an empty range",
                remedy="Give a start before the end, neither below 0",
            )

    def has(self, time_s: float | None) -> bool:
        """Whether the time is within the span; None, for what never happened, is not."""
        return time_s is not None and self.start_s <= time_s and (self.end_s is None or time_s <= self.end_s)


@dataclass(frozen=True, slots=True)
class DurationSpread:
    """The distribution of durations in seconds; percentiles are interpolated linearly between values."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "DurationSpread | None":
        """None if there is no value.

        >>> DurationSpread.of([1.0, 2.0, 6.0])
        DurationSpread(mean=3.0, p50=2.0, p95=5.6, p99=5.92)
        """
        ordered = sorted(values)
        if not ordered:
            return None
        at = statistics.quantiles(ordered * 2 if len(ordered) == 1 else ordered, n=100, method="inclusive")
        return cls(statistics.fmean(ordered), at[49], at[94], at[98])


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Figures of the counted jobs of one group, or of all groups."""

    jobs: int
    finished: int
    """At any time."""
    never_started: int
    """These have no wait that could be counted."""
    jct_s: DurationSpread | None
    """Of the finished jobs."""
    wait_s: DurationSpread | None
    """Queueing delay, start − submit, of the started jobs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one simulation within one window."""

    workload: str
    policy: str
    window: MeasuredWindow
    options: Mapping[str, str | int | float]
    devices: Mapping[str, int]
    all: GroupFigures
    groups: Mapping[str, GroupFigures]
    makespan_s: float | None
    """Last finish − first submission of the counted jobs; None if one has not finished or left."""
    least_mean_jct_s: float | None
    """No mean JCT of the finished jobs is less (`least_mean_jct_s`)."""
    least_makespan_s: float | None
    """No makespan is less; None if there is none."""
    busy_utilisation: float | None
    """Device-time held / (devices × time)."""
    goodput_utilisation: float | None
    """Device-time that the finished jobs' work takes on each job's fastest class / (devices × time).

    The work counts at the times when the job made progress."""
    overhead: float | None
    """Share of the device-time held without progress."""
    finished_in_window: int
    """Jobs in the range that finished within the span, whenever they were submitted."""
    jobs_per_hour: float | None
    """`finished_in_window` per hour."""
    preemptions: int
    """Of the counted jobs."""
    migrations: int


@dataclass(frozen=True, slots=True)
class DecisionTiming:
    """Wall-clock time of the decisions. It differs from run to run, so it is not part of `Figures`."""

    cycles: int
    cycle_s: DurationSpread | None
    slowest_s: float
    placements_per_s: float


def measure(record: SimulationRecord, window: MeasuredWindow | None = None) -> Figures:
    """The figures of the jobs and the time in the window; without a window, of all."""
    window = window or MeasuredWindow()
    ranged = record.jobs[window.first_job : window.last_job]
    counted = [job for job in ranged if window.has(job.submitted_s)]
    start_s, end_s = _measured_span(counted, window)
    span_s = max(0.0, end_s - start_s)
    held, lost, good = _device_seconds(record, start_s, end_s)
    offered = sum(record.devices.values()) * span_s
    ends = [job.finished_s for job in counted if job.finished_s is not None]
    is_over = all(job.outcome in (JobOutcome.FINISHED, JobOutcome.LEFT) for job in counted)
    finished = sum(window.has(job.finished_s) for job in ranged)
    makespan_s = max(ends) - min(job.submitted_s for job in counted) if ends and is_over else None
    groups: dict[str, list[JobRecord]] = {}
    for job in counted:
        groups.setdefault(job.group, []).append(job)
    return Figures(
        workload=record.workload,
        policy=record.policy,
        window=window,
        options=dict(record.options),
        devices=dict(record.devices),
        all=_group_figures(counted),
        groups={name: _group_figures(groups[name]) for name in sorted(groups)},
        makespan_s=makespan_s,
        least_mean_jct_s=least_mean_jct_s(_finished(counted), record.devices),
        least_makespan_s=None if makespan_s is None else least_makespan_s(_finished(counted), record.devices),
        busy_utilisation=held / offered if offered else None,
        goodput_utilisation=good / offered if offered else None,
        overhead=lost / held if held else None,
        finished_in_window=finished,
        jobs_per_hour=finished / span_s * 3600 if span_s else None,
        preemptions=sum(job.preemptions for job in counted),
        migrations=sum(job.migrations for job in counted),
    )


def measure_timing(record: SimulationRecord) -> DecisionTiming:
    """The time that the decisions took."""
    total_s = math.fsum(record.decision_s)
    return DecisionTiming(
        len(record.decision_s),
        DurationSpread.of(record.decision_s),
        max(record.decision_s, default=0.0),
        record.placements / total_s if total_s else 0.0,
    )


def _finished(jobs: list[JobRecord]) -> list[JobRecord]:
    return [job for job in jobs if job.finished_s is not None]


def _group_figures(jobs: list[JobRecord]) -> GroupFigures:
    return GroupFigures(
        jobs=len(jobs),
        finished=sum(job.finished_s is not None for job in jobs),
        never_started=sum(job.started_s is None for job in jobs),
        jct_s=DurationSpread.of(job.finished_s - job.submitted_s for job in jobs if job.finished_s is not None),
        wait_s=DurationSpread.of(job.started_s - job.submitted_s for job in jobs if job.started_s is not None),
    )


def _measured_span(counted: list[JobRecord], window: MeasuredWindow) -> tuple[float, float]:
    first_s = min((job.submitted_s for job in counted), default=window.start_s)
    ends = [interval.end_s for job in counted for interval in job.intervals]
    last_s = max(ends, default=first_s) if window.end_s is None else window.end_s
    return (window.start_s or first_s), last_s


def _device_seconds(record: SimulationRecord, start_s: float, end_s: float) -> tuple[float, float, float]:
    """Device-seconds of accelerators within the span: held, held without progress, and as on the fastest class."""
    held, lost, good = [], [], []
    for job in record.jobs:
        intervals = [interval for interval in job.intervals if interval.device_class in record.devices]
        productive = math.fsum((i.end_s - i.start_s - i.overhead_s) * i.devices for i in intervals)
        weight = job.best_device_s / productive if job.outcome is JobOutcome.FINISHED and productive else 0.0
        for i in intervals:
            inside = max(0.0, min(i.end_s, end_s) - max(i.start_s, start_s))
            idle = max(0.0, min(i.start_s + i.overhead_s, end_s) - max(i.start_s, start_s))
            held.append(inside * i.devices)
            lost.append(idle * i.devices)
            good.append((inside - idle) * i.devices * weight)
    return math.fsum(held), math.fsum(lost), math.fsum(good)


# -- lower bounds ------------------------------------------------------------------------------------------------------


def least_mean_jct_s(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> float | None:
    """No mean JCT of these jobs is less, in seconds; None if there are no jobs.

    The greater of two bounds: no job waits and each has its fastest devices; or one machine, as fast as all devices
    together, runs the shortest remaining job first (SRPT, which is optimal there: Schrage 1968).

    :param devices: device class → how many there are
    """
    if not jobs:
        return None
    contending = _contending(jobs, devices)
    count = sum(devices.values())
    arrivals_s, sizes_s = [job.submitted_s for job in contending], [job.best_device_s / count for job in contending]
    beside_s = math.fsum(map(_alone_s, jobs)) - math.fsum(map(_alone_s, contending))
    return max(math.fsum(map(_alone_s, jobs)), beside_s + srpt_total_jct_s(arrivals_s, sizes_s)) / len(jobs)


def least_makespan_s(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> float | None:
    """No time from the first submission to the last end is less, in seconds; None if there are no jobs."""
    if not jobs:
        return None
    first_s = min(job.submitted_s for job in jobs)
    work_s = math.fsum(job.best_device_s / sum(devices.values()) for job in _contending(jobs, devices))
    return max(work_s, *(job.submitted_s + _alone_s(job) - first_s for job in jobs))


def srpt_total_jct_s(arrivals_s: Sequence[float], sizes_s: Sequence[float]) -> float:
    """Sum of the JCTs of jobs on one machine that runs the job with the least remaining size first.

    >>> srpt_total_jct_s([0.0, 1.0], [10.0, 2.0])
    14.0
    """
    order = sorted(range(len(arrivals_s)), key=arrivals_s.__getitem__)
    unfinished: list[tuple[float, int]] = []
    now_s, total_s, coming = 0.0, 0.0, 0
    while unfinished or coming < len(order):
        if not unfinished:
            now_s = max(now_s, arrivals_s[order[coming]])
        while coming < len(order) and arrivals_s[order[coming]] <= now_s:
            heapq.heappush(unfinished, (sizes_s[order[coming]], order[coming]))
            coming += 1
        remaining_s, job = heapq.heappop(unfinished)
        next_s = arrivals_s[order[coming]] if coming < len(order) else math.inf
        if now_s + remaining_s <= next_s:
            now_s += remaining_s
            total_s += now_s - arrivals_s[job]
        else:
            heapq.heappush(unfinished, (remaining_s - (next_s - now_s), job))
            now_s = next_s
    return total_s


def _alone_s(job: JobRecord) -> float:
    """The time of all its work on its fastest devices."""
    return job.best_device_s / job.devices if job.devices else 0.0


def _contending(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> list[JobRecord]:
    """The jobs that ran on these devices only."""
    return [job for job in jobs if job.intervals and all(part.device_class in devices for part in job.intervals)]
