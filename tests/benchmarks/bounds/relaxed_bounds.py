"""What no scheduler can beat: lower bounds of mean JCT and makespan of a workload on a cluster.

Each is the optimum of a relaxed problem, in which everything that the real one allows is allowed too, so the
real optimum can't be below it. None of them charges a restart, and each ignores which devices are on one host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_airflow.model.worker import Worker
from hetero_airflow.simulator.reports.figures import srpt_total_jct_s
from hetero_airflow.simulator.workload import Job, Workload

from .job_demand import JobDemand, accelerators, alone_s, demand_of
from .linear_programs import least_makespan_s, least_total_jct_s

MAX_LP_JOBS = 2000
"""Above it the linear programs take minutes; the other bounds stay."""


@dataclass(frozen=True, slots=True)
class JctBounds:
    """Lower bounds of the mean JCT in seconds; None where one does not apply."""

    alone_s: float
    """Mean time of each job alone on its fastest class: what a cluster without limits would take."""
    one_machine_s: float | None
    """SRPT on one machine as fast as all devices together. Preemptive SRPT has the least mean completion time on one
    machine (Schrage 1968), and that machine can do whatever the devices can: it may give all its speed to one job. A
    job's size is its device-time on its fastest class; a class counts with the largest share of its fastest speed
    that any job reaches on it. It binds in overload."""
    lp_s: float | None
    """A linear program over job × class × time (`linear_programs.least_total_jct_s`): the only bound that knows that a
    job
    can't use several devices' speed at once and that the fast classes are few."""

    @property
    def best_s(self) -> float:
        """The largest, which is a bound since each is."""
        return max(self.alone_s, self.one_machine_s or 0.0, self.lp_s or 0.0)


@dataclass(frozen=True, slots=True)
class MakespanBounds:
    """Lower bounds of the makespan in seconds, of the last finish from second 0; None where one does not apply."""

    alone_s: float
    """The latest arrival + time alone on the fastest class, along the jobs that come after one another."""
    lp_s: float | None
    """A linear program over job × class (`linear_programs.least_makespan_s`)."""

    @property
    def best_s(self) -> float:
        """The largest."""
        return max(self.alone_s, self.lp_s or 0.0)


def mean_jct_bounds(
    workload: Workload, workers: Sequence[Worker] = (), first: int = 0, last: int | None = None
) -> JctBounds:
    """Lower bounds of the mean JCT of the jobs from number `first` to, and without, `last`.

    The other jobs are as if they were not there: a scheduler may always let them wait. Jobs that come after
    others count from when they could start, which depends on the schedule, so that only `alone_s` holds for them.

    :param workers: the cluster; empty is the workload's own
    :raises ClusterError: a job that can run on no class of the cluster
    """
    jobs = workload.jobs[first:last]
    demand = demand_of(jobs, workers or workload.workers)
    if not jobs:
        return JctBounds(0.0, None, None)
    count, beside_s = len(jobs), math.fsum(demand.beside_s)
    by_itself_s = (float(demand.best_s.sum()) + beside_s) / count
    if any(job.after for job in jobs) or not len(demand.devices):
        return JctBounds(by_itself_s, None, None)
    one_machine_s = (_one_machine_s(demand) + beside_s) / count
    lp_s = None if count > MAX_LP_JOBS else (least_total_jct_s(demand) + beside_s) / count
    return JctBounds(by_itself_s, one_machine_s, lp_s)


def makespan_bounds(workload: Workload, workers: Sequence[Worker] = ()) -> MakespanBounds:
    """Lower bounds of the time at which the last job finishes; parameters and errors as of `mean_jct_bounds`."""
    cluster = workers or workload.workers
    classes = list(accelerators(cluster))
    ends: dict[str, float] = {}
    for job in _after_their_predecessors(workload.jobs):
        ready_s = max([job.arrival_s, *(ends[before] for before in job.after)])
        ends[job.id] = ready_s + min(alone_s(job, classes))
    demand = demand_of(workload.jobs, cluster)
    lp_s = least_makespan_s(demand) if 0 < len(demand.devices) <= MAX_LP_JOBS else None
    return MakespanBounds(max(ends.values(), default=0.0), lp_s)


def _one_machine_s(demand: JobDemand) -> float:
    """Sum of the JCTs under SRPT."""
    share = (demand.best_s[:, None] / demand.alone_s).max(axis=0, initial=0.0)
    sizes = demand.devices * demand.best_s / float((share * demand.capacity).sum() or 1.0)
    return srpt_total_jct_s(demand.arrival_s.tolist(), sizes.tolist())


def _after_their_predecessors(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each behind those that it comes after; jobs in a ring are left out, as they never start."""
    by_id = {job.id: job for job in jobs}
    missing = {job.id: len(job.after) for job in jobs}
    successors: dict[str, list[str]] = {job.id: [] for job in jobs}
    for job in jobs:
        for before in job.after:
            successors[before].append(job.id)
    ready = [job.id for job in jobs if not job.after]
    for done in ready:
        for successor in successors[done]:
            missing[successor] -= 1
            if missing[successor] == 0:
                ready.append(successor)
    return [by_id[job_id] for job_id in ready]
