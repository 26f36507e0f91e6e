"""The newest run of a DAG, and why a task instance has no request."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.errors import HeteroError, StoreUnavailable

MAX_NAMES = 5


def latest_run(dag_id: str) -> str:
    """The id of the newest run of a DAG; an empty text if it has none.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    try:
        with create_session(scoped=False) as session:
            newest = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
            return session.scalar(newest) or ""
    except SQLAlchemyError as error:
        asked = f"the newest run of {dag_id}"
        raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run `airflow db migrate`") from error


def missing_request_error(dag_id: str, run_id: str, task_id: str, map_index: int) -> HeteroError:
    """The error for a task instance that has no request in the store.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    instance = f"[{map_index}]" if map_index >= 0 else ""
    asked = f"the device request of {dag_id}.{task_id}{instance}" + (f" in run {run_id}" if run_id else "")
    try:
        found, remedy = _read_cause(dag_id, run_id, task_id, map_index)
    except SQLAlchemyError as error:
        raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run `airflow db migrate`") from error
    return HeteroError(asked, found=found, remedy=remedy)


def _read_cause(dag_id: str, run_id: str, task_id: str, map_index: int) -> tuple[str, str]:
    with create_session(scoped=False) as session:
        of_dag = select(DagRun.run_id).where(DagRun.dag_id == dag_id)
        runs = list(session.scalars(of_dag.order_by(DagRun.id.desc()).limit(MAX_NAMES + 1)))
        has_run = session.scalar(of_dag.where(DagRun.run_id == run_id)) is not None
        of_run = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id
        )
        rows = session.execute(of_run.order_by(TaskInstance.task_id, TaskInstance.map_index)).all()
    states = {row.map_index: row.state for row in rows if row.task_id == task_id}
    tasks = list(dict.fromkeys(row.task_id for row in rows))
    return missing_request_cause(dag_id, runs, has_run, tasks, states, map_index)


def missing_request_cause(
    dag_id: str,
    runs: Sequence[str],
    has_run: bool,
    tasks: Sequence[str],
    states: Mapping[int, str | None],
    map_index: int,
) -> tuple[str, str]:
    """What was found, and what to do. Pure.

    :param runs: the newest runs of the DAG
    :param has_run: whether the requested run exists; it can be older than those
    :param tasks: the tasks of that run
    :param states: map index → state of the task's instances in that run
    """
    if not runs:
        return f"no run of a DAG {dag_id}", "`airflow dags list` shows the DAGs"
    if not has_run:
        return "no such run", f"Its newest runs are {_some(runs)}"
    if not states:
        return "no such task in the run", f"Its tasks are {_some(tasks)}"
    if map_index not in states:
        if list(states) == [-1]:
            return "a task that is not mapped", "Leave --map-index out"
        return "no such instance of a mapped task", f"Give --map-index {_some(map(str, states), ' or ')}"
    if states[map_index] in (None, "scheduled"):
        return "a task that is not queued yet", "Try again when it is queued: it requests its devices then"
    return (
        f"no request; the task instance is {states[map_index]}",
        "It requests no device, it does not run with HeteroExecutor, or its history was pruned",
    )


def _some(names: Iterable[str], separator: str = ", ") -> str:
    first = list(islice(names, MAX_NAMES + 1))
    return separator.join([*first[:MAX_NAMES], *(["…"] if len(first) > MAX_NAMES else [])])
