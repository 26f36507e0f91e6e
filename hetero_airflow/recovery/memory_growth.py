"""More memory for a request that ran out of it: twice what it had, up to the largest that exists. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import Feasibility, device_need, feasibility_of
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.recovery.rules import Rule
from hetero_airflow.units import ByteRange

NEARLY_ENOUGH = 7 / 8
"""This part of the wanted memory is enough: makers' sizes are round numbers less what the driver keeps, so an L40S of
45 GiB is the next size after an RTX 4090 of 24."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """An alternative with the memory to ask for now; `is_larger` if no failure had as much."""

    alternative: Alternative
    is_larger: bool


def with_device_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after it, or another one, ran out of device memory.

    A share that can't grow on any device becomes a whole device. A CPU has no device memory.

    :param failed: bytes of each device at each failure; None (not known) counts as the requested memory
    :param shapes: of all known workers; if there are none, nothing changes
    """
    requested = alternative.memory
    wanted, worst = _wanted_bytes(requested.minimum if requested else None, failed, rule.memory)
    if alternative.kind == "cpu" or wanted is None:
        return MemoryGrowth(alternative, is_larger=False)
    shapes = tuple(shapes)
    limit = min(filter(None, (requested.maximum if requested else None, rule.memory_limit)), default=None)
    same = MemoryGrowth(alternative, is_larger=False)
    for candidate in _with_whole_devices(alternative):
        sizes = sorted(size for size in _sizes(candidate, shapes) if limit is None or size <= limit)
        larger = [size for size in sizes if size > worst]
        if larger:
            nearest = next((size for size in larger if size >= NEARLY_ENOUGH * wanted), larger[-1])
            return MemoryGrowth(_with_minimum(candidate, min(nearest, wanted)), is_larger=True)
        if sizes:
            same = MemoryGrowth(_with_minimum(candidate, sizes[-1]), is_larger=False)
    return same


def with_host_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after the host ran out of memory; the parameters are those of `with_device_memory`."""
    wanted, worst = _wanted_bytes(alternative.host_memory, failed, rule.memory)
    any_size = with_fields(alternative, host_memory=None)
    sizes = [
        shape.cpu_device.memory_bytes or 0
        for shape, verdict in _possible(any_size, shapes)
        if shape.cpu_device is not None and verdict.suitable
    ]
    if wanted is None or not sizes:
        return MemoryGrowth(alternative, is_larger=False)
    most = min(wanted, max(sizes), rule.memory_limit or wanted)
    if most <= (alternative.host_memory or 0):
        return MemoryGrowth(alternative, is_larger=False)
    return MemoryGrowth(with_fields(alternative, host_memory=most), is_larger=most > worst)


def with_fields(alternative: Alternative, **fields: object) -> Alternative:
    """The alternative with other values for these fields."""
    return Alternative(**{**alternative.model_dump(exclude_defaults=True), **fields})


def _wanted_bytes(begin: int | None, failed: Sequence[int | None], factor: float | None) -> tuple[int | None, int]:
    """How much to ask for, and the largest amount that was too little."""
    wanted, worst = begin, 0
    for failure in failed:
        amount = failure or wanted
        if amount is not None and factor is not None:
            worst = max(worst, amount)
            wanted = max(wanted or 0, int(amount * factor))
    return (wanted if worst else None), worst


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
    """The known sizes for which a worker has enough devices, or shares, that are at least as large."""
    any_size = with_fields(alternative, memory=None)
    sizes: set[int] = set()
    for shape, verdict in _possible(any_size, shapes):
        on_worker = (device_need(any_size, shape.devices[at]).memory_bytes for at in verdict.suitable)
        sizes.update(sorted(on_worker, reverse=True)[any_size.count - 1 :])
    return sizes - {0}


def _with_minimum(alternative: Alternative, size: int) -> Alternative:
    requested = alternative.memory or ByteRange(None, None)
    return with_fields(alternative, memory=ByteRange(max(size, requested.minimum or 0), requested.maximum))
