"""Section ``replay``: what part of openb's GPUs is allocated while pods come and go, and some ask for whole workers.

The trace as recorded asks for one GPU in a hundred at most. So its pods are drawn again: sizes and lifetimes as they
were recorded (up to `MAX_DELAY_S`), arrivals at random, so many that they ask for a given part of the GPUs.

Large requests come to a cluster on which small ones have run for an hour. It matters: in an empty cluster, by any
placement, the first large ones find whole workers; and while a large one waits, it gets the worker that another has
left, as the oldest. So placement at random would keep workers together that it could never have put together, for
many hours. Measured, too, as a row of its own: the same requests, the large ones from the start.

What is asked for is a little more than there is, so that a policy can be short of nothing but of good places. Whoever
starts no large request then allocates at most what the small ones ask for: how much there is to be gained is the part
asked for by large ones, so that is varied, and none is singled out.
"""

import hashlib
import itertools
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from baselines import NoReservations
from bench_table import HOUR_S, Table, percent
from fgd import FragmentationMeasure
from packing_by_amounts import BestFitMeasure, LargestCapacity
from scipy.optimize import brentq

from hetero_airflow.matching.feasibility import Feasibility, device_count
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.matching.packing.scorer import PackingScorer
from hetero_airflow.matching.scoring import Allocation, PlacementScorer, TightFitScorer
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.device import device_class
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.consolidation import Consolidation
from hetero_airflow.policies.core.backfill import HeadReservation
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.share_prices import share_prices
from hetero_airflow.policies.policy import Policy
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.reports.figures import MeasuredWindow, measure
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.units import MILLI_PER_DEVICE

