"""Rehearses a DAG run: simulates it on the workers of a snapshot, among the tasks that are there. Pure.

A rehearsal is three simulations, in which all runs are short, usual and long by their estimates. The first and the last
bound what is reported for each task.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.simulator.initial_jobs import EstimateCase, InitialJob, expected_job, initial_jobs
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.planned_tasks import PlannedTask, RehearsalNote, runnable_tasks
from hetero_airflow.simulator.record import JobRecord
from hetero_airflow.simulator.simulation import NEVER_S, Simulation
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload, task_edges


@dataclass(frozen=True, slots=True)
class RehearsedTask:
    """What one task instance is expected to do; seconds from the start of the DAG run, as (short, usual, long)."""

    id: str
    request: DeviceRequest | None
    worker_id: str | None
    """Where it runs in the usual case; None if it needs no device."""
    device_class: str | None
    ready_s: Interval
    start_s: Interval
    end_s: Interval
    is_assumed: bool
    """Its duration is not known; an assumed one was taken."""

    @property
    def wait_s(self) -> float:
        """How long it waits for devices in the usual case."""
        return self.start_s.middle - self.ready_s.middle


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The tasks in the order of their usual start, and what would go wrong."""

    tasks: tuple[RehearsedTask, ...]
    problems: tuple[RehearsalNote, ...]
    other_tasks: int
    """Tasks of other DAG runs that waited or ran when it began."""
    notes: tuple[RehearsalNote, ...] = ()

    @property
    def end_s(self) -> Interval:
        """When the last task ends."""
        ends = [task.end_s for task in self.tasks]
        return Interval(*(max((end[case] for end in ends), default=0.0) for case in EstimateCase))


def rehearse(
    snapshot: Snapshot,
    tasks: Sequence[PlannedTask],
    policy: Policy,
    now: datetime,
    *,
    starts_in_s: float = 0.0,
    assumed_s: float = 600.0,
    deadline_s: float | None = None,
) -> Rehearsal:
    """What the tasks do if their DAG run starts this many seconds after the snapshot.

    They compete with the tasks of the snapshot only: DAG runs that begin later are not known.

    :param assumed_s: duration of a task without estimates
    :param deadline_s: seconds after the start of the run by which its last task should end
    """
    runnable, problems, notes = runnable_tasks(snapshot, tasks, policy)
    cases = [
        _simulate(
            snapshot,
            [(task, _job(task, snapshot.estimates, case, starts_in_s, assumed_s)) for task in runnable],
            initial_jobs(snapshot, now, case, assumed_s),
            policy,
        )
        for case in EstimateCase
    ]
    rehearsed = [
        _rehearsed_task(task, [records[task.id] for records in cases], starts_in_s, snapshot.estimates)
        for task in runnable
    ]
    rehearsed.sort(key=lambda task: (task.start_s.middle, task.id))
    late = _time_problems(rehearsed, {task.id: task for task in runnable}, deadline_s)
    other_tasks = len(snapshot.leases) + len(snapshot.pending)
    return Rehearsal(tuple(rehearsed), (*problems, *late), other_tasks, tuple(notes))


def _simulate(
    snapshot: Snapshot,
    planned: Sequence[tuple[PlannedTask, Job]],
    initial: Sequence[InitialJob],
    policy: Policy,
) -> dict[str, JobRecord]:
    """Task instance → how its job went."""
    initial_ids = {initial_job.job.id for initial_job in initial}
    ids = {task.id: f"planned {task.id}" if task.id in initial_ids else task.id for task, _ in planned}
    jobs = tuple(
        replace(job, id=ids[task.id], after=tuple(ids[before] for before in task.after if before in ids))
        for task, job in planned
    )
    edges = task_edges(jobs, {ids[task.id]: task.task for task, _ in planned})
    simulation = Simulation(
        Workload("rehearsal", jobs),
        snapshot.workers,
        policy,
        "rehearsal",
        Options(measured=(len(initial), len(initial) + len(jobs))),
        initial_jobs=initial,
        estimates=replace(snapshot.estimates, edges={**snapshot.estimates.edges, **edges}),
    )
    return dict(zip(ids, simulation.run().jobs[len(initial) :], strict=True))


def _job(task: PlannedTask, estimates: Estimates, case: EstimateCase, starts_in_s: float, assumed_s: float) -> Job:
    """The job of a planned task, which does not wait for any other yet."""
    pending = task.pending(task.id)
    if pending is None:
        dag_id, task_id = task.task
        duration_s = assumed_s if task.duration_s is None else task.duration_s[case]
        nothing = DeviceRequest.parse("cpu")
        job = Job(task.id, 0.0, nothing, max(duration_s, 1e-6), {ANY_DEVICE: 1.0}, task_id, dag_id, ranks=0)
    else:
        job = expected_job(pending, estimates, case, assumed_s, {})
    return replace(job, arrival_s=starts_in_s, run="rehearsal")


def _rehearsed_task(
    task: PlannedTask, cases: Sequence[JobRecord], starts_in_s: float, estimates: Estimates
) -> RehearsedTask:
    usual = cases[EstimateCase.MIDDLE]
    first = usual.intervals[0] if usual.intervals else None
    is_known = task.duration_s is not None if task.request is None else task.task in estimates.works

    def since_start(times_s: Sequence[float | None]) -> Interval:
        seconds = [NEVER_S if time_s is None else time_s - starts_in_s for time_s in times_s]
        return Interval(min(seconds), seconds[EstimateCase.MIDDLE], max(seconds))

    return RehearsedTask(
        task.id,
        task.request,
        first.worker_id if first else None,
        first.device_class if first else None,
        since_start([case.submitted_s for case in cases]),
        since_start([case.started_s for case in cases]),
        since_start([case.finished_s for case in cases]),
        not is_known,
    )


def _time_problems(
    rehearsed: Sequence[RehearsedTask], tasks: Mapping[str, PlannedTask], deadline_s: float | None
) -> Iterator[RehearsalNote]:
    """Tasks that never start, wait or run for too long, or end too late."""
    for task in rehearsed:
        if task.end_s.middle >= NEVER_S:
            text = "never gets its devices: what it waits for is held by tasks that do not end"
            yield RehearsalNote(task.id, text)
            continue
        wait_limit_s = None if task.request is None else task.request.wait_timeout_s
        if wait_limit_s is not None and task.wait_s > wait_limit_s:
            text = f"waits {task.wait_s:.0f} s for {task.request}, longer than its {wait_limit_s:g} s"
            yield RehearsalNote(task.id, text)
        run_s, limit_s = task.end_s.middle - task.start_s.middle, tasks[task.id].limit_s
        if limit_s is not None and run_s > limit_s:
            text = f"runs {run_s:.0f} s, longer than its execution_timeout of {limit_s:g} s"
            yield RehearsalNote(task.id, text)
    last = max(rehearsed, key=lambda task: task.end_s.middle, default=None)
    if last is not None and deadline_s is not None and deadline_s < last.end_s.middle < NEVER_S:
        text = f"ends the run after {last.end_s.middle:.0f} s, later than {deadline_s:g} s"
        yield RehearsalNote(last.id, text)
