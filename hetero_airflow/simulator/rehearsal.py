"""What would happen: a DAG run simulated on the workers, among the tasks, of a snapshot. Pure.

Each rehearsal is three simulations, in which all runs are short, usual and long by their estimates; the first
and last bound what is told of each task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.simulator.gang_size import placeable_gang
from hetero_airflow.simulator.initial_jobs import EstimateCase, expected_job, initial_jobs
from hetero_airflow.simulator.options import START, Options
from hetero_airflow.simulator.record import JobRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload

NEVER_S = 10 * 365 * 86400.0
"""What does not happen within the simulation is told to happen then."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task instance of a DAG run that has not begun."""

    id: str
    """Unique in the run: the task's id, and of a mapped one the number of the instance."""
    task: TaskName
    request: DeviceRequest | None
    """None for a task that needs no device."""
    after: tuple[str, ...] = ()
    weight: int = 1
    duration_s: Interval | None = None
    """Of a task that needs no device, where it is known."""
    limit_s: float | None = None
    """Airflow ends it when it has run for longer."""
    gang: str = ""
    """Tasks of one gang, in the order of their ranks, are placed all together or not at all; empty for one of its
    own."""
    gang_size: int = 1
    least: int = 1
    """With how many its gang goes on without the others."""
    is_count_known: bool = True
    """False: only the run tells how many instances its task has; those planned are the fewest that it runs with."""


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
    """Nothing is known of how long it takes; an assumed duration was taken."""

    @property
    def wait_s(self) -> float:
        """For devices, in the usual case."""
        return self.start_s.middle - self.ready_s.middle


@dataclass(frozen=True, slots=True)
class RehearsalProblem:
    """Something that would go wrong with a task instance."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class RehearsalNote:
    """In what the rehearsal of a task differs from what was asked."""

    id: str
    """Of the first instance that it is true of."""
    text: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The tasks in the order of their usual start, and what would go wrong."""

    tasks: tuple[RehearsedTask, ...]
    misses: tuple[RehearsalProblem, ...]
    standing: int
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
    options: Options | None = None,
) -> Rehearsal:
    """What becomes of the tasks if their DAG run starts so many seconds after the snapshot.

    Only what stands in the snapshot competes with them: DAG runs that begin later are not foreseen. A gang is
    rehearsed with all its ranks, or where these could never be placed together, with the most that could.

    :param assumed_s: how long a task runs of which nothing is known
    :param deadline_s: after the start of the run, by which its last task should have ended
    """
    notes = list(_unknown_counts(tasks))
    misses = list(_placement_problems(snapshot, tasks))
    tasks = _with_sized_gangs(snapshot, tasks, policy, notes, misses)
    possible = _without(tasks, {miss.id for miss in misses}, misses)
    records = [
        _simulate(snapshot, possible, policy, now, case, starts_in_s, assumed_s, options) for case in EstimateCase
    ]
    told = [
        _rehearsed_task(task, [record[task.id] for record in records], starts_in_s, snapshot.estimates)
        for task in possible
    ]
    told.sort(key=lambda one: (one.start_s.middle, one.id))
    misses += _time_problems(told, {task.id: task for task in possible}, deadline_s)
    return Rehearsal(tuple(told), tuple(misses), len(snapshot.leases) + len(snapshot.pending), tuple(notes))


def _unknown_counts(tasks: Sequence[PlannedTask]) -> Iterator[RehearsalNote]:
    first_workers: dict[TaskName, PlannedTask] = {}
    for task in tasks:
        if not task.is_count_known:
            first_workers.setdefault(task.task, task)
    for task in first_workers.values():
        planned = f"one gang of {task.gang_size} is" if task.gang else "one is"
        yield RehearsalNote(task.id, f"how many instances there are is known only in the run; {planned} planned")


def _placement_problems(snapshot: Snapshot, tasks: Sequence[PlannedTask]) -> list[RehearsalProblem]:
    misses = []
    for task in tasks:
        if task.request is None or task.gang:
            continue
        checks = [check_worker(one, worker) for one in task.request.alternatives for worker in snapshot.workers]
        if not any(fits or (reason is not None and reason.is_transient) for fits, reason in checks):
            reason = next((str(reason) for _, reason in checks), "there is no worker")
            misses.append(RehearsalProblem(task.id, f"no known worker could ever run {task.request}: {reason}"))
    return misses


def _with_sized_gangs(
    snapshot: Snapshot,
    tasks: Sequence[PlannedTask],
    policy: Policy,
    notes: list[RehearsalNote],
    misses: list[RehearsalProblem],
) -> list[PlannedTask]:
    """The tasks without ranks that their gangs go on without; what can't be as asked is noted, or is a miss."""
    gangs: defaultdict[str, list[PlannedTask]] = defaultdict(list)
    for task in tasks:
        if task.gang:
            gangs[task.gang].append(task)
    sizes: dict[str, int] = {}
    left_out: set[str] = set()
    for gang, members in gangs.items():
        most, least = members[0].gang_size, members[0].least
        asked = [pending for one in members if (pending := _pending(one, one.id)) is not None]
        room = placeable_gang(snapshot, asked, least, policy)
        sizes[gang] = room.size
        if room.size == 0:
            text = f"its gang of {most if least == most else f'{least} to {most}'} can't be placed: {room.reason}"
            misses += (RehearsalProblem(one.id, text) for one in members)
        elif room.size < most:
            notes.append(
                RehearsalNote(members[0].id, f"its gang is planned with {room.size} of {most} ranks: {room.reason}")
            )
            left_out |= {one.id for one in members[room.size :]}
    return [replace(one, gang_size=sizes.get(one.gang, 1)) for one in tasks if one.id not in left_out]


