"""The number of members with which a gang is tried, if its DAG lets it run with fewer.

At first, all members are tried. When all are queued and have waited for as long as the DAG file says, the size shrinks
by one every few seconds, down to the minimum. The members with the highest ranks are excluded: they hold nothing, and
are not submitted. They stay excluded while the others run, and take part again when the gang is placed again.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from airflow.utils.state import TaskInstanceState

from hetero_airflow.executor.pending_task import PendingTask


class GangAttempt(NamedTuple):
    """A placement of a gang that is waited for, or was made."""

    number: int
    size: int


class GangSizes:
    """Remembers how far the waiting gangs have shrunk, and which of them ran without all members."""

    def __init__(self) -> None:
        self._tried: dict[str, int] = {}
        self._ran_smaller: set[str] = set()

    def size_for(self, task: PendingTask, running: GangAttempt | None, requested: GangAttempt | None) -> int:
        """The size with which the gang of a waiting member is tried, or runs without that member.

        :param requested: how the gang waits in the store, maybe as another scheduler tries it
        """
        assert task.member is not None
        gang, full_size = task.member.gang, task.member.size
        if running is not None and task.member.rank >= running.size:
            return running.size
        if gang in self._ran_smaller:
            has_come_back = not task.is_excluded or requested is not None
            return full_size if has_come_back else self._tried.get(gang, full_size)
        return min(self._tried.get(gang, full_size), full_size if requested is None else requested.size)

    def shrink(self, task: PendingTask) -> bool:
        """Try one member less at once, of a gang that fits nowhere. Returns whether that is allowed."""
        if task.member is None or task.gang_size <= task.min_gang_size:
            return False
        self._tried[task.member.gang] = task.gang_size - 1
        return True

    def update(
        self,
        waiting: Collection[PendingTask],
        states: Mapping[str, Mapping[int, str | None]],
        placed: Mapping[str, GangAttempt],
        now: datetime,
    ) -> None:
        """Shrink the gangs that have waited long enough; try gangs that need a new placement with all members."""
        gangs: defaultdict[str, list[PendingTask]] = defaultdict(list)
        for task in waiting:
            if task.member is not None and task.min_gang_size < task.member.size:
                gangs[task.member.gang].append(task)
        tried: dict[str, int] = {}
        ran_smaller: set[str] = set()
        for gang, tasks in gangs.items():
            if gang in placed:
                tried[gang] = placed[gang].size
                ran_smaller.add(gang)
            elif gang in self._ran_smaller and all(task.is_excluded for task in tasks):  # it ended; none has come back
                tried[gang] = self._tried[gang]
                ran_smaller.add(gang)
            else:
                full_size = max(task.member.size for task in tasks if task.member is not None)
                size = full_size if gang in self._ran_smaller else self._tried.get(gang, full_size)
                may_shrink = size > tasks[0].min_gang_size and _have_waited_enough(tasks, states[gang], now)
                tried[gang] = size - 1 if may_shrink else size
        self._tried, self._ran_smaller = tried, ran_smaller


def _have_waited_enough(tasks: Collection[PendingTask], states: Mapping[int, str | None], now: datetime) -> bool:
    """Whether all members of a gang are queued, and have been for as long as the gang waits for its full size."""
    if set(states.values()) != {TaskInstanceState.QUEUED}:
        return False
    return all(task.waited_s(now) >= task.full_size_wait_s for task in tasks)
