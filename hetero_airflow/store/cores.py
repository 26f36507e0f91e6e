"""Which cores of a CPU a lease gets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose_cores(cores: Sequence[int], taken: Collection[int], count: int) -> tuple[int, ...] | None:
    """`count` free cores that lie close together, or None where fewer are free.

    `cores` are ordered by NUMA node, so that neighbours in it share caches and memory. The shortest
    run of free neighbours that is long enough is taken (best fit: long runs stay whole for later
    requests); where no run is long enough, the free cores that span the least. Ties go to the first.

    >>> choose_cores((0, 1, 2, 3, 4, 5), taken={1}, count=2)
    (2, 3)
    >>> choose_cores((0, 2, 4, 6, 1, 3, 5, 7), taken={0, 4, 1}, count=3)
    (3, 5, 7)
    >>> choose_cores((0, 1, 2, 3), taken={1}, count=4) is None
    True
    """
    if count <= 0:
        return ()
    free = [position for position, core in enumerate(cores) if core not in taken]
    if len(free) < count:
        return None
    runs: list[list[int]] = []
    for position in free:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    chosen = min((run for run in runs if len(run) >= count), key=len, default=None)
    if chosen is None:
        starts = range(len(free) - count + 1)
        first = min(starts, key=lambda start: free[start + count - 1] - free[start])
        chosen = free[first:]
    return tuple(cores[position] for position in chosen[:count])
