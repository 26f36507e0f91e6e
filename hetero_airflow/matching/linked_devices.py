"""Sets of devices of one worker of which every pair is joined: what a topology demand leaves to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetero_airflow.matching.bandwidth import has_numa_nodes
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.topology import Level

MAX_STEPS = 5_000
"""Of one search, about 10 ms. Hosts of up to 16 devices need less, whatever joins them; of stranger ones a
set may be overlooked, so that a request waits although it might have been placed."""


def needed_level(alternative: Alternative) -> Level | None:
    """The level at which all devices of one request must be joined; None if any will do.

    A demand with a waiting budget needs nothing by itself: who decides makes it hard for as long as it waits.
    """
    topology = alternative.topology
    if topology is None or topology.budget_s is not None or not topology.level.is_within_worker:
        return None
    return topology.level if alternative.count > 1 else None


def joined_sets(shape: Shape, positions: Sequence[int], level: Level, count: int) -> list[tuple[int, ...]]:
    """The largest sets of the positions, of `count` or more, in which each pair has that level in common.

    Every part of such a set is joined too. The sets are the maximal cliques of the graph of joined
    pairs, found by Bron and Kerbosch's algorithm with Tomita's pivot (Theoretical Computer Science 363, 2006),
    less branches that are too small; ordered by their positions.
    """
    neighbours = _neighbours(shape, positions, level)
    found: list[tuple[int, ...]] = []
    steps = MAX_STEPS
    stack = [(0, _mask(positions), 0)]
    while stack and steps:
        steps -= 1
        chosen, candidates, done = stack.pop()
        if chosen.bit_count() + candidates.bit_count() < count:
            continue
        if not candidates:
            if not done:
                found.append(tuple(_bits(chosen)))
            continue
        pivot = max(_bits(candidates | done), key=lambda p: (neighbours[p] & candidates).bit_count())
        for position in _bits(candidates & ~neighbours[pivot]):
            stack.append((chosen | 1 << position, candidates & neighbours[position], done & neighbours[position]))
            candidates &= ~(1 << position)
            done |= 1 << position
    return sorted(found)


def _neighbours(shape: Shape, positions: Sequence[int], level: Level) -> dict[int, int]:
    """Position → the positions that are joined to it, as bits."""
    inside = _mask(positions)
    joined = {p: _mask(shape.links[p]) & inside for p in positions}
    for p in positions:
        for other in _bits(joined[p]):
            joined[other] |= 1 << p
    if level is not Level.NVLINK:
        groups: dict[object, int] = {}
        are_known = has_numa_nodes(shape.devices)
        for p in positions:
            device = shape.devices[p]
            node = device.numa_node if are_known else "host"
            for group in {node, device.parent} - {None}:
                groups[group] = groups.get(group, 0) | 1 << p
        for group in groups.values():
            for p in _bits(group):
                joined[p] |= group
    return {p: mask & ~(1 << p) for p, mask in joined.items()}


def _mask(positions: Sequence[int] | frozenset[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _bits(mask: int) -> Iterator[int]:
    """Positions of the bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
