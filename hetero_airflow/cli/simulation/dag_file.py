"""The tasks that a run of a DAG file would have."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import DagSerialization

from hetero_airflow.contract.envelope import unpack_gang, unpack_request
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.executor.templates.rendering import render_arguments, run_context
from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.gang import GangSize, gang_member
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.planned_tasks import PlannedTask

_RUN = "planned"
"""Id of the rehearsed run."""


def read_dag(path: Path, dag_id: str | None) -> DAG:
    """The DAG of a file; parsing runs the file, as Airflow does.

    :raises SettingsError: no such file, an import error, no DAG in it, or several DAGs and no id
    """
    asked = f"plan {shorten(str(path))}"
    if not path.is_file():
        raise SettingsError(asked, found="no such file", remedy="Give the path of a DAG file")
    with redirect_stdout(sys.stderr):  # the output is only the plan, not what the DAG file prints or Airflow logs
        bag = DagBag(path, safe_mode=False)
    if bag.import_errors:
        error = next(iter(bag.import_errors.values())).strip().splitlines()[-1]
        raise SettingsError(asked, found=f"an import error: {shorten(error, 300)}", remedy="Fix the file")
    dags = bag.dags
    if dag_id is None and len(dags) == 1:
        return next(iter(dags.values()))
    if dag_id in dags:
        return dags[dag_id]
    remedy = "Name one of them: --dag-id NAME" if dags else "Define one in it"
    raise SettingsError(asked, found=", ".join(sorted(dags)) or "no DAG", remedy=remedy)


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
