"""Makespan and the time of a DAG run on generated streams of DAG runs, by policies that know the DAGs and others."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from bench_table import HOUR_S, ON_60_S, Row, Table, make_policy
from bounds.relaxed_bounds import makespan_bounds

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces.generated import dag_runs, poisson_arrivals, random_design
from hetero_airflow.simulator.workload import Workload

SEEDS = (0, 1, 2)
CLUSTER = "v100=4,p100=4,k80=4"
DESIGNS = 12
STREAMS = {"40 runs at once": (40, None), "150 runs, 4 an hour": (150, 4.0)}
"""Name → number of DAG runs, and how many begin an hour."""

ROWS = (
    Row("fifo", "fifo", Knowledge.ORACLE),
    Row("priority", "priority", Knowledge.ORACLE),
    Row("sjf (knows durations)", "sjf", Knowledge.ORACLE),
    Row("assignment (knows speeds)", "assignment"),
    Row("critical_path (knows durations)", "critical_path", Knowledge.ORACLE),
    Row("critical_path (learns from runs)", "critical_path", Knowledge.LEARNED),
    Row("heft (knows durations)", "heft", Knowledge.ORACLE),
    Row("heft (learns from runs)", "heft", Knowledge.LEARNED),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """The makespan, and the mean time of a DAG run, in seconds."""

    makespan_s: float
    run_s: float


def stream(name: str, seed: int) -> Workload:
    """Generated runs of twelve random DAGs."""
    runs, per_hour = STREAMS[name]
    rng = random.Random(seed)
    designs = [random_design(rng, f"dag{number}") for number in range(DESIGNS)]
    return dag_runs(rng, designs, runs, [0.0] * runs if per_hour is None else poisson_arrivals(rng, per_hour))


def simulated(workload: Workload, row: Row) -> Ended:
    """One stream under one policy."""
    policy = make_policy(row.policy)
    options = replace(ON_60_S, knowledge=row.knowledge)
    record = Simulation(workload, parse_cluster(CLUSTER), policy, row.policy, options).run()
    return ended(workload, {job.id: job.finished_s or 0.0 for job in record.jobs})


def ended(workload: Workload, ends: dict[str, float]) -> Ended:
    """The figures, from the end of each job."""
    lasts: dict[str, float] = {}
    for job in workload.jobs:
        lasts[job.run] = max(lasts.get(job.run, 0.0), ends[job.id])
    begins = {job.run: job.arrival_s for job in workload.jobs}
    return Ended(max(lasts.values()), fmean(lasts[run] - begins[run] for run in begins))


def bound(workload: Workload) -> Ended:
    """Lower bounds. For a DAG run, the bound is its critical path on the fastest devices."""
    workers = parse_cluster(CLUSTER)
    runs: dict[str, Workload] = {}
    for job in workload.jobs:
        known_run = runs.get(job.run, Workload(job.run, ()))
        runs[job.run] = replace(known_run, jobs=(*known_run.jobs, job))
    alone = [makespan_bounds(run, workers).alone_s - run.jobs[0].arrival_s for run in runs.values()]
    return Ended(makespan_bounds(workload, workers).best_s, fmean(alone))


def tables() -> Iterator[Table]:
    """One table a stream."""
    for name in STREAMS:
        workloads = [stream(name, seed) for seed in SEEDS]
        bounds = [bound(workload) for workload in workloads]
        rows = []
        for row in ROWS:
            figures = [simulated(workload, row) for workload in workloads]
            ratios = [figure.makespan_s / least.makespan_s for figure, least in zip(figures, bounds, strict=True)]
            rows.append((row.label, *_both(ratios, 1.0), *_both([figure.run_s for figure in figures], HOUR_S)))
        least_s = [least.run_s for least in bounds]
        rows.append(("lower bound", "1.00", "–", *_both(least_s, HOUR_S)))
        yield Table(
            f"DAG runs: {name}, on 4 V100 + 4 P100 + 4 K80",
            f"Chains, fans and layers of 3 to 20 tasks by {DESIGNS} designs, seeds {', '.join(map(str, SEEDS))}. "
            "The makespan is a multiple of its lower bound (critical path, linear program). The time of a DAG run is "
            "from its start to the end of its last task. Its bound is the critical path alone on the fastest devices.",
            ("policy", "makespan / bound", "spread", "mean time of a DAG run, h", "spread"),
            rows,
        )


def _both(values: list[float], unit: float) -> tuple[str, str]:
    """Mean and standard deviation over the seeds."""
    return f"{fmean(values) / unit:.2f}", f"{stdev(values) / unit:.2f}"
