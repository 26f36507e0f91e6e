"""How much of a DAG run still depends on a task: the longest path from the task to the end of its DAG. Pure."""

from statistics import median

from hetero_airflow.model.estimates import Estimates, TaskName

UNKNOWN_S = 600.0
"""The assumed duration of each task where no duration of any task is known: then the ranks count tasks."""


class UpwardRanks:
    """Seconds from the start of a task to the end of the last task that follows it, if nothing waits.

    The upward rank of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1): a task's mean duration plus
    the greatest rank of the tasks right after it. Deviations: passing data costs no time; the mean is over the classes
    on which the task's speed is known, not over devices; a task of unknown duration counts as the median of the known
    ones; an edge that closes a cycle is ignored (tasks that share a name can form one).

    >>> from hetero_airflow.model.estimates import Interval
    >>> a, b, c = ("dag", "a"), ("dag", "b"), ("dag", "c")
    >>> speeds = dict.fromkeys((a, b), {"nvidia/v100": 1.0, "nvidia/k80": 0.5})
    >>> known = Estimates(speeds, dict.fromkeys((a, b), Interval(10, 20, 30)), edges={a: (b, c), b: (c,)})
    >>> ranks = UpwardRanks()
    >>> [ranks.rank_s(task, known) for task in (a, b, c)]
    [90.0, 60.0, 30.0]
    """

    def __init__(self) -> None:
        self._basis: tuple[object, ...] = ()
        self._ranks: dict[TaskName, float] = {}
        self._paths: dict[TaskName, float] = {}
        self._unknown_s = UNKNOWN_S

    def rank_s(self, task: TaskName, estimates: Estimates) -> float:
        """The rank of a task; cached while the estimates have the same works, speeds and edges."""
        self._update(estimates)
        rank = self._ranks.get(task)
        return rank if rank is not None else self._duration_s(task, estimates)

    def path_s(self, task: TaskName, estimates: Estimates) -> float:
        """The longest path through the DAG of the task, from any first task to any last."""
        self._update(estimates)
        path_s = self._paths.get(task)
        return path_s if path_s is not None else self._duration_s(task, estimates)

    def _update(self, estimates: Estimates) -> None:
        basis = (estimates.works, estimates.speeds, estimates.edges)
        if not self._basis or any(new is not old for new, old in zip(basis, self._basis, strict=True)):
            self._basis = basis
            means = [mean for name in estimates.works if (mean := mean_s(name, estimates)) is not None]
            self._unknown_s = median(means) if means else UNKNOWN_S
            self._ranks = self._all_ranks(estimates)
            self._paths = self._longest_paths(estimates)

    def _duration_s(self, task: TaskName, estimates: Estimates) -> float:
        mean = mean_s(task, estimates)
        return self._unknown_s if mean is None else mean

    def _all_ranks(self, estimates: Estimates) -> dict[TaskName, float]:
        """The ranks of all tasks with an edge; depth first, in the order of names."""
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
                    after_s = max((ranks[after] for after in edges.get(task, ()) if after in ranks), default=0.0)
                    ranks[task] = self._duration_s(task, estimates) + after_s
        return ranks

    def _longest_paths(self, estimates: Estimates) -> dict[TaskName, float]:
        """Task → the greatest rank of all tasks that edges connect with it, in either direction."""
        parent = {task: task for task in self._ranks}

        def root(task: TaskName) -> TaskName:
            while parent[task] != task:
                parent[task] = task = parent[parent[task]]
            return task

        for before, afters in estimates.edges.items():
            for after in afters:
                parent[root(after)] = root(before)
        paths: dict[TaskName, float] = {}
        for task, rank in self._ranks.items():
            paths[root(task)] = max(paths.get(root(task), 0.0), rank)
        return {task: paths[root(task)] for task in self._ranks}


def mean_s(task: TaskName, estimates: Estimates) -> float | None:
    """The mean duration of a run over the classes with a known speed; None: unknown."""
    durations = (estimates.duration_s(task, name) for name in estimates.speeds.get(task, ()))
    middles = [duration.middle for duration in durations if duration is not None]
    return sum(middles) / len(middles) if middles else None
