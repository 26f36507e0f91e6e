"""The device tasks that a command names: those that wait and those that run."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.platform import getuser
from airflow.utils.session import create_session
from airflow.utils.state import State
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.cli.action import open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.cli.requests.missing_request import latest_run, missing_request_error
from hetero_airflow.errors import HeteroError, StoreUnavailable
from hetero_airflow.executor.explanation.device_text import task_name
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.store import QueueChange

Change = Callable[[PendingRequest], QueueChange]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command made of one request."""

    pending: PendingRequest
    text: str
    """Follows its name."""
    is_done: bool
    """Whether this is what the command was for."""


def named_requests(args: Namespace, snapshot: Snapshot) -> list[PendingRequest]:
    """The waiting and the running requests of the named tasks, in the order of the names.

    :param args: `dag_id`, `task_ids`, `run_id` (None: the only run in which they wait or run), and `map_index`; None
        for all instances of a mapped task
    :raises HeteroError: a task has none, or they are of several runs. Nothing may have been changed before
    """
    live = [
        pending
        for pending in (*snapshot.pending, *snapshot.holders.values())
        if pending.dag_id == args.dag_id
        and args.run_id in (None, pending.run_id)
        and args.map_index in (None, pending.map_index)
    ]
    named: list[PendingRequest] = []
    for task_id in dict.fromkeys(args.task_ids):
        instances = [pending for pending in live if pending.task_id == task_id]
        if not instances:
            raise missing_task_error(args.dag_id, args.run_id or latest_run(args.dag_id), task_id, args.map_index)
        named += sorted(instances, key=lambda pending: (pending.run_id, pending.map_index))
    runs = sorted({pending.run_id for pending in named})
    if len(runs) > 1:
        raise HeteroError(
            f"{args.dag_id} without --run-id",
            found=f"tasks that wait or run in {len(runs)} runs: {', '.join(runs)}",
            remedy="Name one of them with --run-id",
        )
    return named


def missing_task_error(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> HeteroError:
    """The error for a task that neither waits for devices nor runs with some."""
    with create_session(scoped=False) as session:
        instances = select(TaskInstance.map_index, TaskInstance.state).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id
        )
        states = {row.map_index: row.state for row in session.execute(instances)}
    shown = [state for index, state in states.items() if map_index in (None, index)]
    if shown and all(state in State.finished for state in shown):
        asked = f"{dag_id}.{task_id} in run {run_id}"
        remedy = "`airflow hetero queue` shows the tasks that wait or run"
        return HeteroError(asked, found=f"a task that has ended: {', '.join(sorted(set(shown)))}", remedy=remedy)
    index = map_index if map_index is not None else next(iter(states), -1)
    return missing_request_error(dag_id, run_id, task_id, index)


def record_command(name: str, requests: Iterable[PendingRequest]) -> None:
    """Write into Airflow's audit log who runs the command, as Airflow's own commands do.

    :raises StoreUnavailable: Airflow's database refuses it
    """
    user = getuser()
    try:
        with create_session() as session:
            for pending in requests:
                names = (pending.dag_id, pending.task_id, pending.run_id, pending.try_number, pending.map_index)
                session.add(Log(f"hetero {name}", TaskInstanceKey(*names), owner=user, owner_display_name=user))
    except SQLAlchemyError as error:
        asked = f"to {name} tasks"
        raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run the command again") from error


def change_queue(args: Namespace, command: str, change: Change, done: Callable[[PendingRequest], str]) -> None:
    """Change the waiting requests of the named tasks, and print what became of them; exit code 1 for a running one.

    :param done: describes a changed request
    :raises HeteroError: a name is wrong; nothing is changed
    """
    store = open_store()
    requests = named_requests(args, store.snapshot())
    record_command(command, requests)
    store.change_queue([change(pending) for pending in requests])
    show_outcomes(queue_outcomes(requests, store.snapshot(), command, done))


def queue_outcomes(
    requests: Iterable[PendingRequest], after: Snapshot, command: str, done: Callable[[PendingRequest], str]
) -> Iterator[Outcome]:
    """What became of each request. Pure.

    :param after: the store after the change: a scheduler may have placed a request at the same moment
    """
    waiting = {pending.id: pending for pending in after.pending}
    for pending in requests:
        if pending.id in waiting:
            yield Outcome(pending, done(waiting[pending.id]), is_done=True)
        elif pending.id in after.holders:
            text = f"has its devices already, so {command} does nothing; `airflow hetero cancel` ends it"
            yield Outcome(pending, text, is_done=False)
        else:
            yield Outcome(pending, "has just ended", is_done=False)


def show_outcomes(outcomes: Iterable[Outcome]) -> None:
    """Print a line for each; exit code 1 if one is not as it was asked for."""
    is_all_done = True
    for outcome in outcomes:
        is_all_done &= outcome.is_done
        name = f"{task_name(outcome.pending)} in run {outcome.pending.run_id}"
        show(cell(f"{name} {outcome.text}.", style="" if outcome.is_done else "red"))
    if not is_all_done:
        sys.exit(1)
