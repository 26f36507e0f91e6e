"""``airflow hetero bump``, ``pause``, ``unpause`` and ``cancel``: change waiting tasks, and end running ones too."""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow.listeners.listener import get_listener_manager
from airflow.models.dagbag import DBDagBag
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.platform import getuser
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.cli.requests.missing_request import latest_run, missing_request_error
from hetero_airflow.errors import HeteroError, StoreUnavailable
from hetero_airflow.executor.explanation.device_text import task_name
from hetero_airflow.model.request import Priority
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.store import Pause, PriorityChange, QueueChange

log = logging.getLogger(__name__)

Change = Callable[[PendingRequest], QueueChange]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command made of one request."""

    pending: PendingRequest
    text: str
    """Follows its name."""
    is_done: bool
    """Whether this is what the command was for."""


@action
def bump(args: Namespace) -> None:
    """Give waiting tasks the named class, or the next higher one."""

    def changed(pending: PendingRequest) -> PriorityChange:
        wanted = Priority(args.priority) if args.priority else higher(pending.request.priority)
        return PriorityChange(pending.id, wanted)

    change_queue(args, "bump", changed, lambda pending: f"waits with the priority {pending.request.priority}")


def higher(priority: Priority) -> Priority:
    """The next higher class; the highest is its own.

    >>> [str(higher(priority)) for priority in Priority]
    ['urgent', 'urgent', 'high', 'medium']
    """
    return tuple(Priority)[max(0, priority.rank - 1)]


@action
def pause(args: Namespace) -> None:
    """Keep waiting tasks out of placement."""
    change_queue(args, "pause", lambda pending: Pause(pending.id), paused_text)


def paused_text(pending: PendingRequest) -> str:
    """What the command prints about a paused request.

    >>> from hetero_airflow.testing import a_pending
    >>> paused_text(a_pending("a", wait_timeout="1h"))
    'is paused: it gets no devices until `airflow hetero unpause`. Its wait_timeout of 3600 s goes on'
    """
    limit_s = pending.request.wait_timeout_s
    limit_text = "" if limit_s is None else f". Its wait_timeout of {limit_s:g} s goes on"
    return f"is paused: it gets no devices until `airflow hetero unpause`{limit_text}"


@action
def unpause(args: Namespace) -> None:
    """Let paused tasks take part in placement again, with their old place by age."""
    change_queue(
        args,
        "unpause",
        lambda pending: Pause(pending.id, is_paused=False),
        lambda pending: "waits for its devices",
    )


@action
def cancel(args: Namespace) -> None:
    """Mark the named tasks as failed; the executor takes their requests back, and their supervisors end them."""
    requests = named_requests(args, open_store().snapshot())
    record_command("cancel", requests)
    show_outcomes(fail_tasks(requests, getuser()))


def fail_tasks(requests: Sequence[PendingRequest], user: str) -> Iterator[Outcome]:
    """Set each task instance to failed as Airflow's API does, without a retry; one that has ended keeps its state.

    :param user: who cancels them; the note of each task instance names them
    :raises StoreUnavailable: Airflow's database refuses a change; the tasks before it are cancelled
    """
    for pending in requests:
        try:
            with create_session() as session:
                outcome = _fail_task(pending, f"Cancelled by {user} with `airflow hetero cancel`.", session)
        except SQLAlchemyError as error:
            asked = f"to cancel {task_name(pending)}"
            raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run the command again") from error
        yield outcome


def _fail_task(pending: PendingRequest, note: str, session: Session) -> Outcome:
    instance = session.scalar(
        select(TaskInstance)
        .where(
            TaskInstance.dag_id == pending.dag_id,
            TaskInstance.run_id == pending.run_id,
            TaskInstance.task_id == pending.task_id,
            TaskInstance.map_index == pending.map_index,
        )
        .with_for_update(of=TaskInstance)
    )
    state = None if instance is None else instance.state
    if instance is None or state in State.finished:
        return Outcome(pending, f"has ended already: {state or 'deleted'}", is_done=False)
    instance.note = f"{instance.note}\n\n{note}" if instance.note else note
    dag = DBDagBag().get_dag_for_run(instance.get_dagrun(session=session), session)
    if dag is None or not dag.has_task(pending.task_id):  # Airflow refuses it too; the task still has to end
        instance.set_state(TaskInstanceState.FAILED, session=session)
        failed = [instance]
    else:
        failed = dag.set_task_instance_state(
            task_id=pending.task_id,
            map_indexes=[pending.map_index],
            run_id=pending.run_id,
            state=TaskInstanceState.FAILED,
            session=session,
        )
    for task in failed:
        _tell_listeners(task, note)
    return Outcome(pending, f"is cancelled: it was {state}, now it has failed", is_done=True)


def _tell_listeners(instance: TaskInstance, text: str) -> None:
    """Call the listeners of other plugins, as the API does. A listener that fails does not undo the cancel."""
    try:
        get_listener_manager().hook.on_task_instance_failed(previous_state=None, task_instance=instance, error=text)
    except Exception:
        log.exception("A listener has failed")


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
