"""Puts the requests of mapped device tasks into ``executor_config``, which a plain task's constructor does.

A mapped operator is constructed only when it runs, so its request would not reach the executor.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.mappedoperator import MappedOperator

from hetero_airflow.contract.envelope import ARGUMENTS, ENVELOPE_KEY, pack_request
from hetero_airflow.contract.executor_names import EXECUTOR_CLASSPATH, device_task_defaults, hetero_executor_name
from hetero_airflow.contract.placement_check import pack_placement_check
from hetero_airflow.contract.signatures import check_keywords, task_named
from hetero_airflow.errors import RequestError
from hetero_airflow.model.gang import MAX_MEMBERS, GangSize, parse_gang
from hetero_airflow.operators.checkpoints import CheckpointArguments, parse_profile
from hetero_airflow.operators.device import DeviceOperator

NODE_RANK = "node_rank"

_SET_BY_DECORATORS = {"is_setup", "is_teardown", "on_failure_fail_dagrun"}
"""What Airflow's ``expand`` of a decorated task adds, and sets after the constructor."""

_OPERATORS = {
    "PythonOperator": "DevicePythonOperator(device=...) or @task.device(device=...)",
    "_PythonDecoratedOperator": "@task.device(device=...)",
    "BashOperator": "DeviceBashOperator(device=...)",
    "_BashDecoratedOperator": "@task.device_bash(device=...)",
    "KubernetesPodOperator": "DevicePodOperator(device=...)",
}
"""Airflow's operator → ours for it."""


def refuse_misplaced_request(task: Any, config: Mapping[str, Any]) -> None:
    """Refuse a device in the ``executor_config`` of a task that HeteroExecutor would run without one.

    :param task: a task or a mapped task, of any operator
    :param config: the task's ``executor_config``, which has a ``device``
    :raises RequestError: the task would run on this package's executor
    """
    operator = task.operator_class if task.is_mapped else type(task)
    if hasattr(operator, "is_one_training"):
        return  # an operator of ours, which asks for its device elsewhere
    core_executor = conf.get("core", "executor")
    ours = hetero_executor_name(core_executor)
    asked = task.partial_kwargs.get("executor") if task.is_mapped else task.executor
    if ours is None or asked not in (ours, EXECUTOR_CLASSPATH, None):
        return
    if asked is None and hetero_executor_name(core_executor.split(",")[0]) is None:
        return  # Airflow's default executor is another one
    name = operator.__name__
    remedy = _OPERATORS.get(name, f"a class that mixes it in, class My{name}(DeviceOperator, {name}), with device=...")
    raise RequestError(
        "executor_config",
        {"device": config["device"]},
        found=f"{name}, which asks for no device",
        remedy=f"Use {remedy} from hetero_airflow.operators",
    )


def check_no_gang(task: DeviceOperator) -> None:
    """Refuse a gang of a task that is not mapped and so has one instance.

    :raises RequestError: the task asks for a gang
    """
    size = task.gang.max_members
    rank = getattr(task, NODE_RANK, None)
    if size > 1 or rank is not None:
        raise RequestError(
            "gang" if size > 1 else NODE_RANK,
            size if size > 1 else rank,
            found="a task that is not mapped, so it has one instance",
            remedy=f"Write .partial(...).expand({NODE_RANK}=range(4)), or gang=4 in partial() and expand over 4 values",
        )


def gang_of(task: MappedOperator, expanded: Any) -> GangSize:
    """How many consecutive instances of a mapped task are placed together.

    :param expanded: the arguments that the task expands over; None for a decorated task
    :raises RequestError: the instances don't make whole gangs, or Airflow would never queue them at the same time
    """
    size = parse_gang(task.partial_kwargs.get("gang"))
    if isinstance(expanded, Mapping) and NODE_RANK in expanded:
        size = _ranks(expanded, size)
    if isinstance(expanded, Sequence) and any("gang" in row or NODE_RANK in row for row in expanded):
        raise RequestError(
            "expand_kwargs",
            "a gang",
            found="arguments for each instance, which can't be grouped",
            remedy=f"Use expand({NODE_RANK}=range(4))",
        )
    if isinstance(expanded, Mapping) and "gang" in expanded:
        raise RequestError("gang", "expanded", found="a gang for each instance", remedy="Put gang= into partial()")
    if size.max_members == 1:
        return size
    _check_count(task, size.max_members)
    limits = {
        "max_active_tis_per_dag": task.partial_kwargs.get("max_active_tis_per_dag"),
        "max_active_tis_per_dagrun": task.partial_kwargs.get("max_active_tis_per_dagrun"),
        "max_active_tasks": getattr(task.dag, "max_active_tasks", None),
    }
    for name, limit in limits.items():
        if limit is not None and limit < size.max_members:
            remedy = f"Raise {name} to {size.max_members} or more: all tasks of the gang run at the same time"
            raise RequestError("gang", size.text, found=f"{name}={limit}", remedy=remedy)
    return size


