"""Which job goes to which class of devices, so that the sum of the values is greatest. Pure.

Two steps. The first allows a job to be split over classes. This is a transport problem with one node for each class and
one for waiting. It is solved by cancelling cycles of exchanges that gain (Klein, Management Science 14, 1967), here on
the graph of the classes, because only the best job counts for each pair of them. Where every job takes one device, the
result is the exact optimum. The second step makes the few split jobs whole and improves the result by exchanges. It
tries only the jobs that the prices of the first step leave open (reduced-cost fixing): a change that the relaxation
proves to lose more than the gap is never tried.
"""

import math
from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from hetero_airflow.policies.core.linear_program import Floats, Numbers

WAITING = -1
"""Stands in place of a class: the job gets no devices."""

_GAIN, _ROUNDING = 1e-9, 1e-13
"""A smaller gain, or a smaller part of the greatest value, counts as none; rounding errors would never end."""


def solve_assignment(values: Floats, sizes: Numbers, capacities: Numbers, start: Numbers) -> Numbers:
    """The class of each job, or `WAITING`; of equal assignments the one nearest to the start.

    >>> values = np.array([[1.0, 0.9], [1.0, 0.5], [0.2, 0.1]])
    >>> solve_assignment(values, np.ones(3, int), np.array([1, 1]), np.full(3, WAITING)).tolist()
    [1, 0, -1]

    :param values: ``float [jobs, classes]``, the value of a whole job on the class; -inf where it can't run
    :param sizes: ``int [jobs]``, devices that a job takes, at least 1
    :param capacities: ``int [classes]``, devices of each class
    :param start: ``int [jobs]``, the class of each job now; must fit the capacities
    """
    if not len(values):
        return np.empty(0, np.int64)
    least = max(_GAIN, _ROUNDING * float(values.max()))
    relaxed = _Relaxed(values, sizes, capacities, start)
    prices = relaxed.solve(least)
    classes = relaxed.whole()
    if (sizes == 1).all():
        return classes
    return _Exchange(values, sizes, capacities, classes, prices).improve(least)


