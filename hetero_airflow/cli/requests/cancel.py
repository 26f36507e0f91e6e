"""``airflow hetero cancel``: waiting and running device tasks fail, as when a user marks them as failed."""

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence

from airflow.listeners.listener import get_listener_manager
from airflow.models.dagbag import DBDagBag
from airflow.models.taskinstance import TaskInstance
from airflow.utils.platform import getuser
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.requests.named_tasks import Outcome, named_requests, record_command, show_outcomes
from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.executor.explanation.device_text import task_name
from hetero_airflow.model.snapshot import PendingRequest

log = logging.getLogger(__name__)


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
