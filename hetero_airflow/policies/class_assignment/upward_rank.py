"""How much of a DAG run still hangs on a task: the longest way from it to the end of its DAG. Pure."""

from __future__ import annotations

from statistics import median

from hetero_airflow.model.estimates import Estimates, TaskName

UNKNOWN_S = 600.0
"""What a task counts for where no duration of any task is known: then the ranks count tasks."""


class UpwardRanks:
    """Seconds from the start of a task to the end of the last that comes after it, if nothing waits.

    The upward rank of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1): a task's mean duration
    and the greatest rank of those that come right after it. Deviations: what a task hands over costs no time; the
    mean is over the classes on which the task's speed is known, not over devices; a task of unknown duration counts
    as the median of the known ones; an edge that closes a ring, as where tasks are known by what they have in
    common, counts for nothing.

    >>> from hetero_airflow.model.estimates import Interval
    >>> a, b, c = ("dag", "a"), ("dag", "b"), ("dag", "c")
    >>> speeds = dict.fromkeys((a, b), {"nvidia/v100": 1.0, "nvidia/k80": 0.5})
    >>> known = Estimates(speeds, dict.fromkeys((a, b), Interval(10, 20, 30)), edges={a: (b, c), b: (c,)})
    >>> ranks = UpwardRanks()
    >>> [ranks.of(task, known) for task in (a, b, c)]
    [90.0, 60.0, 30.0]
    """

    def __init__(self) -> None:
        self._told: tuple[object, ...] = ()
        self._ranks: dict[TaskName, float] = {}
        self._paths: dict[TaskName, float] = {}
        self._unknown_s = UNKNOWN_S

    def of(self, task: TaskName, estimates: Estimates) -> float:
        """The rank of a task by these estimates; remembered while they tell of the same works, speeds and edges."""
        self._learn(estimates)
        rank = self._ranks.get(task)
        return rank if rank is not None else self._own(task, estimates)

    def path_s(self, task: TaskName, estimates: Estimates) -> float:
        """The longest way through the DAG that the task is a part of, from any first task to any last."""
        self._learn(estimates)
        path_s = self._paths.get(task)
        return path_s if path_s is not None else self._own(task, estimates)

    def _learn(self, estimates: Estimates) -> None:
        told = (estimates.works, estimates.speeds, estimates.edges)
        if not self._told or any(new is not old for new, old in zip(told, self._told, strict=True)):
            self._told = told
            known = [mean for name in estimates.works if (mean := mean_s(name, estimates)) is not None]
            self._unknown_s = median(known) if known else UNKNOWN_S
            self._ranks = self._all(estimates)
            self._paths = self._longest(estimates)

    def _own(self, task: TaskName, estimates: Estimates) -> float:
        mean = mean_s(task, estimates)
        return self._unknown_s if mean is None else mean

    def _all(self, estimates: Estimates) -> dict[TaskName, float]:
        """Of every task that something comes after, and of what does; depth first, from the first by name."""
        ranks: dict[TaskName, float] = {}
        is_open: dict[TaskName, bool] = {}
        edges = estimates.edges
        for root in sorted(edges):
            stack = [root]
            while stack:
                task = stack[-1]
                if task not in is_open:
                    is_open[task] = True
                    stack += (after for after in edges.get(task, ()) if after not in is_open)
                    continue
                stack.pop()
                if is_open[task]:
                    is_open[task] = False
                    ranks[task] = self._own(task, estimates) + max(
                        (ranks[after] for after in edges.get(task, ()) if after in ranks), default=0.0
                    )
        return ranks

    def _longest(self, estimates: Estimates) -> dict[TaskName, float]:
        """The greatest rank among all tasks that edges join with it, whichever way they lead."""
        joined = {task: task for task in self._ranks}

        def root(task: TaskName) -> TaskName:
            while joined[task] != task:
                joined[task] = task = joined[joined[task]]
            return task

        for before, afters in estimates.edges.items():
            for after in afters:
                joined[root(after)] = root(before)
        paths: dict[TaskName, float] = {}
        for task, rank in self._ranks.items():
            paths[root(task)] = max(paths.get(root(task), 0.0), rank)
        return {task: paths[root(task)] for task in self._ranks}


def mean_s(task: TaskName, estimates: Estimates) -> float | None:
    """The mean over the classes whose speed is known of how long a run of the task takes there; None: not known."""
    found = (estimates.duration_s(task, name) for name in estimates.speeds.get(task, ()))
    known = [duration.middle for duration in found if duration is not None]
    return sum(known) / len(known) if known else None