class _Relaxed:
    """The relaxed problem: the devices of a job may be of several classes."""

    def __init__(self, values: Floats, sizes: Numbers, capacities: Numbers, start: Numbers) -> None:
        jobs, classes = values.shape
        self._idle = classes
        self._sizes = sizes
        self._gains = np.zeros((jobs, classes + 1))
        self._gains[:, :classes] = values / sizes[:, None]
        self._units = np.zeros((jobs, classes + 1), np.int64)
        """Devices of each job in each class; the last column has those for which it waits."""
        self._units[np.arange(jobs), np.where(start == WAITING, classes, start)] = sizes
        self._free = [int(c) for c in capacities - self._units[:, :classes].sum(axis=0)]
        self._fill(values)

    def _fill(self, values: Floats) -> None:
        """Give free devices to waiting jobs, the greatest value first: a start near the optimum."""
        waiting = np.flatnonzero(self._units[:, self._idle])
        if not len(waiting) or not any(self._free):
            return
        best = self._gains[waiting, : self._idle].max(axis=1)
        for job in waiting[np.argsort(-best, kind="stable")]:
            size = int(self._sizes[job])
            for where in np.argsort(-values[job], kind="stable"):
                if values[job, where] > 0 and self._free[where] >= size:
                    self._units[job, where], self._units[job, self._idle] = size, 0
                    self._free[where] -= size
                    break
            if not any(self._free):
                break

    def solve(self, least: float) -> Floats:
        """Exchange until nothing gains more than `least`; the price of a device of each class."""
        leavers = self._leavers()
        while True:
            gains, movers = self._best_moves(leavers)
            cycle = _gaining_cycle(gains, least)
            if cycle is None:
                return _prices(gains, least)
            steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
            amount = min(self._movable(a, movers[a][b]) for a, b in steps)
            for a, b in steps:
                job = movers[a][b]
                if job is None:
                    self._shift(a, amount)
                    self._shift(b, -amount)
                else:
                    self._units[job, a] -= amount
                    self._units[job, b] += amount
                    row = self._gains[job].tolist()
                    for to, queue in leavers[b].items():
                        heappush(queue.later, (row[b] - row[to], job))

    def _leavers(self) -> "list[dict[int, _Leavers]]":
        """[node][other node] → the jobs that may leave the first for the second."""
        nodes = range(self._idle + 1)
        leavers: list[dict[int, _Leavers]] = []
        for a in nodes:
            groups_here = np.flatnonzero(self._units[:, a])
            losses = self._gains[groups_here, a, None] - self._gains[groups_here]
            orders = {b: np.argsort(losses[:, b], kind="stable") for b in nodes if b != a}
            leavers.append(
                {
                    b: _Leavers(self._units[:, a], losses[order, b].tolist(), groups_here[order].tolist())
                    for b, order in orders.items()
                }
            )
        return leavers

    def _best_moves(self, leavers: "list[dict[int, _Leavers]]") -> tuple[list[list[float]], list[list[int | None]]]:
        """[node][other node] → the greatest gain of moving one device's work, and its job; None: no job has to move."""
        nodes = self._idle + 1
        gains = [[-math.inf] * nodes for _ in range(nodes)]
        movers: list[list[int | None]] = [[None] * nodes for _ in range(nodes)]
        for a, queues in enumerate(leavers):
            for b, queue in queues.items():
                first = queue.first()
                if first is not None:
                    gains[a][b], movers[a][b] = -first[0], first[1]
        for a, free in enumerate(self._free):
            if free and gains[a][self._idle] < 0:
                gains[a][self._idle], movers[a][self._idle] = 0.0, None
            if gains[self._idle][a] < 0:
                gains[self._idle][a], movers[self._idle][a] = 0.0, None
        return gains, movers

    def _movable(self, a: int, job: int | None) -> int:
        if job is not None:
            return int(self._units[job, a])
        return self._free[a] if a != self._idle else int(self._sizes.sum())

    def _shift(self, node: int, amount: int) -> None:
        """Change a node's free devices, where no job moves."""
        if node != self._idle:
            self._free[node] -= amount

    def whole(self) -> Numbers:
        """The class of each job that is not split; `WAITING` for split jobs."""
        where = self._units.argmax(axis=1)
        is_whole = self._units[np.arange(len(where)), where] == self._sizes
        return np.where(is_whole & (where != self._idle), where, WAITING)


class _Leavers:
    """Jobs that may leave one node for another, the least loss first: those of the start, and those that came later."""

    __slots__ = ("_jobs", "_losses", "_next", "_units", "later")

    def __init__(self, units: Numbers, losses: list[float], jobs: list[int]) -> None:
        self._units = units
        """Devices of each job in the node; a view that changes."""
        self._losses = losses
        self._jobs = jobs
        self._next = 0
        self.later: list[tuple[float, int]] = []
        """A heap of (loss, job)."""

    def first(self) -> tuple[float, int] | None:
        """(loss, job) of the first job that is still in the node."""
        while self._next < len(self._jobs) and not self._units[self._jobs[self._next]]:
            self._next += 1
        while self.later and not self._units[self.later[0][1]]:
            heappop(self.later)
        early = (self._losses[self._next], self._jobs[self._next]) if self._next < len(self._jobs) else None
        late = self.later[0] if self.later else None
        return min(filter(None, (early, late)), default=None)


def _gaining_cycle(gains: list[list[float]], least: float) -> list[int] | None:
    """Nodes of a cycle whose gains sum to more than `least`; None if there is none (Bellman and Ford)."""
    nodes = range(len(gains))
    best, before = [0.0 for _ in nodes], [-1 for _ in nodes]
    last = -1
    for _ in nodes:
        last = -1
        for a in nodes:
            for b, gain in enumerate(gains[a]):
                if best[a] + gain > best[b] + least:
                    best[b], before[b], last = best[a] + gain, a, b
        if last < 0:
            return None
    for _ in nodes:
        last = before[last]
    cycle = [last]
    while before[cycle[-1]] != last:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def _prices(gains: list[list[float]], least: float) -> Floats:
    """The dual solution: what one more device of each class would add to the value; the longest paths from waiting."""
    nodes = range(len(gains))
    best = [-math.inf for _ in nodes]
    best[-1] = 0.0
    for _ in nodes:
        for a in nodes:
            for b, gain in enumerate(gains[a]):
                if best[a] + gain > best[b] + least:
                    best[b] = best[a] + gain
    return np.array(best[:-1])


