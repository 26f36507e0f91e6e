"""The requests and leases of a snapshot as jobs: what waits or runs when a simulation begins."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Account, Place
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.simulator.workload import ANY_DEVICE, Job
from hetero_airflow.store.lease_rules import leased_device_class


@dataclass(frozen=True, slots=True)
class InitialJob:
    """A job that waits or runs when the simulation begins, at second 0."""

    job: Job
    submitted_s: float
    """At most 0."""
    place: Place | None = None
    """Where it runs; None if it waits."""
    since_s: float = 0.0
    """When it started; at most 0."""


class EstimateCase(IntEnum):
    """Which value of an estimated interval a simulation takes as true."""

    LOW = 0
    MIDDLE = 1
    HIGH = 2


def initial_jobs(snapshot: Snapshot, now: datetime, case: EstimateCase, assumed_s: float) -> tuple[InitialJob, ...]:
    """The jobs that hold leases, then those that wait, each with the work that is left in that case.

    :param assumed_s: duration of a run without estimates
    """
    workers = {worker.id: worker for worker in snapshot.workers}
    jobs = []
    for lease in snapshot.leases:
        holder = snapshot.holders.get(lease.request_id)
        if holder is None or lease.worker_id not in workers:
            continue
        since_s = (lease.granted_at - now).total_seconds()
        leased = leased_device_class(lease.claims, {d.id: d for d in workers[lease.worker_id].devices})
        held_s = {leased[0] if leased else ANY_DEVICE: -since_s}
        job = expected_job(holder, snapshot.estimates, case, assumed_s, held_s)
        claims = tuple(replace(claim, cores=()) for claim in lease.claims)
        place = Place(holder.id, lease.worker_id, lease.alternative, claims, Account("", "runs already"))
        jobs.append(InitialJob(job, (holder.submitted_at - now).total_seconds(), place, min(since_s, 0.0)))
    for pending in snapshot.pending:
        job = expected_job(pending, snapshot.estimates, case, assumed_s, {})
        jobs.append(InitialJob(job, min((pending.submitted_at - now).total_seconds(), 0.0)))
    return tuple(jobs)


def expected_job(
    pending: PendingRequest, estimates: Estimates, case: EstimateCase, assumed_s: float, held_s: Mapping[str, float]
) -> Job:
    """The job of a request, with the work that is left after the service that it has attained and holds at present.

    Without an estimate of its work, a run takes `assumed_s` from now on, on every device. So does a run that has
    already taken longer than its estimate allows.

    :param held_s: device class → seconds under the present lease
    """
    speeds: dict[str, float] = dict(estimates.speeds.get(pending.task, {}))
    work = estimates.works.get(pending.task)
    remaining_work = assumed_s
    if work is None or not any(speeds.values()):
        speeds = {ANY_DEVICE: 1.0}
    else:
        usual = speeds.setdefault(ANY_DEVICE, sorted(speeds.values())[len(speeds) // 2])
        service = [*pending.attained_service_s.items(), *held_s.items()]
        remaining = work.remaining_after(sum(seconds * speeds.get(name, usual) for name, seconds in service))
        remaining_work = assumed_s * usual if remaining is None else remaining[case]
    return Job(
        pending.id,
        0.0,
        pending.request,
        max(remaining_work, 1e-6),
        speeds,
        task=pending.task_id,
        group=pending.dag_id,
        weight=pending.weight,
        run=pending.run_id,
        gang=pending.gang,
        gang_size=pending.gang_size,
    )
