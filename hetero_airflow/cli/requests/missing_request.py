"""The newest run of a DAG, and why a task instance has no request."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from sqlalchemy import column, select, table

from hetero_airflow.cli.action import database
from hetero_airflow.errors import HeteroError
from hetero_airflow.settings import AUDIT_EVENT
from hetero_airflow.store.sql.transaction import read_transaction

MAX_NAMES = 5

_RUNS = table("dag_run", *map(column, ("id", "dag_id", "run_id"))).c
_LOG = table("log", *map(column, ("id", "event", "extra", "dag_id", "run_id", "task_id", "map_index"))).c
_TASKS = table("task_instance", *map(column, ("dag_id", "run_id", "task_id", "map_index", "state"))).c


def latest_run(dag_id: str) -> str:
    """The id of the newest run of a DAG; an empty text if it has none.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    newest = select(_RUNS.run_id).where(_RUNS.dag_id == dag_id).order_by(_RUNS.id.desc()).limit(1)
    with read_transaction(database()) as connection:
        return connection.scalar(newest) or ""


def audited_reason(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """What Airflow's audit log says last of what this plugin did with a task instance; None if it says nothing.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    newest = (
        select(_LOG.extra)
        .where(_LOG.event == AUDIT_EVENT, _LOG.dag_id == dag_id, _LOG.run_id == run_id, _LOG.task_id == task_id)
        .where(_LOG.map_index == map_index)
        .order_by(_LOG.id.desc())
        .limit(1)
    )
    with read_transaction(database()) as connection:
        return connection.scalar(newest)


def missing_request_error(dag_id: str, run_id: str, task_id: str, map_index: int) -> HeteroError:
    """The error for a task instance that has no request in the store.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    instance = f"[{map_index}]" if map_index >= 0 else ""
    asked = f"the device request of {dag_id}.{task_id}{instance}" + (f" in run {run_id}" if run_id else "")
    found, remedy = _read_cause(dag_id, run_id, task_id, map_index)
    return HeteroError(asked, found=found, remedy=remedy)


def _read_cause(dag_id: str, run_id: str, task_id: str, map_index: int) -> tuple[str, str]:
    with read_transaction(database()) as connection:
        of_dag = select(_RUNS.run_id).where(_RUNS.dag_id == dag_id)
        runs = list(connection.scalars(of_dag.order_by(_RUNS.id.desc()).limit(MAX_NAMES + 1)))
        has_run = connection.scalar(of_dag.where(_RUNS.run_id == run_id)) is not None
        of_run = select(_TASKS.task_id, _TASKS.map_index, _TASKS.state).where(
            _TASKS.dag_id == dag_id, _TASKS.run_id == run_id
        )
        rows = connection.execute(of_run.order_by(_TASKS.task_id, _TASKS.map_index)).all()
    states = {row.map_index: row.state for row in rows if row.task_id == task_id}
    tasks = list(dict.fromkeys(row.task_id for row in rows))
    found, remedy = missing_request_cause(dag_id, runs, has_run, tasks, states, map_index)
    if states.get(map_index) == "failed" and (reason := audited_reason(dag_id, run_id, task_id, map_index)):
        return f"{found}: {reason}", "The log of its try says more"
    return found, remedy


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
