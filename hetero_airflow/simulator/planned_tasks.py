"""The tasks of a DAG run that has not begun, and which of them can run on the workers of a snapshot."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.plan import Place, Reason
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.validation import ValidatedPolicy
from hetero_airflow.simulator.options import START


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task instance of a DAG run that has not begun."""

    id: str
    """Unique in the run: the task's id, and for a mapped task the number of the instance."""
    task: TaskName
    request: DeviceRequest | None
    """None for a task that needs no device."""
    after: tuple[str, ...] = ()
    weight: int = 1
    duration_s: Interval | None = None
    """For a task that needs no device, if it is known."""
    limit_s: float | None = None
    """Airflow ends the task when it has run for longer."""
    gang: str = ""
    """The tasks of a gang, in the order of their ranks, are placed all together or not at all; empty for a task
    without a gang."""
    gang_size: int = 1
    least: int = 1
    """The fewest members with which the gang runs."""
    is_count_known: bool = True
    """False: only the run tells how many instances the task has. The planned ones are the fewest that it runs with."""

    def pending(self, request_id: str) -> PendingRequest | None:
        """The task as the queue sees it; None if it needs no device."""
        if self.request is None:
            return None
        dag_id, task_id = self.task
        return PendingRequest(
            request_id, self.request, START, self.weight, dag_id, "", task_id, gang=self.gang, gang_size=self.gang_size
        )


@dataclass(frozen=True, slots=True)
class RehearsalNote:
    """What would go wrong with a task instance, or how its rehearsal differs from what its author wrote."""

    id: str
    """The task instance; the first one, if it is about all of a task."""
    text: str


def runnable_tasks(
    snapshot: Snapshot, tasks: Sequence[PlannedTask], policy: Policy
) -> tuple[list[PlannedTask], list[RehearsalNote], list[RehearsalNote]]:
    """The tasks that some workers can run, the problems of the others, and notes.

    A task that comes after one that can't run can't run either.

    A gang has all its ranks, or if these can never be placed together, the most that can.
    """
    notes = list(_unknown_counts(tasks))
    problems = list(_impossible_tasks(snapshot, tasks))
    tasks = _with_sized_gangs(snapshot, tasks, policy, notes, problems)
    return _without_successors(tasks, {problem.id for problem in problems}, problems), problems, notes


def _unknown_counts(tasks: Sequence[PlannedTask]) -> Iterator[RehearsalNote]:
    firsts: dict[TaskName, PlannedTask] = {}
    for task in tasks:
        if not task.is_count_known:
            firsts.setdefault(task.task, task)
    for task in firsts.values():
        planned = f"one gang of {task.gang_size} is" if task.gang else "one is"
        yield RehearsalNote(task.id, f"how many instances there are is known only in the run; {planned} planned")


def _impossible_tasks(snapshot: Snapshot, tasks: Sequence[PlannedTask]) -> Iterator[RehearsalNote]:
    for task in tasks:
        if task.request is None or task.gang:
            continue
        alternatives = task.request.alternatives
        checks = [check_worker(alternative, worker) for alternative in alternatives for worker in snapshot.workers]
        if not any(fits or (reason is not None and reason.is_transient) for fits, reason in checks):
            reason = next((str(reason) for _, reason in checks), "there is no worker")
            yield RehearsalNote(task.id, f"no known worker could ever run {task.request}: {reason}")


def _with_sized_gangs(
    snapshot: Snapshot,
    tasks: Sequence[PlannedTask],
    policy: Policy,
    notes: list[RehearsalNote],
    problems: list[RehearsalNote],
) -> list[PlannedTask]:
    """The tasks, without ranks that can't be placed with the others; adds a note or a problem for each such gang."""
    gangs: defaultdict[str, list[PlannedTask]] = defaultdict(list)
    for task in tasks:
        if task.gang:
            gangs[task.gang].append(task)
    sizes: dict[str, int] = {}
    left_out: set[str] = set()
    for gang, members in gangs.items():
        full_size, least = members[0].gang_size, members[0].least
        requests = [pending for member in members if (pending := member.pending(member.id)) is not None]
        size, reason = placeable_gang(snapshot, requests, least, policy)
        sizes[gang] = size
        if size == 0:
            sizes_text = full_size if least == full_size else f"{least} to {full_size}"
            text = f"its gang of {sizes_text} can't be placed: {reason}"
            problems += (RehearsalNote(member.id, text) for member in members)
        elif size < full_size:
            text = f"its gang is planned with {size} of {full_size} ranks: {reason}"
            notes.append(RehearsalNote(members[0].id, text))
            left_out |= {member.id for member in members[size:]}
    return [replace(task, gang_size=sizes.get(task.gang, 1)) for task in tasks if task.id not in left_out]


def _without_successors(
    tasks: Sequence[PlannedTask], failed: set[str], problems: list[RehearsalNote]
) -> list[PlannedTask]:
    """The tasks that do not come after one that can't run; adds a problem for each of the others."""
    remaining = [task for task in tasks if task.id not in failed]
    while True:
        blocked = {
            task.id: next(before for before in task.after if before in failed)
            for task in remaining
            if failed & {*task.after}
        }
        if not blocked:
            return remaining
        problems += (
            RehearsalNote(id_, f"comes after {before}, which would not end well") for id_, before in blocked.items()
        )
        failed = failed | blocked.keys()
        remaining = [task for task in remaining if task.id not in failed]


class PlaceableGang(NamedTuple):
    """How many members of a gang can be placed together."""

    size: int
    """0 if fewer than the gang needs."""
    reason: Reason | None
    """Why not all members; None if all can."""


def placeable_gang(snapshot: Snapshot, members: Sequence[PendingRequest], least: int, policy: Policy) -> PlaceableGang:
    """The most members that the policy places if all workers are idle; it tries one less each time, as the executor.

    >>> from hetero_airflow.policies.fifo import Fifo
    >>> from hetero_airflow.testing import a_pending, a_worker
    >>> members = [a_pending(f"rank{n}", "gpu", gang="g", gang_size=3) for n in range(3)]
    >>> gang = placeable_gang(Snapshot(1, (a_worker(),)), members, 1, Fifo())
    >>> gang.size, str(gang.reason)
    (2, 'count: asked all 3 of gang g, 1 × gpu each, found room for 2 at the same time, even when all workers are idle')

    :param members: in the order of their ranks: the last ones are left out
    :param least: the fewest members with which the gang runs
    """
    full_size = members[0].gang_size
    first_reason: Reason | None = None
    for size in range(full_size, least - 1, -1) if len(members) == full_size else (full_size,):
        gang = [replace(member, gang_size=size) for member in members[:size]]
        reason = _why_not_placed(snapshot, gang, policy)
        if reason is None:
            return PlaceableGang(size, first_reason)
        first_reason = first_reason or reason
    return PlaceableGang(0, first_reason)


def _why_not_placed(snapshot: Snapshot, members: Sequence[PendingRequest], policy: Policy) -> Reason | None:
    """Why the policy would not place a gang on the idle workers; None if it would."""
    workers = tuple(worker.model_copy(update={"state": WorkerState.ONLINE}) for worker in snapshot.workers)
    idle = Snapshot(1, workers, pending=tuple(members), estimates=snapshot.estimates)
    decisions = ValidatedPolicy(policy).decide(idle, START).decisions
    return next((decision.reason for decision in decisions if not isinstance(decision, Place)), None)
