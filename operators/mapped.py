"""Puts the requests of mapped device tasks into ``executor_config``, which a plain task's constructor does.

A mapped operator is constructed only when it runs, so its request would not reach the executor.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from hetero_airflow.contract.envelope import ARGUMENTS, ENVELOPE_KEY, pack_request
from hetero_airflow.contract.executor_names import device_task_defaults
from hetero_airflow.contract.placement_check import pack_placement_check
from hetero_airflow.errors import RequestError
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.operators.mapped_gang import check_no_gang, gang_of


def complete_mapped_task(task: object) -> None:
    """Put the requests of a mapped device task into its ``executor_config``. Other tasks stay unchanged.

    :raises RequestError: the requests are invalid, or a task that is not mapped asks for a gang. It becomes the DAG
        file's import error
    """
    if not isinstance(task, MappedOperator):
        if isinstance(task, DeviceOperator):
            check_no_gang(task)
        return
    is_check = getattr(task.operator_class, "is_placement_check", False)  # sensors can't be imported from here
    if not is_check and not _is_device_operator(task.operator_class):
        return
    partial = task.partial_kwargs
    for name, value in device_task_defaults().items():
        if partial.get(name) in (None, "default_pool"):
            partial[name] = value
    given = {name: partial.get(name) for name in ARGUMENTS}
    if is_check:
        given |= {"wait_timeout": partial.get("timeout"), "patience": False}
    # a decorated task expands over the arguments of its function, which may have the same names
    expanded = None if isinstance(task, DecoratedMappedOperator) else task._get_specified_expand_input().value
    instances, stride = _instances(given, expanded)
    if is_check:
        packed = pack_placement_check(instances, stride)
    else:
        packed = pack_request(instances, stride, gang_of(task, expanded))
    partial["executor_config"] = {**(partial.get("executor_config") or {}), ENVELOPE_KEY: packed}


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
