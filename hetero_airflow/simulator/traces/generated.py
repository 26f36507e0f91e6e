"""Generated streams by name: ``generated/<stream>_rate<jobs an hour>_jobs<number>_seed<number>``.

=========== ======================================================================================
``gavel``   jobs on one device each, as in Gavel's ``single`` streams
``multi``   on 1 to 8, as in its ``multi`` streams
``philly``  lognormal durations, virtual clusters
``bursty``  the same, with arrivals in bursts
``dags``    runs of five random DAGs; rate and number count runs, and each task is a job
=========== ======================================================================================

The first two need Gavel's ``simulation_throughputs.json`` (see `traces.gavel`). The others need no data set.

The same seed gives the same jobs, to the last bit: all distributions here use only ``random.Random.random``, whose
sequence Python promises not to change.
"""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import TypeVar

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.traces.files import trace_folder
from hetero_airflow.simulator.traces.gavel import Table, read_speeds, request_for
from hetero_airflow.simulator.workload import Job, Workload

T = TypeVar("T")

MAX_JOBS = 200_000
MAX_RATE = 1e6
_DESIGNS = 5

_NAME = re.compile(
    r"(?P<stream>[a-z]+)_rate(?P<rate>[0-9]{1,7}(?:\.[0-9]{1,6})?)_jobs(?P<jobs>[0-9]{1,7})_seed(?P<seed>[0-9]{1,9})"
)
_RUN_TO_RUN = 0.2
"""Deviation of the logarithm of a task's duration from run to run."""


# -- random jobs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobKind:
    """Jobs that are alike: their name, number of devices, and speed on each model."""

    name: str
    devices: int
    speeds: Mapping[str, float]
    """NVIDIA's model (``v100``) → units of work a second, above 0."""


SYNTHETIC_KINDS = (
    JobKind("convolution", 1, {"v100": 10.0, "p100": 5.0, "k80": 1.5}),
    JobKind("recurrent", 1, {"v100": 10.0, "p100": 8.0, "k80": 3.0}),
    JobKind("embedding", 1, {"v100": 10.0, "p100": 12.0, "k80": 9.0}),
    JobKind("generative", 1, {"v100": 10.0, "p100": 4.0, "k80": 1.0}),
)
"""Invented, with ratios between models as Gavel measured them: a K80 has 0.1 to 0.9 of the speed of a V100."""

GAVEL_GANGS = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}
"""Devices → share of the jobs in Gavel's streams with gangs (``multi``, ``m300``)."""

PHILLY_SIZES: Mapping[int, tuple[float, float, float]] = {
    1: (0.954, 7.11, 1.75),
    2: (0.017, 5.26, 4.01),
    4: (0.017, 9.16, 2.84),
    8: (0.012, 10.23, 2.69),
}
"""GPUs → share of the jobs, and mean and deviation of the logarithm of their seconds. Measured on October 2017 of the
Philly traces: 47,192 jobs, without the 0.2 % on more than 8 GPUs."""


_LONGEST_S = 60 * 86400.0


def pick(rng: random.Random, weights: Mapping[T, float]) -> T:
    """One of the keys, with a probability proportional to its weight."""
    remainder = rng.random() * math.fsum(weights.values())
    for value, weight in weights.items():
        remainder -= weight
        if remainder < 0:
            return value
    return value


def choose(rng: random.Random, values: Sequence[T]) -> T:
    """One of the values, all equally probable."""
    return values[min(int(rng.random() * len(values)), len(values) - 1)]


def exponential(rng: random.Random, mean: float) -> float:
    """An exponentially distributed number with that mean."""
    return -mean * math.log1p(-rng.random())


def lognormal(rng: random.Random, mu: float, sigma: float) -> float:
    """A number whose logarithm is normally distributed, with mean `mu` and deviation `sigma`."""
    return math.exp(mu + sigma * NormalDist().inv_cdf(rng.random() or 2**-53))


