"""Checks the gangs of mapped tasks when the DAG file is parsed, so that no gang waits forever."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from hetero_airflow.errors import RequestError
from hetero_airflow.model.gang import MAX_MEMBERS, GangSize, parse_gang
from hetero_airflow.operators.device import DeviceOperator

NODE_RANK = "node_rank"


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