def _ranks(expanded: Mapping[str, Any], size: GangSize) -> GangSize:
    """The size of a gang that expands over its ranks. Replaces a range with a list, which Airflow can serialize."""
    values = expanded[NODE_RANK]
    if not isinstance(values, list | tuple | range):
        raise RequestError(
            NODE_RANK,
            type(values).__name__,
            found="ranks that are known only at run time",
            remedy=f"Write expand({NODE_RANK}=range(4)), or gang=4 in partial() and expand over something else",
        )
    ranks = list(values[: MAX_MEMBERS + 1])
    if ranks != list(range(len(ranks))) or not 1 <= len(ranks) <= MAX_MEMBERS:
        raise RequestError(
            NODE_RANK,
            values,
            found=f"no ranks 0, 1, ... below {MAX_MEMBERS}",
            remedy=f"Write expand({NODE_RANK}=range(4))",
        )
    last = list(expanded)[-1]
    if last != NODE_RANK:
        raise RequestError(
            NODE_RANK, "expanded", found=f"{last} after it", remedy=f"Write {NODE_RANK} as the last argument"
        )
    if size.max_members not in (1, len(ranks)):
        raise RequestError("gang", size.text, found=f"{NODE_RANK} with {len(ranks)} values", remedy="Leave gang out")
    if isinstance(expanded, dict):
        expanded[NODE_RANK] = ranks
    return size if size.max_members > 1 else GangSize(len(ranks), len(ranks))


def _check_count(task: MappedOperator, size: int) -> None:
    """Check that the instances make whole gangs, if their number is known."""
    value: Any = task._get_specified_expand_input().value
    lists = list(value.values()) if isinstance(value, Mapping) else [value]
    if not all(isinstance(values, list | tuple) for values in lists):
        return
    count = math.prod(len(values) for values in lists)
    if count % size:
        raise RequestError("gang", size, found=f"{count} instances", remedy=f"Expand over a multiple of {size} values")


def complete_mapped_task(task: object) -> None:
    """Put the requests of a mapped device task into its ``executor_config``. Other tasks stay unchanged.

    :raises RequestError: the requests are invalid, or a task that is not mapped asks for a gang. It becomes the DAG
        file's import error
    """
    if isinstance(task, MappedOperator):
        with task_named(task.task_id):
            _complete(task)
    elif isinstance(task, DeviceOperator):
        with task_named(task.task_id):
            check_no_gang(task)


def _complete(task: MappedOperator) -> None:
    is_check = getattr(task.operator_class, "is_placement_check", False)  # sensors can't be imported from here
    if not is_check and not _is_device_operator(task.operator_class):
        return
    partial = task.partial_kwargs
    # a decorated task expands over the arguments of its function, which may have the same names
    expanded = None if isinstance(task, DecoratedMappedOperator) else task._get_specified_expand_input().value
    _check_keywords(task, expanded, is_check=is_check)
    for name, value in device_task_defaults().items():
        if partial.get(name) in (None, "default_pool"):
            partial[name] = value
    given = {name: partial.get(name) for name in ARGUMENTS}
    if is_check:
        given |= {"wait_timeout": partial.get("timeout"), "patience": False}
    instances, stride = _instances(given, expanded)
    if is_check:
        packed = pack_placement_check(instances, stride)
    else:
        packed = pack_request(instances, stride, gang_of(task, expanded))
    partial["executor_config"] = {**(partial.get("executor_config") or {}), ENVELOPE_KEY: packed}


def _check_keywords(task: MappedOperator, expanded: Any, *, is_check: bool) -> None:
    """See that the constructor will take the arguments, which Airflow calls only when the task runs."""
    rows = [row for row in expanded if isinstance(row, Mapping)] if isinstance(expanded, list | tuple) else ()
    for given in (task.partial_kwargs, *rows):
        check_keywords(task.operator_class, {k: v for k, v in given.items() if k not in _SET_BY_DECORATORS})
        if not is_check:
            CheckpointArguments.parse(given.get("checkpoint"))
            parse_profile(given.get("profile"))


def _is_device_operator(operator_class: object) -> bool:
    return isinstance(operator_class, type) and issubclass(operator_class, DeviceOperator)


def _instances(given: Mapping[str, Any], expanded: Any) -> tuple[list[Mapping[str, Any]], int]:
    """The arguments of each distinct instance, and the stride between them in Airflow's map indexes."""
    if isinstance(expanded, Sequence):
        return [{**given, **{k: v for k, v in row.items() if k in ARGUMENTS}} for row in expanded] or [given], 1
    if not isinstance(expanded, Mapping):
        return [given], 1
    names = [name for name in expanded if name in ARGUMENTS]
    if not names:
        return [given], 1
    if len(names) > 1:
        raise RequestError(
            names[1],
            "expanded",
            found=f"{names[0]} expanded too",
            remedy='Expand over whole requests: expand(device=[{"device": "gpu", "count": 2}, ...])',
        )
    after = [expanded[name] for name in list(expanded)[list(expanded).index(names[0]) + 1 :]]
    values = expanded[names[0]]
    if not all(isinstance(value, (list, tuple)) for value in (values, *after)):
        raise RequestError(
            names[0],
            "expanded",
            found="a list that is known only at run time",
            remedy=f"Expand {names[0]} over a literal list, as the last argument",
        )
    return [{**given, names[0]: value} for value in values] or [given], math.prod(len(value) for value in after) or 1
