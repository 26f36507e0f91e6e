"""Devices of one worker that belong together: sets joined as a topology requires, and the best-linked choice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from hetero_airflow.matching.bandwidth import has_numa_nodes
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.topology import Level

MAX_STEPS = 5_000
"""Limit of one search for joined sets, about 10 ms. Hosts with up to 16 devices need less, with any links. On larger
unusual hosts the search may miss a set, and a request waits although it could be placed."""

_MAX_CHOICE_STEPS = 200_000
"""Limit of one choice of devices, about 50 ms. With 8 devices, each of them is tried as the first."""


def needed_level(alternative: Alternative) -> Level | None:
    """The level that all devices of one request must share; None if any devices will do.

    A topology with a wait budget requires nothing here: the policy makes it hard while the request waits.
    """
    topology = alternative.topology
    if topology is None or topology.budget_s is not None or not topology.level.is_within_worker:
        return None
    return topology.level if alternative.count > 1 else None


def joined_sets(shape: Shape, positions: Sequence[int], level: Level, count: int) -> list[tuple[int, ...]]:
    """The largest sets of at least `count` positions in which each pair shares that level, in ascending order.

    Every part of such a set is joined too. The sets are the maximal cliques of the graph of joined pairs. They are
    found with the algorithm of Bron and Kerbosch and Tomita's pivot (Theoretical Computer Science 363, 2006), without
    branches that are too small.
    """
    neighbours = _neighbours(shape, positions, level)
    cliques: list[tuple[int, ...]] = []
    steps = MAX_STEPS
    stack = [(0, _mask(positions), 0)]
    while stack and steps:
        steps -= 1
        chosen, candidates, done = stack.pop()
        if chosen.bit_count() + candidates.bit_count() < count:
            continue
        if not candidates:
            if not done:
                cliques.append(tuple(_bits(chosen)))
            continue
        pivot = max(_bits(candidates | done), key=lambda p: (neighbours[p] & candidates).bit_count())
        for position in _bits(candidates & ~neighbours[pivot]):
            stack.append((chosen | 1 << position, candidates & neighbours[position], done & neighbours[position]))
            candidates &= ~(1 << position)
            done |= 1 << position
    return sorted(cliques)


def closest_devices(shape: Shape, free: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the free positions, chosen so that many direct links and few NUMA nodes join them.

    Greedy: each device in turn is the first. Then the device with the most links to the chosen ones is added; ties go
    to the one with the most of them on its NUMA node, then to the earlier one in `free` (the order of preference). Of
    the resulting sets, the one with the most joined pairs wins, the earlier on ties. The result is not always optimal
    (that is the densest-subgraph problem), but it is on the full meshes, pairs and rings of today's hosts. With very
    many devices, only the first few are tried as the first.
    """
    if count >= len(free) or count == 1 or not _has_structure(shape, free):
        return tuple(sorted(free[:count]))
    best, best_value = tuple(free[:count]), (-1, -1)
    seeds = max(1, min(len(free), _MAX_CHOICE_STEPS // (len(free) * count)))
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
    for first, second in combinations(positions, 2):
        linked += second in shape.links[first]
        node = shape.devices[first].numa_node
        near += node is not None and node == shape.devices[second].numa_node
    return linked, near


def _counted_pairs(shape: Shape, positions: Sequence[int]) -> tuple[int, int]:
    members = set(positions)
    linked = sum(len(shape.links[position] & members) for position in positions) // 2
    nodes = Counter(shape.devices[position].numa_node for position in positions)
    return linked, sum(n * (n - 1) // 2 for node, n in nodes.items() if node is not None)


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


def _neighbours(shape: Shape, positions: Sequence[int], level: Level) -> dict[int, int]:
    """Position → the positions that are joined to it, as bits."""
    inside = _mask(positions)
    joined = {p: _mask(shape.links[p]) & inside for p in positions}
    for p in positions:
        for neighbour in _bits(joined[p]):
            joined[neighbour] |= 1 << p
    if level is not Level.NVLINK:
        for group in _numa_groups(shape, positions):
            for p in _bits(group):
                joined[p] |= group
    return {p: mask & ~(1 << p) for p, mask in joined.items()}


def _numa_groups(shape: Shape, positions: Sequence[int]) -> list[int]:
    """The positions of each NUMA node and of each parent device, as bits."""
    groups: dict[object, int] = {}
    are_known = has_numa_nodes(shape.devices)
    for p in positions:
        device = shape.devices[p]
        node = device.numa_node if are_known else "host"
        for group in {node, device.parent} - {None}:
            groups[group] = groups.get(group, 0) | 1 << p
    return list(groups.values())


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
