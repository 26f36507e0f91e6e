"""Philly, October 2017: one pool for all teams against a share of its own for each virtual cluster."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from bench_table import Row, Table, hours, percent
from numpy.typing import NDArray

from hetero_airflow import policies
from hetero_airflow.model.worker import Worker
from hetero_airflow.registry import load
from hetero_airflow.simulator.cluster import parse_cluster, simulated_worker
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.folder import trace_folder
from hetero_airflow.simulator.workload import Job, Workload

MONTH_S = 31 * 86400.0
POOLS = (480, 640, 800, 960)
BEAT_S = 600.0
"""Decisions are made at multiples of it, so that a queue of thousands is not decided at each of 47,000 arrivals."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: how many devices are busy in each `BEAT_S` of the month, and what jobs waited."""

    busy: NDArray[np.float64]
    is_queued: NDArray[np.bool_]
    wait_s: float
    finished: int


def shares(pool: int) -> dict[str, int]:
    """Virtual cluster → devices, in proportion to the machines that it had; the largest remainders are rounded up."""
    with (trace_folder(None) / "philly" / "philly_vc.csv").open() as file:
        machines = {row["vc"]: int(row["node num"]) for row in csv.DictReader(file)}
    exact = {vc: pool * number / sum(machines.values()) for vc, number in machines.items()}
    given = {vc: int(share) for vc, share in exact.items()}
    for vc in sorted(exact, key=lambda vc: given[vc] - exact[vc])[: pool - sum(given.values())]:
        given[vc] += 1
    return given


def split(workload: Workload, pool: int) -> tuple[Workload, list[Worker]]:
    """Each job may only use its own virtual cluster's devices; one that asks for more of them than there are, all."""
    given = shares(pool)
    workers = [simulated_worker(vc, {"nvidia/v100": number}, vc=vc) for vc, number in given.items()]
    known: dict[tuple[str, str], Job] = {}

    def own(job: Job) -> Job:
        key = (job.group, job.request.fingerprint)
        if key not in known:
            asked = job.request.alternatives[0]
            changed = {"labels": {"vc": job.group}, "count": min(asked.count, given[job.group])}
            request = job.request.model_copy(update={"alternatives": (asked.model_copy(update=changed),)})
            known[key] = replace(job, request=request)
        return replace(job, request=known[key].request)

    return replace(workload, jobs=tuple(own(job) for job in workload.jobs)), workers


def run(workload: Workload, workers: Sequence[Worker], row: Row) -> Run:
    """The month under a policy; what has not started by its end has waited until then."""
    policy = load(policies.GROUP, policies.POLICIES, row.policy)()
    options = Options(cycle_s=BEAT_S, until_s=MONTH_S, knowledge=row.knowledge)
    return read(Simulation(workload, workers, policy, row.policy, options).run())


def read(record: SimulationRecord) -> Run:
    """What is measured of a record."""
    beats = int(MONTH_S / BEAT_S)
    busy, queued, waits = np.zeros(beats + 1), np.zeros(beats + 1), []
    for job in record.jobs:
        if job.submitted_s >= MONTH_S:
            continue
        started_s = MONTH_S if job.started_s is None else job.started_s
        waits.append(started_s - job.submitted_s)
        if waits[-1] > BEAT_S:
            _add(queued, job.submitted_s, started_s, 1.0)
        for stay in job.intervals:
            _add(busy, stay.start_s, min(stay.end_s, MONTH_S), stay.devices)
    finished = sum(job.finished_s is not None and job.finished_s <= MONTH_S for job in record.jobs)
    return Run(np.cumsum(busy)[:-1], np.cumsum(queued)[:-1] > 0.5, float(np.mean(waits)), finished)


def _add(changes: NDArray[np.float64], start_s: float, end_s: float, amount: float) -> None:
    changes[int(start_s / BEAT_S)] += amount
    changes[int(end_s / BEAT_S)] -= amount


def tables() -> Iterator[Table]:
    """A row for each size of the pool."""
    workload = load_trace("philly/2017-10")
    rows = []
    for pool in POOLS:
        own = run(*split(workload, pool), Row("", "fifo"))
        shared = run(workload, parse_cluster(f"v100={pool}"), Row("", "fifo"))
        window = shared.is_queued
        ratio = shared.busy[window].sum() / own.busy[window].sum() if window.any() else float("nan")
        rows.append((
            str(pool), f"{ratio:.2f}", percent(float(window.mean())), hours(own.wait_s), hours(shared.wait_s),
            f"{shared.wait_s / own.wait_s:.3f}", percent(float(own.busy.mean() / pool)),
            percent(float(shared.busy.mean() / pool)), str(own.finished), str(shared.finished),
        ))  # fmt: skip
    yield Table(
        "Philly, October 2017: one pool against a share for each of 11 virtual clusters",
        "47,192 recorded jobs, FIFO with backfill on both sides. A share is in proportion to the machines that a virtual "
        "cluster had; a job that asks for more than its share gets all of it. Throughput is device-time used, pool by "
        "shares, within the saturated window: the part of the month in which jobs wait for the pool, too.",
        (
            "devices", "throughput ×", "window, % of month", "wait, shares, h", "wait, pool, h", "wait ×",
            "busy, shares, %", "busy, pool, %", "finished, shares", "finished, pool",
        ),
        rows,
    )  # fmt: skip
