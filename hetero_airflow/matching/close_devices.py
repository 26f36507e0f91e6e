"""Which devices of one worker belong together: direct links first, then the NUMA node."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hetero_airflow.matching.shapes import Shape

_EFFORT = 200_000
"""Steps that one choice may take, about 50 ms; with 8 devices each of them is tried as the first."""


def closest_devices(shape: Shape, free: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the free positions, chosen so that many direct links and few NUMA nodes join them.

    Greedy: each device in turn is the first, then the one with the most links to those chosen is
    added, then the one with the most of them on its NUMA node, then the one that stands earlier in
    `free` (which is in order of preference); of the sets found, the one with the most joined pairs
    wins, the earlier on ties. It is not always the best set (that is the densest-subgraph problem),
    but it is on the full meshes, pairs and rings of today's hosts. Where there are very many
    devices, only the first few are tried as the first.
    """
    if count >= len(free) or count == 1 or not _has_structure(shape, free):
        return tuple(sorted(free[:count]))
    best, best_value = tuple(free[:count]), (-1, -1)
    seeds = max(1, min(len(free), _EFFORT // (len(free) * count)))
    for seed in free[:seeds]:
        chosen = _grow(shape, free, seed, count)
        value = joined_pairs(shape, chosen)
        if value > best_value:
            best, best_value = chosen, value
    return tuple(sorted(best))


def joined_pairs(shape: Shape, positions: Sequence[int]) -> tuple[int, int]:
    """How many pairs of the devices have a direct link, and how many share a NUMA node."""
    if len(positions) > 256:
        return _counted_pairs(shape, positions)
    linked = near = 0
    for one, other in combinations(positions, 2):
        linked += other in shape.links[one]
        node = shape.devices[one].numa_node
        near += node is not None and node == shape.devices[other].numa_node
    return linked, near


def _counted_pairs(shape: Shape, positions: Sequence[int]) -> tuple[int, int]:
    members = set(positions)
    linked = sum(len(shape.links[position] & members) for position in positions) // 2
    nodes: dict[int, int] = {}
    for position in positions:
        node = shape.devices[position].numa_node
        if node is not None:
            nodes[node] = nodes.get(node, 0) + 1
    return linked, sum(n * (n - 1) // 2 for n in nodes.values())


def _has_structure(shape: Shape, free: Sequence[int]) -> bool:
    nodes = {shape.devices[position].numa_node for position in free}
    return len(nodes) > 1 or any(shape.links[position] for position in free)


def _grow(shape: Shape, free: Sequence[int], seed: int, count: int) -> tuple[int, ...]:
    chosen = [seed]
    links = dict.fromkeys((position for position in free if position != seed), 0)
    near = dict(links)
    while len(chosen) < count:
        newest = chosen[-1]
        node = shape.devices[newest].numa_node
        for position in links:
            links[position] += position in shape.links[newest]
            near[position] += node is not None and node == shape.devices[position].numa_node
        following = max(links, key=lambda position: (links[position], near[position]))
        chosen.append(following)
        del links[following], near[following]
    return tuple(chosen)
