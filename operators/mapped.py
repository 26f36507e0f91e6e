"""Gives mapped device tasks what plain ones get from their constructor.

A mapped operator is not constructed before it runs, so its request would never reach the executor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from hetero_airflow.contract.envelope import ARGUMENTS, ENVELOPE_KEY, pack_request
from hetero_airflow.contract.placement_check import pack_placement_check
from hetero_airflow.contract.selection import device_task_defaults
from hetero_airflow.errors import RequestError
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.operators.mapped_gang import check_no_gang, gang_of


def complete_mapped_task(task: object) -> None:
    """Put the requests of a mapped device task into its ``executor_config``; leave every other task alone.

    :raises RequestError: becomes the DAG file's import error; also for a gang of a task that is not mapped
    """
    if not isinstance(task, MappedOperator):
        if isinstance(task, DeviceOperator):
            check_no_gang(task)
        return
    is_probe = getattr(task.operator_class, "is_placement_check", False)  # sensors can't be imported from here
    if not is_probe and not _is_device_operator(task.operator_class):
        return
    partial = task.partial_kwargs
    for name, value in device_task_defaults().items():
        if partial.get(name) in (None, "default_pool"):
            partial[name] = value
    given = {name: partial.get(name) for name in ARGUMENTS}
    if is_probe:
        given["wait_timeout"] = partial.get("timeout")
    # what a decorated task expands over are the arguments of its function, whatever their names
    expanded = None if isinstance(task, DecoratedMappedOperator) else task._get_specified_expand_input().value
    instances, stride = _instances(given, expanded)
    packed = (
        pack_placement_check(instances, stride)
        if is_probe
        else pack_request(instances, stride, gang_of(task, expanded))
    )
    partial["executor_config"] = {**(partial.get("executor_config") or {}), ENVELOPE_KEY: packed}


def _is_device_operator(operator_class: object) -> bool:
    return isinstance(operator_class, type) and issubclass(operator_class, DeviceOperator)


def _instances(given: Mapping[str, Any], expanded: Any) -> tuple[list[Mapping[str, Any]], int]:
    """The arguments of each different instance, and the stride between them, as Airflow counts map indexes."""
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
            remedy='Expand whole requests: expand(device=[{"device": "gpu", "count": 2}, ...])',
        )
    after = [expanded[name] for name in list(expanded)[list(expanded).index(names[0]) + 1 :]]
    values = expanded[names[0]]
    if not all(isinstance(value, (list, tuple)) for value in (values, *after)):
        raise RequestError(
            names[0],
            "expanded",
            found="a list that is known only at run time",
            remedy=f"Expand {names[0]} over a literal list, and as the last of the arguments",
        )
    return [{**given, names[0]: value} for value in values] or [given], math.prod(len(value) for value in after) or 1
