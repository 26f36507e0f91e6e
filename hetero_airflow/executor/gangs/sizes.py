"""With how many of its members a gang is tried that may go on with fewer.

All of them at first. When all are queued and have waited in vain for as long as the DAG file says, one less every few
seconds, down to the least; who is left out is last in rank, holds nothing, and is not submitted. He stays left out
for as long as the others run, and is in it again when the gang is placed anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from airflow.utils.state import TaskInstanceState

from hetero_airflow.executor.pending_task import PendingTask


class GangAttempt(NamedTuple):
    """A placement of a gang, waited for or had."""

    number: int
    size: int


class GangSizes:
    """Remembers how far the gangs that wait have come down, and which of them ran without all their members."""

    def __init__(self) -> None:
        self._tried: dict[str, int] = {}
        self._ran: set[str] = set()

    def of(self, one: PendingTask, running: GangAttempt | None, asked: GangAttempt | None) -> int:
        """With how many members the gang of a held one is tried, or runs without that one.

        :param asked: how the gang waits in the store, maybe as another scheduler tries it
        """
        assert one.seat is not None
        gang, most = one.seat.gang, one.seat.size
        if running is not None and one.seat.rank >= running.size:
            return running.size
        if gang in self._ran:
            has_come_back = not one.is_left_out or asked is not None
            return most if has_come_back else self._tried.get(gang, most)
        return min(self._tried.get(gang, most), most if asked is None else asked.size)

    def shrink(self, one: PendingTask) -> bool:
        """Try one less at once, of a gang for which there could never be room; whether that may be."""
        if one.seat is None or one.gang_size <= one.least:
            return False
        self._tried[one.seat.gang] = one.gang_size - 1
        return True

    def step(
        self,
        waiting: Collection[PendingTask],
        members: Mapping[str, Mapping[int, str | None]],
        placed: Mapping[str, GangAttempt],
        now: datetime,
    ) -> None:
        """Try one less of those that have waited long enough, and all of those that are to be placed anew."""
        gangs: defaultdict[str, list[PendingTask]] = defaultdict(list)
        for one in waiting:
            if one.seat is not None and one.least < one.seat.size:
                gangs[one.seat.gang].append(one)
        tried: dict[str, int] = {}
        ran: set[str] = set()
        for gang, held in gangs.items():
            if gang in placed:
                tried[gang] = placed[gang].size
                ran.add(gang)
            elif gang in self._ran and all(one.is_left_out for one in held):  # it has ended; nobody has come back
                tried[gang] = self._tried[gang]
                ran.add(gang)
            else:
                most = max(one.seat.size for one in held if one.seat is not None)
                size = most if gang in self._ran else self._tried.get(gang, most)
                tried[gang] = (
                    size - 1 if size > held[0].least and _have_waited_enough(held, members[gang], now) else size
                )
        self._tried, self._ran = tried, ran


def _have_waited_enough(held: Collection[PendingTask], members: Mapping[int, str | None], now: datetime) -> bool:
    """Whether all members of a gang are queued, and have been for as long as its patience lasts."""
    if set(members.values()) != {TaskInstanceState.QUEUED}:
        return False
    return all((now - one.since).total_seconds() >= one.patience_s for one in held)
