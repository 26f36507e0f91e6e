"""Random DAGs that run repeatedly: chains, fans, and layers with random edges."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from hetero_airflow.simulator.traces.gavel import request_for
from hetero_airflow.simulator.traces.job_streams import SYNTHETIC_KINDS, JobKind, choose, job_of, lognormal
from hetero_airflow.simulator.workload import Job, Workload

_RUN_TO_RUN = 0.2
"""Deviation of the logarithm of a task's duration from run to run."""


@dataclass(frozen=True, slots=True)
class DagDesign:
    """A DAG, with its tasks in an order in which they can run."""

    name: str
    kinds: tuple[JobKind, ...]
    durations_s: tuple[float, ...]
    """The typical duration of each task on the first model of its kind."""
    after: tuple[tuple[int, ...], ...]
    """For each task, the numbers of the tasks that it waits for, all smaller than its own."""


def chain(tasks: int) -> list[tuple[int, ...]]:
    """Each task after the one before.

    >>> chain(3)
    [(), (0,), (1,)]
    """
    return [(number - 1,) if number else () for number in range(tasks)]


def fan(width: int) -> list[tuple[int, ...]]:
    """One task, then `width` tasks at the same time, then one after all of them.

    >>> fan(2)
    [(), (0,), (0,), (1, 2)]
    """
    return [(), *[(0,)] * width, tuple(range(1, width + 1))]


def layers(rng: random.Random, depth: int, width: int) -> list[tuple[int, ...]]:
    """Up to `width` tasks in each of `depth` layers, each after one or more tasks of the layer above."""
    after: list[tuple[int, ...]] = []
    above: list[int] = []
    for _ in range(depth):
        here = list(range(len(after), len(after) + 1 + int(rng.random() * width)))
        for _task in here:
            chosen = [number for number in above if rng.random() < 0.5]
            after.append(tuple(chosen or ([choose(rng, above)] if above else [])))
        above = here
    return after


def random_design(rng: random.Random, name: str, kinds: Sequence[JobKind] = SYNTHETIC_KINDS) -> DagDesign:
    """A chain, a fan or layers of 3 to 20 tasks, with lognormal durations of minutes to hours (median 10 minutes)."""
    shape = choose(rng, ("chain", "fan", "layers"))
    size = 3 + int(rng.random() * 6)
    after = chain(size) if shape == "chain" else fan(size) if shape == "fan" else layers(rng, size, 3)
    return DagDesign(
        name, tuple(choose(rng, kinds) for _ in after), tuple(lognormal(rng, 6.4, 1.0) for _ in after), tuple(after)
    )


def dag_runs(rng: random.Random, designs: Sequence[DagDesign], runs: int, arrivals: Iterable[float]) -> Workload:
    """That many runs, each of a random design; each task is a job of the design's group.

    :param arrivals: times in seconds at which runs begin, at least as many as `runs`
    """
    request = cache(request_for)
    jobs: list[Job] = []
    for run, arrival_s in enumerate(islice(arrivals, runs)):
        design = choose(rng, designs)
        for task, (kind, usual_s) in enumerate(zip(design.kinds, design.durations_s, strict=True)):
            duration_s = usual_s * lognormal(rng, 0.0, _RUN_TO_RUN)
            after = tuple(f"{run}.{before}" for before in design.after[task])
            named = JobKind(f"task{task} {kind.name}", kind.devices, kind.speeds, kind.spread)
            job = job_of(named, f"{run}.{task}", arrival_s, duration_s, design.name, request, after)
            jobs.append(replace(job, run=str(run)))
    return Workload("generated/dags", tuple(jobs))
