"""More memory for a request after it did not suffice: twice what there was, up to the largest that exists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import Feasibility, device_need, feasibility_of
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.recovery.rules import Rule
from hetero_airflow.units import ByteRange

NEARLY_ENOUGH = 7 / 8
"""Part of the wished memory that counts as all of it: makers' sizes are round numbers less what the driver keeps, so
that an L40S of 45 GiB is the next size after an RTX 4090 of 24."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """An alternative with as much memory as it shall ask for now; `is_larger` if that is more than ever failed."""

    alternative: Alternative
    is_larger: bool


def with_device_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after it, or another one, ran out of device memory.

    A share that no larger device could make larger becomes a whole device. A CPU has no device memory.

    :param failed: bytes that each device had at each failure, None for not known; then it is taken to be what was
        asked for
    :param shapes: of all known workers; none are known: nothing is changed
    """
    asked = alternative.memory
    begin = asked.minimum if asked else None
    wish, worst = _wanted_bytes(begin, failed, rule.memory)
    if alternative.kind == "cpu" or wish is None:
        return MemoryGrowth(alternative, is_larger=False)
    shapes = tuple(shapes)
    limit = min((one for one in (asked.maximum if asked else None, rule.memory_limit) if one), default=None)
    same = MemoryGrowth(alternative, is_larger=False)
    for candidate in _with_whole_devices(alternative):
        sizes = sorted(size for size in _sizes(candidate, shapes) if limit is None or size <= limit)
        more = [size for size in sizes if size > worst]
        if more:
            near = next((size for size in more if size >= NEARLY_ENOUGH * wish), more[-1])
            return MemoryGrowth(_asking(candidate, min(near, wish)), is_larger=True)
        if sizes:
            same = MemoryGrowth(_asking(candidate, sizes[-1]), is_larger=False)
    return same


def with_host_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after the host's memory did not suffice; the parameters are those of `with_device_memory`."""
    wish, worst = _wanted_bytes(alternative.host_memory, failed, rule.memory)
    bare = with_fields(alternative, host_memory=None)
    sizes = [
        shape.cpu_device.memory_bytes
        for shape, verdict in _possible(bare, shapes)
        if shape.cpu_device is not None and verdict.suitable
    ]
    if wish is None or not sizes:
        return MemoryGrowth(alternative, is_larger=False)
    most = min(wish, max(sizes), rule.memory_limit or wish)
    if most <= (alternative.host_memory or 0):
        return MemoryGrowth(alternative, is_larger=False)
    return MemoryGrowth(with_fields(alternative, host_memory=most), is_larger=most > worst)


def with_fields(alternative: Alternative, **fields: object) -> Alternative:
    """The alternative with other values of these fields."""
    return Alternative(**{**alternative.model_dump(exclude_defaults=True), **fields})


def _wanted_bytes(begin: int | None, failed: Sequence[int | None], factor: float | None) -> tuple[int | None, int]:
    """How much to ask for, and the most that did not suffice."""
    wish, worst = begin, 0
    for known in failed:
        had = known or wish
        if had is not None and factor is not None:
            worst = max(worst, had)
            wish = max(wish or 0, int(had * factor))
    return (wish if worst else None), worst


def _with_whole_devices(alternative: Alternative) -> Iterator[Alternative]:
    yield alternative
    if alternative.share is not None:
        yield with_fields(alternative, share=None)


def _possible(alternative: Alternative, shapes: Iterable[Shape]) -> Iterator[tuple[Shape, Feasibility]]:
    for shape in shapes:
        verdict = feasibility_of(alternative, shape)
        if verdict.is_possible:
            yield shape, verdict


def _sizes(alternative: Alternative, shapes: Iterable[Shape]) -> set[int]:
    """Sizes of which some worker has as many devices, or shares, at least so large as are asked for."""
    bare = with_fields(alternative, memory=None)
    found: set[int] = set()
    for shape, verdict in _possible(bare, shapes):
        sizes = sorted((device_need(bare, shape.devices[at]).memory_bytes for at in verdict.suitable), reverse=True)
        found.update(sizes[bare.count - 1 :])
    return found


def _asking(alternative: Alternative, size: int) -> Alternative:
    limit = alternative.memory.maximum if alternative.memory else None
    return with_fields(alternative, memory=ByteRange(max(size, _own_minimum(alternative)), limit))


def _own_minimum(alternative: Alternative) -> int:
    return (alternative.memory.minimum if alternative.memory else None) or 0
