"""Generated streams by name: ``generated/<stream>_rate<jobs an hour>_jobs<number>_seed<number>``.

=========== ======================================================================================
``gavel``   jobs on one device each, as in Gavel's ``single`` streams
``multi``   on 1 to 8, as in its ``multi`` streams
``philly``  lognormal durations, virtual clusters
``bursty``  the same, with arrivals in bursts
``dags``    runs of five random DAGs; rate and number count runs, and each task is a job
=========== ======================================================================================

The first two need Gavel's ``simulation_throughputs.json`` (see `traces.gavel`). The others need no data set.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.simulator.traces.dag_streams import dag_runs, random_design
from hetero_airflow.simulator.traces.files import trace_folder
from hetero_airflow.simulator.traces.gavel import read_speeds
from hetero_airflow.simulator.traces.job_streams import (
    GAVEL_GANGS,
    bursty_arrivals,
    gavel_kinds,
    gavel_like,
    philly_like,
    poisson_arrivals,
)
from hetero_airflow.simulator.workload import Workload

MAX_JOBS = 200_000
MAX_RATE = 1e6
_DESIGNS = 5

_NAME = re.compile(
    r"(?P<stream>[a-z]+)_rate(?P<rate>[0-9]{1,7}(?:\.[0-9]{1,6})?)_jobs(?P<jobs>[0-9]{1,7})_seed(?P<seed>[0-9]{1,9})"
)


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
