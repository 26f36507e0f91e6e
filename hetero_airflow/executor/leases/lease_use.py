"""Whether a lease is used, and by which run. Pure.

A lease belongs to one run. A task that is queued again has the same request, so its last run may still have the lease:
its process may be frozen, and another scheduler may be waiting for its end. And one scheduler starts the task of a
lease, once: two messages with one lease could begin two runs, one after the other.
"""

from datetime import timedelta
from enum import StrEnum

from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.lease import Lease, LeaseState

CLOCK_DIFFERENCE = timedelta(seconds=10)
"""By how much the clocks of hosts may differ: as much as Airflow's API server allows, [api_auth] jwt_leeway."""


class LeaseUse(StrEnum):
    """What a live lease says about the next run of its task."""

    UNUSED = "unused"
    """Nobody has started its task: the scheduler with which the task waits may do so."""
    IN_USE = "in use"
    """A run may be about to begin under it, or is over: nothing else may start."""
    BEGUN = "begun"
    """Airflow has a run under it that goes on. The scheduler that started it may be dead: the run is followed."""
    LEFT_OVER = "left over"
    """Its run is over for Airflow, since the task is queued again, or can't begin any more. The next run waits for its
    processes to be gone, and gets a new lease."""


def lease_use(lease: Lease, process: TaskProcess, liveness: Liveness, scheduler: str) -> LeaseUse:
    """The use of a lease whose task waits here.

    Where Airflow does not know of a run yet, a process may be about to begin, or its message may be on the way. It is
    left alone as long as a scheduler renews the lease. So is a lease under which a run may have begun, if the clocks of
    the scheduler and the API server differ. Airflow lets only one process begin a queued task.

    :param process: Airflow's row of the task
    :param liveness: whether a process of the lease runs, or may still start
    :param scheduler: the id of this scheduler, which has not started the task under this lease
    """
    if is_running(lease, process):
        return LeaseUse.BEGUN
    if process.state != TaskInstanceState.QUEUED:
        return LeaseUse.IN_USE
    if has_begun(lease, process):
        return LeaseUse.LEFT_OVER
    if has_begun(lease, process, CLOCK_DIFFERENCE) or liveness is Liveness.ALIVE:
        return LeaseUse.LEFT_OVER if lease.state is LeaseState.EXPIRED else LeaseUse.IN_USE
    if lease.starter in (None, scheduler):
        return LeaseUse.UNUSED
    can_not_begin = liveness is Liveness.GONE or lease.state is LeaseState.EXPIRED
    return LeaseUse.LEFT_OVER if can_not_begin else LeaseUse.IN_USE


def process_of_lease(lease: Lease, process: TaskProcess) -> TaskProcess:
    """What Airflow's row says about the run of this lease: a queued task's row still names the process before it."""
    if process.state != TaskInstanceState.QUEUED or has_begun(lease, process):
        return process
    return TaskProcess(process.state)


def is_run_over(lease: Lease, process: TaskProcess) -> bool:
    """Whether the run of a lease is over for Airflow.

    A task that waits to be queued, or is queued, has had its run under the lease or is still to have it.
    """
    if process.state in (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED):
        return has_begun(lease, process)
    return process.state != TaskInstanceState.RUNNING


def is_running(lease: Lease, process: TaskProcess) -> bool:
    """Whether the run of a lease goes on for Airflow."""
    return process.state == TaskInstanceState.RUNNING and has_begun(lease, process, CLOCK_DIFFERENCE)


def has_begun(lease: Lease, process: TaskProcess, difference: timedelta = timedelta(0)) -> bool:
    """Whether Airflow has a report of a process since the lease was granted. Airflow stores the start time of a run.

    :param difference: by how much the clock of the lease's scheduler may be ahead
    """
    return process.seen_at is not None and process.seen_at >= lease.granted_at - difference
