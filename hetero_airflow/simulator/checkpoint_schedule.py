"""When running jobs save themselves, so that a policy can be told of it as the store is in production."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.store.store import CheckpointSaved


class CheckpointSchedule:
    """Each job saves every so many seconds of its stay, the restart not counted.

    :param every_s: 0 or infinite: nobody is told of anything
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s if 0 < every_s < math.inf else 0.0
        self._next: list[tuple[float, int, int, JobRun]] = []
        """When, a number that orders ties, in which stay, who."""
        self._serial = 0

    def begin(self, run: JobRun) -> None:
        """Take note of a job that has got all its devices."""
        if self._every_s:
            self._plan(run.since_s + run.overhead_s + self._every_s, run)

    def until(self, now_s: float) -> Iterator[tuple[float, list[CheckpointSaved]]]:
        """The checkpoints up to and with that time, in their order: when, and under which leases."""
        while self._next and self._next[0][0] <= now_s:
            at_s, _, stay, run = heapq.heappop(self._next)
            if run.stay == stay:
                yield at_s, [CheckpointSaved(hold.lease.id, hold.lease.token) for hold in run.holds]
                self._plan(at_s + self._every_s, run)

    def _plan(self, at_s: float, run: JobRun) -> None:
        self._serial += 1
        heapq.heappush(self._next, (at_s, self._serial, run.stay, run))
