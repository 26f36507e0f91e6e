"""The tasks that a run of a DAG file would have."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.dag_processing.dagbag import DagBag
from airflow.dag_processing.importers import python_importer
from airflow.sdk import DAG
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import DagSerialization

from hetero_airflow.contract.envelope import unpack_gang, unpack_request
from hetero_airflow.contract.rendering import render_arguments, run_context
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.gang import GangSize, gang_member
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.planned_tasks import PlannedTask

_RUN = "planned"
"""Id of the rehearsed run."""

_MAX_ERROR = 300
"""Characters of an import error."""


def read_dag(path: Path, dag_id: str | None) -> DAG:
    """The DAG of a file; parsing runs the file, as Airflow does.

    :raises SettingsError: no such file, an import error, no DAG in it, or several DAGs and no id
    """
    asked = f"to plan {shorten(str(path), limit=300)}"
    if not path.is_file():
        raise SettingsError(asked, found="no such file", remedy="Give the path of a DAG file")
    with redirect_stdout(sys.stderr), _caught_errors() as errors:  # the output is only the plan
        bag = _QuietDagBag(path, safe_mode=False)
    if bag.import_errors:
        raise _import_error(asked, path, next(iter(bag.import_errors.values())), errors)
    dags = bag.dags
    if dag_id is None and len(dags) == 1:
        return next(iter(dags.values()))
    if dag_id in dags:
        return dags[dag_id]
    remedy = "Name one of them: --dag-id NAME" if dags else "Define one in it"
    raise SettingsError(asked, found=", ".join(sorted(dags)) or "no DAG", remedy=remedy)


class _QuietDagBag(DagBag):
    """A bag that logs nothing: it has its errors as values too."""

    _log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


@contextmanager
def _caught_errors() -> Iterator[list[BaseException]]:
    """The errors that Airflow catches while it imports a DAG file; it only logs them, with their tracebacks."""
    errors: list[BaseException] = []

    def catch(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            errors.append(record.exc_info[1])
        return False

    python_importer.log.addFilter(catch)
    try:
        yield errors
    finally:
        python_importer.log.removeFilter(catch)


def _import_error(asked: str, path: Path, text: str, errors: list[BaseException]) -> SettingsError:
    """The error in one line, with its place.

    :param text: what Airflow says of it, such as a traceback
    """
    place, remedy = path.name, "Fix it there"
    if errors:
        error = errors[0]
        place, text = _place(error, path), f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            remedy = "Install what it imports, or fix it there"
    line = " ".join(text.split())
    found = f"an import error in {place}: {line if len(line) <= _MAX_ERROR else line[:_MAX_ERROR] + '…'}"
    return SettingsError(asked, found=found.rstrip(".:"), remedy=remedy)


def _place(error: BaseException, path: Path) -> str:
    """File and line: the last one in the folder of the DAG file, where its author can change it."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}"
    folder = path.resolve().parent
    for frame, number in reversed(list(walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename).resolve()
        if file.is_relative_to(folder) and "site-packages" not in file.parts:
            return f"{file.relative_to(folder)}, line {number}"
    return path.name


def planned_tasks(
    dag: DAG, at: datetime, conf: Mapping[str, Any], durations: Mapping[TaskName, Interval]
) -> Iterator[PlannedTask]:
    """The task instances of a run that is triggered at this time.

    A mapped task over a literal list has all its instances. One whose list is known only at run time counts as one
    instance, or as one gang.

    :param durations: the durations of tasks that need no device
    :raises RequestError: a device request whose template can't be rendered
    """
    context = run_context(dag.dag_id, _RUN, at, at, dag.params.dump(), conf)
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    counts = _mapped_counts(serialized)
    weights = {task.task_id: _total_weight(task) for task in serialized.tasks}
    gangs = {task.task_id: _gang(task.executor_config) for task in dag.tasks}
    ids = {task.task_id: _ids(task.task_id, counts, gangs[task.task_id]) for task in dag.tasks}
    for task in dag.topological_sort():
        after = tuple(id_ for before in sorted(task.upstream_task_ids) for id_ in ids[before])
        name, gang = (dag.dag_id, task.task_id), gangs[task.task_id]
        for number, id_ in enumerate(ids[task.task_id]):
            yield PlannedTask(
                id_,
                name,
                _request(task.executor_config, number if task.task_id in counts else -1, context),
                after,
                weights[task.task_id],
                durations.get(name),
                None if task.execution_timeout is None else task.execution_timeout.total_seconds(),
                gang=gang_member(dag.dag_id, _RUN, task.task_id, number, gang.max_members).gang
                if gang.max_members > 1
                else "",
                gang_size=gang.max_members,
                least=gang.min_members,
                is_count_known=counts.get(task.task_id, 1) is not None,
            )


def _request(config: object, map_index: int, context: Mapping[str, Any]) -> DeviceRequest | None:
    packed = unpack_request(config, map_index)
    return packed if packed is None or isinstance(packed, DeviceRequest) else render_arguments(packed, context)


def _gang(config: Mapping[str, Any] | None) -> GangSize:
    return GangSize() if unpack_request(config, -1) is None else unpack_gang(config)


def _ids(task_id: str, counts: Mapping[str, int | None], gang: GangSize) -> list[str]:
    """The ids of the planned instances; if their number is unknown, as few as can run."""
    if task_id not in counts:
        return [task_id]
    count = counts[task_id]
    return [f"{task_id}[{number}]" for number in range(gang.max_members if count is None else count)]


def _mapped_counts(dag: SerializedDAG) -> dict[str, int | None]:
    """Task id → number of instances, for mapped tasks; None if it is known only at run time."""
    counts: dict[str, int | None] = {}
    for task in dag.tasks:
        if not task.is_mapped and not any(True for _ in task.iter_mapped_task_groups()):
            continue
        try:
            counts[task.task_id] = int(task.get_parse_time_mapped_ti_count())
        except Exception:  # noqa: BLE001  Airflow raises several types for an unknown length
            counts[task.task_id] = None
    return counts


def _total_weight(task: Any) -> int:
    """Airflow's priority weight of a task's instances; the weight rule looks at the task only."""
    instance: Any = SimpleNamespace(task=task)
    return int(task.weight_rule.get_weight(instance))
