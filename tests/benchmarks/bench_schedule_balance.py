"""Load balancing: earliest completion with migration, against a queue for each device that jobs join when they come."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from baselines import LoadBalance
from bench_schedule_jct import CLUSTER
from bench_table import HOUR_S, ON_60_S, Table
from least_queued import least_queued

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace

TIMES_H = (100, 120, 150)


def tables() -> Iterator[Table]:
    """How many jobs have ended by given times. The bound: each job runs alone on its fastest type."""
    workload, workers = load_trace("gavel/h300_seed0"), parse_cluster(CLUSTER)
    options = replace(ON_60_S, knowledge=Knowledge.ORACLE)
    ends = {
        "least-queued": _ends(least_queued(workload, workers)),
        "**load_balance**": _ends(Simulation(workload, workers, LoadBalance(), "load_balance", options).run()),
        "bound: each job runs alone on its fastest type": [
            job.arrival_s + job.work / max(job.speeds.values()) for job in workload.jobs
        ],
    }
    done = {
        name: [sum(end_s <= time_h * HOUR_S for end_s in ends_s) for time_h in TIMES_H] for name, ends_s in ends.items()
    }
    first = done["least-queued"]
    rows = [
        (
            name,
            *(f"{number} ({100 * (number / least - 1):+.0f} %)" for number, least in zip(numbers, first, strict=True)),
        )
        for name, numbers in done.items()
    ]
    yield Table(
        "How many jobs of h300 have ended by a given time",
        "Least-queued: each job joins the queue of the device with the fewest jobs, and stays there. Policies that use "
        "durations know them. A migration costs 60 s.",
        ("policy", *(f"by {time_h} h" for time_h in TIMES_H)),
        rows,
    )


def _ends(record: SimulationRecord) -> Iterable[float]:
    return [job.finished_s for job in record.jobs if job.finished_s is not None]