SEEDS = range(142, 147)
"""Parameters were tuned on the seeds 42 to 44."""
WORKERS = 40
"""Workers out of 1213. Half of them have 8 GPUs."""
DEMAND = 1.05
"""The demand during the measurement, as a part of all GPUs."""
LARGE_PARTS = (0.1, 0.2, 0.3, 0.5)
"""Parts of the demand from requests for `LARGE` GPUs of one worker."""
LARGE = 8.0
LONGEST_S = HOUR_S
PATIENCE_S = 0.25 * HOUR_S
LARGE_FROM_S = HOUR_S
WARM_UP_S = 2 * HOUR_S
"""By then, all pods that ran when the first large request came have ended."""
END_S = 3 * HOUR_S
CYCLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy without migration."""

    placement: str
    keeps: bool = False
    """Whether devices are reserved for the head of the queue."""
    large_from_s: float = LARGE_FROM_S

    @property
    def label(self) -> str:
        """The name in the tables."""
        from_start = "" if self.large_from_s else ", large from the start"
        return f"{self.placement}{', kept for the head' if self.keeps else ''}{from_start}"


BASELINES = (
    Baseline("random"), Baseline("random", large_from_s=0.0), Baseline("random", keeps=True), Baseline("best_fit"),
    Baseline("fgd"), Baseline("expected_fill"),
)  # fmt: skip
OURS = "**consolidation**"


@dataclass(frozen=True, slots=True)
class Result:
    """One policy under one load."""

    allocated: float
    """Part of all GPUs, on average over the time after the warm-up."""
    large_wait_s: tuple[float, ...]
    """Waits of the large requests that were submitted after the warm-up: until start, departure or the end."""
    large_left: float
    small_left: float
    """Parts of those submitted after the warm-up that did not start."""
    moves_per_h: float


def run(workload: Workload, policy: Policy, name: str) -> Result:
    """Figures of the time after the warm-up."""
    options = Options(cycle_s=CYCLE_S, until_s=END_S)
    record = Simulation(workload, (), policy, name, options).run()
    figures = measure(record, MeasuredWindow(start_s=WARM_UP_S, end_s=END_S))
    large, small = figures.groups["large"], figures.groups["small"]
    moved_s = [interval.end_s for job in record.jobs for interval in job.intervals[:-1]]
    waits = (
        (min(END_S, job.submitted_s + PATIENCE_S) if job.started_s is None else job.started_s) - job.submitted_s
        for job in record.jobs
        if job.group == "large" and job.submitted_s >= WARM_UP_S
    )
    assert figures.busy_utilisation is not None
    return Result(
        figures.busy_utilisation,
        tuple(waits),
        large.never_started / large.jobs,
        small.never_started / small.jobs,
        sum(at_s >= WARM_UP_S for at_s in moved_s) / ((END_S - WARM_UP_S) / HOUR_S),
    )


def tables() -> Iterator[Table]:
    """One table of allocated GPUs by the part of large requests, and one of waits and moves."""
    results: defaultdict[tuple[str, float], list[Result]] = defaultdict(list)
    labels = [*(baseline.label for baseline in BASELINES), OURS]
    for seed, part in itertools.product(SEEDS, LARGE_PARTS):
        for baseline in BASELINES:
            workload = replayed(part, seed, baseline.large_from_s)
            policy = make(baseline.placement, keeps=baseline.keeps, workload=workload, seed=seed)
            results[baseline.label, part].append(run(workload, policy, baseline.placement))
        results[OURS, part].append(run(replayed(part, seed), Consolidation(), "consolidation"))
        lines = (f"{label} {percent(results[label, part][-1].allocated)}" for label in labels)
        print(f"{percent(part)} %, seed {seed}: {'; '.join(lines)}", flush=True)
    yield Table(
        f"GPUs allocated while pods come and go, %: openb's pods on {WORKERS} of its workers",
        f"Mean (lowest to highest) of {len(SEEDS)} seeds, {(END_S - WARM_UP_S) / HOUR_S:g} h after a warm-up of "
        f"{WARM_UP_S / HOUR_S:g} h; large requests come from {LARGE_FROM_S / HOUR_S:g} h on. "
        "The pods are drawn from the default list, with their recorded lifetimes but at most "
        f"{LONGEST_S / HOUR_S:g} h. They request {percent(DEMAND)} % of the GPUs. A column's title is the part of that "
        f"which comes from requests for {LARGE:g} GPUs of one worker. A pod leaves after it has waited for "
        f"{PATIENCE_S / 60:g} min. Kept for the head: devices are reserved for the first waiting request, "
        "as our policies do. The other rows reserve nothing, so no device is idle for a large request, and "
        f"large requests may starve. A policy that starts no large request can allocate at most {percent(DEMAND)} % "
        "less the column's part of it.",
        ("policy", *(f"{percent(part)} %" for part in LARGE_PARTS)),
        [
            *(
                (label, *(_spread([result.allocated for result in results[label, part]]) for part in LARGE_PARTS))
                for label in labels
            ),
            ("gain on random, points", *(_spread(_gains(results, part)) for part in LARGE_PARTS)),
        ],
    )
    yield Table(
        "The same runs: how long large requests waited, and how many moved",
        "Waits in minutes, over all seeds. A request that never started waited until it left or until the end.",
        ("policy", "large", "wait p50", "p95", "large never started, %", "small never started, %", "moves an hour"),
        [
            (
                label, f"{percent(part)} %", *_waits(row_results), *(percent(statistics.fmean(left)) for left in (
                    [result.large_left for result in row_results], [result.small_left for result in row_results]
                )), f"{statistics.fmean(result.moves_per_h for result in row_results):.0f}",
            )
            for (label, part), row_results in results.items()
        ],
    )  # fmt: skip


def _gains(results: Mapping[tuple[str, float], Sequence[Result]], part: float) -> list[float]:
    """By seed, against random placement."""
    pairs = zip(results[OURS, part], results[BASELINES[0].label, part], strict=True)
    return [ours.allocated - baseline.allocated for ours, baseline in pairs]


def _spread(shares: Sequence[float]) -> str:
    return f"{percent(statistics.fmean(shares))} ({percent(min(shares))}–{percent(max(shares))})"


def _waits(results: Sequence[Result]) -> tuple[str, str]:
    waits = [wait for result in results for wait in result.large_wait_s]
    p50, p95 = np.percentile(waits, (50, 95))
    return f"{p50 / 60:.1f}", f"{p95 / 60:.1f}"


# The workload.


def replayed(large: float, seed: int, large_from_s: float = LARGE_FROM_S) -> Workload:
    """Pods drawn from the trace that come and go at a constant mean rate, on workers drawn from it.

    :param large: the part of the demand that is asked for by large requests
    :param large_from_s: when the first of these comes
    """
    rng = random.Random(seed)
    trace = _trace()
    workers = _drawn(trace.workers, rng)
    gpus = sum(device.kind != "cpu" for worker in workers for device in worker.devices)
    jobs: list[Job] = []
    matcher = Matcher(TightFitScorer())
    shapes = {matcher.entry(worker).shape for worker in workers}
    possible = [job for job in trace.jobs if _is_possible(job, shapes, matcher)]
    for part, name in ((1 - large, "small"), (large, "large")):
        pods = [job for job in possible if (job.request.alternatives[0].accelerators == LARGE) == (name == "large")]
        for at_s, pod in _arrivals(pods, part * DEMAND * gpus, rng):
            if name == "large" and at_s < large_from_s:
                continue
            name_, lasts_s = f"{name}-{len(jobs):06}", min(pod.work, LONGEST_S)
            jobs.append(replace(pod, id=name_, arrival_s=at_s, work=lasts_s, patience_s=PATIENCE_S, group=name))
    jobs.sort(key=lambda job: (job.arrival_s, job.id))
    return Workload(f"openb replayed, seed {seed}", tuple(jobs), workers)


@cache
def _trace() -> Workload:
    return load_trace("openb/default")


def _arrivals(pods: Sequence[Job], gpus: float, rng: random.Random) -> list[tuple[float, Job]]:
    """A Poisson process of pods, stretched until they ask for just so many GPUs while it is measured."""
    per_s = gpus / statistics.fmean(job.request.alternatives[0].accelerators * min(job.work, LONGEST_S) for job in pods)
    drawn = rng.choices(pods, k=math.ceil(3 * per_s * END_S))
    at_s = np.cumsum([rng.expovariate(per_s) for _ in drawn])
    lasts_s = np.array([min(job.work, LONGEST_S) for job in drawn])
    devices = np.array([job.request.alternatives[0].accelerators for job in drawn])
    wanted = gpus * (END_S - WARM_UP_S)

    def excess(stretch: float) -> float:
        inside_s = np.minimum(stretch * at_s + lasts_s, END_S) - np.maximum(stretch * at_s, WARM_UP_S)
        return float(devices @ np.maximum(inside_s, 0.0)) - wanted

    step = 1.02 if excess(1.0) > 0 else 1 / 1.02
    last = step
    while excess(last) * excess(last / step) > 0:
        last *= step
    at_s *= brentq(excess, *sorted((last / step, last)))
    return [(at, job) for at, job in zip(at_s.tolist(), drawn, strict=True) if at < END_S]


def _drawn(workers: Sequence[Worker], rng: random.Random) -> tuple[Worker, ...]:
    """A systematic sample of the workers by size, from a random start, so that each kind has its part."""
    ranked = sorted(
        workers, key=lambda worker: (sorted(device_class(d) for d in worker.devices), _cores(worker), worker.id)
    )
    step = len(ranked) / WORKERS
    start = rng.random() * step
    return tuple(ranked[int(start + number * step)] for number in range(WORKERS))


def _cores(worker: Worker) -> int:
    return worker.cpu.capacity_milli if worker.cpu else 0


def _is_possible(job: Job, shapes: Collection[Shape], matcher: Matcher) -> bool:
    """Whether a worker of one of the shapes could run it."""
    return any(
        matcher.feasibility(alternative, shape).is_servable
        for alternative in job.request.alternatives
        for shape in shapes
    )


# The baselines.


class AnyPlace:
    """Random placement: on any worker where the request fits, and there on any devices.

    The lots are hashes of what is asked and of when each device of the worker was last granted, which no two workers
    have in common once something has run on them.
    """

    uses_history = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(
        self, alternative: Alternative, shape: Shape, held: Sequence[Allocation], free: Sequence[int]
    ) -> tuple[int, ...]:
        """The workers with the greatest random numbers."""
        ranked = sorted(free, key=lambda position: (self._lot(alternative, held, position), position), reverse=True)
        return tuple(sorted(ranked[: device_count(alternative)]))

    def terms(
        self,
        alternative: Alternative,
        shape: Shape,
        held: Sequence[Allocation],
        verdict: Feasibility,
        chosen: Sequence[int],
    ) -> Mapping[str, float]:
        """The random number of a worker."""
        return {"lot": self._lot(alternative, held, -1)}

    def _lot(self, alternative: Alternative, held: Sequence[Allocation], position: int) -> float:
        granted = ",".join(f"{grant.granted_s}/{grant.share_milli}" for grant in held)
        text = f"{self._seed} {alternative.key} {position} {granted}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48


def make(name: str, *, keeps: bool, workload: Workload, seed: int) -> Policy:
    """A policy without migration. With `keeps`, devices are reserved for the head of the queue."""
    return ListPolicy(
        name,
        by_priority,
        _placement(name, workload, seed),
        reservations=HeadReservation if keeps else NoReservations,
    )


def _placement(name: str, workload: Workload, seed: int) -> PlacementScorer:
    if name == "random":
        return AnyPlace(seed)
    if name == "best_fit":
        cores = max(map(_cores, workload.workers))
        gpus = max(sum(device.kind != "cpu" for device in worker.devices) for worker in workload.workers)
        return PackingScorer(BestFitMeasure(LargestCapacity(cores, gpus * MILLI_PER_DEVICE)))
    counts = Counter(job.request.alternatives[0] for job in workload.jobs)
    mix = tuple(
        (alternative, number / counts.total())
        for alternative, number in sorted(counts.items(), key=lambda item: item[0].key)
    )
    return PackingScorer(FragmentationMeasure(mix) if name == "fgd" else ExpectedFillMeasure(mix, share_prices(mix)))
