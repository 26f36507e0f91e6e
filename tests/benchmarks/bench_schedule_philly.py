"""Philly, October 2017: one pool for all teams, compared with a share for each virtual cluster."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from bench_table import Table, hours, percent
from numpy.typing import NDArray

from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.files import trace_folder
from hetero_airflow.simulator.workload import Job, Workload

MONTH_S = 31 * 86400.0
POOLS = (512, 640, 768)
BEAT_S = 60.0
"""Decisions are made at multiples of this, as with heartbeats."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happened in each `BEAT_S` of the month: ``float [beats]``, and how long jobs waited."""

    busy: NDArray[np.float64]
    """Held devices."""
    waiting: NDArray[np.float64]
    """Jobs that wait, for longer than a beat."""
    ended: NDArray[np.float64]
    """Jobs that end."""
    waits_s: tuple[float, ...]

    @property
    def wait_s(self) -> float:
        """The mean. A job that has not started by the end of the month has waited until then."""
        return float(np.mean(self.waits_s))


def shares(pool: int) -> dict[str, int]:
    """Virtual cluster → devices, in proportion to the machines that it had; the largest remainders are rounded up."""
    with (trace_folder(None) / "philly" / "philly_vc.csv").open() as file:
        machines = {row["vc"]: int(row["node num"]) for row in csv.DictReader(file)}
    exact = {vc: pool * number / sum(machines.values()) for vc, number in machines.items()}
    given = {vc: int(share) for vc, share in exact.items()}
    for vc in sorted(exact, key=lambda vc: given[vc] - exact[vc])[: pool - sum(given.values())]:
        given[vc] += 1
    return given


def run_shares(workload: Workload, pool: int) -> Run:
    """Each virtual cluster alone. A job that requests more devices than the cluster has gets all of them."""
    runs = []
    for vc, devices in shares(pool).items():
        jobs = tuple(_at_most(job, devices) for job in workload.jobs if job.group == vc)
        runs.append(run(replace(workload, jobs=jobs), devices))
    return Run(
        sum(run.busy for run in runs),
        sum(run.waiting for run in runs),
        sum(run.ended for run in runs),
        tuple(wait for run in runs for wait in run.waits_s),
    )


def _at_most(job: Job, devices: int) -> Job:
    alternative = job.request.alternatives[0]
    if alternative.count <= devices:
        return job
    fewer = alternative.model_copy(update={"count": devices})
    return replace(job, request=job.request.model_copy(update={"alternatives": (fewer,)}))


def run(workload: Workload, devices: int) -> Run:
    """The month under FIFO."""
    options = Options(cycle_s=BEAT_S, until_s=MONTH_S)
    return read(Simulation(workload, parse_cluster(f"v100={devices}"), Fifo(), "fifo", options).run())


def read(record: SimulationRecord) -> Run:
    """The figures of a record."""
    beats = int(MONTH_S / BEAT_S)
    busy, queued, ended, waits = np.zeros(beats + 1), np.zeros(beats + 1), np.zeros(beats + 1), []
    for job in record.jobs:
        if job.submitted_s >= MONTH_S:
            continue
        started_s = MONTH_S if job.started_s is None else job.started_s
        waits.append(started_s - job.submitted_s)
        if waits[-1] > BEAT_S:
            _add(queued, job.submitted_s, started_s, 1.0)
        for interval in job.intervals:
            _add(busy, interval.start_s, min(interval.end_s, MONTH_S), interval.devices)
        if job.finished_s is not None and job.finished_s < MONTH_S:
            ended[int(job.finished_s / BEAT_S)] += 1
    return Run(np.cumsum(busy)[:-1], np.cumsum(queued)[:-1], ended[:-1], tuple(waits))


def _add(changes: NDArray[np.float64], start_s: float, end_s: float, amount: float) -> None:
    changes[int(start_s / BEAT_S)] += amount
    changes[int(end_s / BEAT_S)] -= amount


def tables() -> Iterator[Table]:
    """A row for each size of the pool."""
    workload = load_trace("philly/2017-10")
    rows = []
    for pool in POOLS:
        partitioned, shared = run_shares(workload, pool), run(workload, pool)
        window = shared.waiting > 0.5
        rows.append((
            str(pool), percent(float(window.mean())),
            f"{shared.busy[window].sum() / partitioned.busy[window].sum():.2f}" if window.any() else "–",
            f"{shared.ended[window].sum() / partitioned.ended[window].sum():.2f}" if window.any() else "–",
            hours(partitioned.wait_s), hours(shared.wait_s), f"{shared.wait_s / partitioned.wait_s:.3f}",
            percent(float(partitioned.busy.mean() / pool)), percent(float(shared.busy.mean() / pool)),
            str(int(partitioned.ended.sum())), str(int(shared.ended.sum())),
        ))  # fmt: skip
    yield Table(
        "Philly, October 2017: one pool against a share for each of 11 virtual clusters",
        "47,192 recorded jobs, FIFO on both sides. The share of a virtual cluster is in proportion to its machines. A "
        "job that requests more than the share gets the whole share. The month is saturated while jobs wait even with "
        "one pool. × is the value of the pool divided by that of the shares.",
        (
            "devices", "saturated, % of the month", "device-time in it, ×", "jobs ended in it, ×",
            "wait, shares, h", "wait, pool, h", "wait, ×", "busy, shares, %", "busy, pool, %",
            "jobs ended, shares", "jobs ended, pool",
        ),
        rows,
    )  # fmt: skip