def _without(tasks: Sequence[PlannedTask], lost: set[str], misses: list[RehearsalProblem]) -> list[PlannedTask]:
    """The tasks that do not come after one that can't run; the others are noted as misses."""
    left = [task for task in tasks if task.id not in lost]
    while True:
        behind = {task.id: next(one for one in task.after if one in lost) for task in left if lost & {*task.after}}
        if not behind:
            return left
        misses += (
            RehearsalProblem(id_, f"comes after {before}, which would not end well") for id_, before in behind.items()
        )
        lost = lost | behind.keys()
        left = [task for task in left if task.id not in lost]


def _simulate(
    snapshot: Snapshot,
    tasks: Sequence[PlannedTask],
    policy: Policy,
    now: datetime,
    case: EstimateCase,
    starts_in_s: float,
    assumed_s: float,
    options: Options | None,
) -> dict[str, JobRecord]:
    standing = initial_jobs(snapshot, now, case, assumed_s)
    taken = {one.job.id for one in standing}
    ids = {task.id: f"planned {task.id}" if task.id in taken else task.id for task in tasks}
    jobs = tuple(_job(task, ids, snapshot.estimates, case, starts_in_s, assumed_s) for task in tasks)
    measured = (len(standing), len(standing) + len(jobs))
    simulation = Simulation(
        Workload("rehearsal", jobs),
        snapshot.workers,
        policy,
        "rehearsal",
        replace(options or Options(), measured=measured),
        standing=standing,
        estimates=replace(snapshot.estimates, edges={**snapshot.estimates.edges, **_edges(tasks)}),
    )
    return dict(zip([task.id for task in tasks], simulation.run().jobs[len(standing) :], strict=True))


def _edges(tasks: Sequence[PlannedTask]) -> dict[TaskName, tuple[TaskName, ...]]:
    """Task → those that come right after it in the run."""
    names = {task.id: task.task for task in tasks}
    after: dict[TaskName, dict[TaskName, None]] = {}
    for task in tasks:
        for before in task.after:
            if before in names:
                after.setdefault(names[before], {})[task.task] = None
    return {name: tuple(found) for name, found in after.items()}


def _job(
    task: PlannedTask,
    ids: dict[str, str],
    estimates: Estimates,
    case: EstimateCase,
    starts_in_s: float,
    assumed_s: float,
) -> Job:
    pending = _pending(task, ids[task.id])
    if pending is None:
        dag_id, task_id = task.task
        duration_s = assumed_s if task.duration_s is None else task.duration_s[case]
        nothing = DeviceRequest.parse("cpu")
        job = Job(ids[task.id], 0.0, nothing, max(duration_s, 1e-6), {ANY_DEVICE: 1.0}, task_id, dag_id, ranks=0)
    else:
        job = expected_job(pending, estimates, case, assumed_s, {})
    return replace(
        job, arrival_s=starts_in_s, run="rehearsal", after=tuple(ids[one] for one in task.after if one in ids)
    )


def _pending(task: PlannedTask, request_id: str) -> PendingRequest | None:
    """What the queue knows of it; None if it needs no device."""
    if task.request is None:
        return None
    dag_id, task_id = task.task
    return PendingRequest(
        request_id, task.request, START, task.weight, dag_id, "", task_id, gang=task.gang, gang_size=task.gang_size
    )


def _rehearsed_task(
    task: PlannedTask, cases: Sequence[JobRecord], starts_in_s: float, estimates: Estimates
) -> RehearsedTask:
    usual = cases[EstimateCase.MIDDLE]
    first = usual.intervals[0] if usual.intervals else None
    known = task.duration_s is not None if task.request is None else task.task in estimates.works

    def since(values: list[float | None]) -> Interval:
        found = sorted(NEVER_S if value is None else value - starts_in_s for value in values)
        middle = values[EstimateCase.MIDDLE]
        return Interval(found[0], NEVER_S if middle is None else middle - starts_in_s, found[-1])

    return RehearsedTask(
        task.id,
        task.request,
        first.worker_id if first else None,
        first.device_class if first else None,
        since([case.submitted_s for case in cases]),
        since([case.started_s for case in cases]),
        since([case.finished_s for case in cases]),
        not known,
    )


def _time_problems(
    told: Sequence[RehearsedTask], tasks: dict[str, PlannedTask], deadline_s: float | None
) -> list[RehearsalProblem]:
    misses = []
    for one in told:
        asked, limit_s = one.request, tasks[one.id].limit_s
        if one.end_s.middle >= NEVER_S:
            misses.append(
                RehearsalProblem(one.id, "never gets its devices: what it waits for is held by tasks that do not end")
            )
            continue
        if asked is not None and asked.wait_timeout_s is not None and one.wait_s > asked.wait_timeout_s:
            misses.append(
                RehearsalProblem(
                    one.id, f"waits {one.wait_s:.0f} s for {asked}, longer than its {asked.wait_timeout_s:g} s"
                )
            )
        taken_s = one.end_s.middle - one.start_s.middle
        if limit_s is not None and taken_s > limit_s:
            misses.append(
                RehearsalProblem(one.id, f"runs {taken_s:.0f} s, longer than its execution_timeout of {limit_s:g} s")
            )
    last = max(told, key=lambda one: one.end_s.middle, default=None)
    if last is not None and deadline_s is not None and deadline_s < last.end_s.middle < NEVER_S:
        misses.append(
            RehearsalProblem(last.id, f"ends the run after {last.end_s.middle:.0f} s, later than {deadline_s:g} s")
        )
    return misses