class _Exchange:
    """Improves an assignment of whole jobs: it puts one job into a class and others out of it."""

    def __init__(self, values: Floats, sizes: Numbers, capacities: Numbers, assigned: Numbers, prices: Floats) -> None:
        self._values: list[list[float]] = values.tolist()
        self._sizes: list[int] = sizes.tolist()
        self._assigned: list[int] = assigned.tolist()
        classes = len(capacities)
        self._free = [int(capacities[k] - sizes[assigned == k].sum()) for k in range(classes)]
        self._members = [
            sorted(self._entry(int(job), k) for job in np.flatnonzero(assigned == k)) for k in range(classes)
        ]
        """The jobs of each class, those with the least value for each device first."""
        margins = np.concatenate([values - sizes[:, None] * prices, np.zeros((len(values), 1))], axis=1)
        self._losses = margins.max(axis=1, keepdims=True) - margins[:, :classes]
        """What putting a job into a class loses at least, as the relaxation proves."""
        self._bound = float(margins.max(axis=1).sum() + capacities @ prices)

    def improve(self, least: float) -> Numbers:
        """Exchange until nothing gains more than `least`; the class of each job."""
        while True:
            gap = self._bound - sum(self._value(job) for job in range(len(self._assigned)))
            jobs, classes = np.nonzero(self._losses <= gap + least)
            order = np.argsort(self._losses[jobs, classes], kind="stable")
            gained = [self._try(int(jobs[i]), int(classes[i]), least) for i in order]
            if not any(gained):
                return np.array(self._assigned)

    def _value(self, job: int) -> float:
        where = self._assigned[job]
        return 0.0 if where == WAITING else self._values[job][where]

    def _entry(self, job: int, where: int) -> tuple[float, int]:
        return self._values[job][where] / self._sizes[job], job

    def _try(self, job: int, to: int, least: float) -> bool:
        """Put the job into the class, and move other jobs for it, if that gains."""
        gain, was = self._values[job][to] - self._value(job), self._assigned[job]
        if was == to or gain <= least:
            return False
        free = self._free.copy()
        if was != WAITING:
            free[was] += self._sizes[job]
        free[to] -= self._sizes[job]
        moved = self._move_out(to, free)
        for moved_job, where in moved.items():
            gain += (0.0 if where == WAITING else self._values[moved_job][where]) - self._values[moved_job][to]
        if free[to] < 0 or gain <= least:
            return False
        for mover, where in {job: to, **moved}.items():
            self._put(mover, where)
        self._free = free
        return True

    def _move_out(self, full: int, free: list[int]) -> dict[int, int]:
        """Jobs of a class that has too few devices → their next best classes; `free` is updated."""
        chosen: list[int] = []
        for _, job in self._members[full]:
            if free[full] >= 0:
                break
            chosen.append(job)
            free[full] += self._sizes[job]
        moved: dict[int, int] = {}
        for job in sorted(chosen, key=lambda job: (-self._values[job][full], job)):
            if free[full] >= self._sizes[job]:
                free[full] -= self._sizes[job]
            else:
                moved[job] = self._next_best(job, free)
        return moved

    def _put(self, job: int, where: int) -> None:
        was, self._assigned[job] = self._assigned[job], where
        if was != WAITING:
            members = self._members[was]
            del members[bisect_left(members, self._entry(job, was))]
        if where != WAITING:
            insort(self._members[where], self._entry(job, where))

    def _next_best(self, job: int, free: list[int]) -> int:
        """The best class with enough free devices; `free` is updated."""
        possible = [k for k, value in enumerate(self._values[job]) if value > 0 and free[k] >= self._sizes[job]]
        if not possible:
            return WAITING
        best = max(possible, key=lambda k: (self._values[job][k], -k))
        free[best] -= self._sizes[job]
        return best