def poisson_arrivals(rng: random.Random, rate_per_hour: float) -> Iterator[float]:
    """Times in seconds of a Poisson process, from 0 on."""
    now_s = 0.0
    while True:
        yield now_s
        now_s += exponential(rng, 3600 / rate_per_hour)


def bursty_arrivals(
    rng: random.Random, rate_per_hour: float, burst: float = 20.0, quiet_s: float = 14_400.0, burst_s: float = 1200.0
) -> Iterator[float]:
    """Times in seconds of a Markov-modulated Poisson process with two states, `rate_per_hour` in the long run.

    The durations of the states are exponentially distributed, with the means `quiet_s` and `burst_s`. In the second
    state, arrivals are `burst` times as frequent.
    """
    quiet_rate = rate_per_hour / 3600 * (quiet_s + burst_s) / (quiet_s + burst * burst_s)
    now_s, is_burst = 0.0, False
    while True:
        ends_s = now_s + exponential(rng, burst_s if is_burst else quiet_s)
        rate = quiet_rate * (burst if is_burst else 1.0)
        while (now_s := now_s + exponential(rng, 1 / rate)) < ends_s:
            yield now_s
        now_s, is_burst = ends_s, not is_burst


def gavel_kinds(speeds: Table) -> tuple[JobKind, ...]:
    """The job types that Gavel measured, by name and number of devices, with the models on which they can run."""
    return tuple(
        JobKind(name, devices, {model: speed for model, speed in rates.items() if speed > 0})
        for (name, devices), rates in sorted(speeds.items())
    )


def gavel_duration_s(rng: random.Random) -> float:
    """Seconds on a V100: 10^1.5 to 10^3 minutes for four jobs of five, 10^3 to 10^4 minutes for the fifth."""
    low, high = (1.5, 3.0) if rng.random() < 0.8 else (3.0, 4.0)
    return 60.0 * 10 ** float(low + (high - low) * rng.random())


def gavel_like(
    rng: random.Random,
    jobs: int,
    arrivals: Iterable[float],
    kinds: Sequence[JobKind] = SYNTHETIC_KINDS,
    gangs: Mapping[int, float] | None = None,
) -> Workload:
    """Jobs as in Gavel's evaluation (OSDI 2020, section 7.1): kind and duration are independent.

    Deviation: one random generator; the publisher has one each for arrivals, kinds and durations.

    :param arrivals: times in seconds, at least as many as `jobs`
    :param gangs: devices → share of the jobs, with a kind for each number of devices; None: one device each
    """
    of_size = {size: [kind for kind in kinds if kind.devices == size] for size in (gangs or {1: 1.0})}
    request = cache(request_for)
    drawn_jobs = []
    for number, arrival_s in enumerate(islice(arrivals, jobs)):
        kind = choose(rng, of_size[pick(rng, gangs or {1: 1.0})])
        drawn_jobs.append(job_of(kind, str(number), arrival_s, gavel_duration_s(rng), "gavel", request))
    return Workload("generated/gavel", tuple(drawn_jobs))


def job_of(
    kind: JobKind, id: str, arrival_s: float, duration_s: float, group: str, request: Callable[..., DeviceRequest],
    after: tuple[str, ...] = (),
) -> Job:  # fmt: skip
    """A job of that kind that takes that long on its first model."""
    reference = next(iter(kind.speeds.values()))
    return Job(
        id=id,
        arrival_s=arrival_s,
        request=request(tuple(sorted(kind.speeds)), kind.devices),
        work=duration_s * reference,
        speeds={f"nvidia/{model}": speed for model, speed in kind.speeds.items()},
        task=f"{kind.name} x{kind.devices}",
        group=group,
        after=after,
    )


