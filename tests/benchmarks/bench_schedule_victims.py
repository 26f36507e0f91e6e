"""Whose devices are taken back: device-seconds lost on Philly's October by our victims and by last-in-first-out ones.

Both sides are the policy `priority` with the same order, placement and minimum run time; they differ in the victims.
Tasks do not save at the notice: they lose the work since the last periodic checkpoint, and the restart.
"""

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from bench_table import HOUR_S, Table, spread

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.request import Priority as Class
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.request_progress import RequestProgress
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Job, Workload

DAYS = 9
"""Days of October. The pool of 640 devices is full for much of the last two days."""
END_S = DAYS * 86400.0
BEAT_S = 60.0
PER_MACHINE = 8
POOL, MACHINES = "v100=640", f"v100=80x{PER_MACHINE}"
SEEDS = (0, 1, 2)

Mix = tuple[tuple[Class, int], ...]
USUAL: Mix = ((Class.URGENT, 10), (Class.MEDIUM, 60), (Class.LOW, 30))
MOSTLY_LOW: Mix = ((Class.URGENT, 10), (Class.MEDIUM, 30), (Class.LOW, 60))


@dataclass(frozen=True, slots=True)
class Case:
    """One setting in which both are compared."""

    label: str
    cluster: str = MACHINES
    checkpoint_s: float = 1800.0
    mix: Mix = USUAL
    seeds: Sequence[int] = SEEDS[:1]
    min_run_s: float | None = None
    """The minimum run time on the side of LIFO; None: as on ours."""


CASES = (
    Case("one pool of 640, a checkpoint every 30 min", POOL, seeds=SEEDS),
    Case("80 machines of 8, every 30 min", seeds=SEEDS),
    Case("80 machines of 8, every 10 min", checkpoint_s=600.0),
    Case("80 machines of 8, every 2 h", checkpoint_s=7200.0),
    Case("80 machines of 8, 10 % urgent, 30 % medium, 60 % low", mix=MOSTLY_LOW),
    Case("80 machines of 8, last in may be first out at once", min_run_s=0.0),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run."""

    lost_device_s: float
    """Device-seconds without lasting progress: restarts, and lost work."""
    preemptions: int
    urgent_wait_s: float
    """The mean, until the first start."""
    jct_s: float
    """The mean over all submitted jobs. A job that has not ended counts until the end."""


def last_in_first_out(min_run_s: float | None) -> Policy:
    """The policy `priority`, but the victim is the task of the lower classes that started last."""
    preemption = PreemptionRules(_class_and_attained_service, min_run_s, is_priority_class=True)
    return ListPolicy(
        "last in, first out",
        by_priority,
        TightFitScorer(),
        preemption=partial(LeastLossPreemption, "last in, first out", preemption),
    )


def _class_and_attained_service(progress: RequestProgress, estimates: Estimates) -> Rank:
    """A later start is a greater rank. Waiting requests have no rank, so equal classes never give way."""
    stay_s = progress.total_service_s - sum(progress.pending.attained_service_s.values())
    return float(progress.pending.request.priority.rank), -max(0.0, round(stay_s, 3))


def draw_classes(workload: Workload, mix: Mix, seed: int) -> Workload:
    """Give each job a random class."""
    rng = random.Random(seed)
    drawn = rng.choices([class_ for class_, _ in mix], [share for _, share in mix], k=len(workload.jobs))
    pairs = zip(workload.jobs, drawn, strict=True)
    return replace(workload, jobs=tuple(replace(job, request=_of_class(job.request, class_)) for job, class_ in pairs))


@cache
def _of_class(request: DeviceRequest, class_: Class) -> DeviceRequest:
    return request.model_copy(update={"priority": class_})


def split_gangs(workload: Workload) -> Workload:
    """Split a job that requests more devices than a machine has into a gang of equal parts."""
    return replace(workload, jobs=tuple(map(_split, workload.jobs)))


def _split(job: Job) -> Job:
    alternative = job.request.alternatives[0]
    ranks = math.ceil(alternative.count / PER_MACHINE)
    if ranks == 1:
        return job
    part = alternative.model_copy(update={"count": math.ceil(alternative.count / ranks)})
    return replace(job, ranks=ranks, request=job.request.model_copy(update={"alternatives": (part,)}))


@cache
def _october() -> Workload:
    workload = load_trace("philly/2017-10")
    return replace(workload, jobs=tuple(job for job in workload.jobs if job.arrival_s < END_S))


@cache
def run(cluster: str, checkpoint_s: float, mix: Mix, seed: int, is_ours: bool, min_run_s: float | None) -> Outcome:
    """One simulation."""
    policy = PriorityPolicy() if is_ours else last_in_first_out(min_run_s)
    plain = _october() if cluster == POOL else split_gangs(_october())
    workload = draw_classes(plain, mix, seed)
    options = Options(cycle_s=BEAT_S, until_s=END_S, checkpoint_s=checkpoint_s, saves_at_notice=False)
    jobs = Simulation(workload, parse_cluster(cluster), policy, "priority", options).run().jobs
    urgent = {job.id for job in workload.jobs if job.request.priority is Class.URGENT}
    waits = [(END_S if job.started_s is None else job.started_s) - job.submitted_s for job in jobs if job.id in urgent]
    return Outcome(
        math.fsum(interval.overhead_s * interval.devices for job in jobs for interval in job.intervals),
        sum(job.preemptions for job in jobs),
        statistics.fmean(waits),
        statistics.fmean((END_S if job.finished_s is None else job.finished_s) - job.submitted_s for job in jobs),
    )


def compare(case: Case) -> Mapping[bool, list[Outcome]]:
    """Whether the victims are ours → the outcome with each seed."""
    world = case.cluster, case.checkpoint_s, case.mix
    return {
        is_ours: [run(*world, seed, is_ours, None if is_ours else case.min_run_s) for seed in case.seeds]
        for is_ours in (True, False)
    }


def _row(case: Case) -> tuple[str, ...]:
    results = compare(case)
    ours, baseline = results[True], results[False]
    pairs = zip(ours, baseline, strict=True)
    return (
        case.label, str(len(case.seeds)),
        *(spread([result.lost_device_s / HOUR_S for result in side], 0) for side in (baseline, ours)),
        spread([our_result.lost_device_s / baseline_result.lost_device_s for our_result, baseline_result in pairs], 2),
        *(spread([result.preemptions for result in side], 0) for side in (baseline, ours)),
        *(spread([result.urgent_wait_s for result in side], 0) for side in (baseline, ours)),
        *(spread([result.jct_s / HOUR_S for result in side], 2) for side in (baseline, ours)),
    )  # fmt: skip


def tables() -> Iterator[Table]:
    """A row for each case."""
    yield Table(
        f"Philly, 1 to {DAYS} October 2017: device-hours lost to preemption",
        f"{len(_october().jobs):,} recorded jobs on 640 devices; random classes (10 % urgent, 60 % medium, 30 % low "
        "unless a row says otherwise). A lower class gives way to a higher one. Tasks do not save at the notice, so a "
        "preemption loses the work since the last periodic checkpoint and the time of the restart, on each device. "
        "LIFO is `priority` that preempts the youngest task of the lowest class. Mean ± deviation over seeds. × is our "
        "value divided by that of LIFO with the same seed.",
        (
            "world", "seeds", "lost, LIFO", "lost, ours", "×", "preemptions, LIFO", "ours",
            "urgent wait, s, LIFO", "ours", "mean JCT, h, LIFO", "ours",
        ),
        list(map(_row, CASES)),
    )  # fmt: skip