def philly_like(rng: random.Random, jobs: int, arrivals: Iterable[float], groups: int = 11) -> Workload:
    """Jobs with lognormal durations by number of GPUs, in virtual clusters each half as busy as the one before.

    A duration is between a second and 60 days, the span of the Philly traces.
    """
    request = cache(lambda gpus: DeviceRequest.parse(f"gpu:{gpus}"))
    shares = {f"vc{number}": 0.5**number for number in range(groups)}
    drawn_jobs = []
    for number, arrival_s in enumerate(islice(arrivals, jobs)):
        gpus = pick(rng, {size: share for size, (share, _, _) in PHILLY_SIZES.items()})
        _, mu, sigma = PHILLY_SIZES[gpus]
        work = min(max(1.0, lognormal(rng, mu, sigma)), _LONGEST_S)
        drawn_jobs.append(Job(str(number), arrival_s, request(gpus), work, task=f"x{gpus}", group=pick(rng, shares)))
    return Workload("generated/philly", tuple(drawn_jobs))


# -- random DAGs that run repeatedly -----------------------------------------------------------------------------------


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
            named = JobKind(f"task{task} {kind.name}", kind.devices, kind.speeds)
            job = job_of(named, f"{run}.{task}", arrival_s, duration_s, design.name, request, after)
            jobs.append(replace(job, run=str(run)))
    return Workload("generated/dags", tuple(jobs))


# -- streams by name ---------------------------------------------------------------------------------------------------


def load(name: str, folder: Path | None) -> Workload:
    """The stream of that name, without a cluster.

    :raises TraceError: no such stream, a number out of bounds, or measured speeds are missing
    """
    match = _NAME.fullmatch(name)
    stream = _STREAMS.get(match["stream"]) if match else None
    if match is None or stream is None or not (0 < float(match["rate"]) <= MAX_RATE and int(match["jobs"]) > 0):
        raise TraceError(
            f"the trace generated/{shorten(name)}",
            found="no stream of that name",
            remedy=f"Write it as generated/gavel_rate4.8_jobs8000_seed1000, with one of {', '.join(_STREAMS)}",
        )
    if int(match["jobs"]) > MAX_JOBS:
        raise TraceError(
            f"the trace generated/{shorten(name)}", found=f"{match['jobs']} jobs", remedy=f"Ask for at most {MAX_JOBS}"
        )
    rng = random.Random(int(match["seed"]))  # noqa: S311  a simulation, not a secret
    workload = stream(rng, float(match["rate"]), int(match["jobs"]), folder)
    return replace(workload, name=f"generated/{name}")


def _gavel(
    rng: random.Random, rate: float, jobs: int, folder: Path | None, gangs: Mapping[int, float] | None = None
) -> Workload:
    kinds = gavel_kinds(read_speeds(trace_folder(folder) / "gavel"))
    return gavel_like(rng, jobs, _arrivals(rng, rate), kinds, gangs)


def _philly(rng: random.Random, rate: float, jobs: int, folder: Path | None) -> Workload:
    return philly_like(rng, jobs, _arrivals(rng, rate))


def _bursty(rng: random.Random, rate: float, jobs: int, folder: Path | None) -> Workload:
    return philly_like(rng, jobs, bursty_arrivals(_child(rng), rate))


def _dags(rng: random.Random, rate: float, jobs: int, folder: Path | None) -> Workload:
    designs = [random_design(rng, f"dag{number}") for number in range(_DESIGNS)]
    return dag_runs(rng, designs, jobs, _arrivals(rng, rate))


def _arrivals(rng: random.Random, rate: float) -> Iterator[float]:
    return poisson_arrivals(_child(rng), rate)


def _child(rng: random.Random) -> random.Random:
    """A separate generator for arrivals, so that another rate does not change the jobs."""
    return random.Random(int(rng.random() * 2**53))  # noqa: S311  a simulation, not a secret


_STREAMS: dict[str, Callable[[random.Random, float, int, Path | None], Workload]] = {
    "gavel": _gavel,
    "multi": partial(_gavel, gangs=GAVEL_GANGS),
    "philly": _philly,
    "bursty": _bursty,
    "dags": _dags,
}
