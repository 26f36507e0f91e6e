"""What a simulation has in place of the world: an engine, a queue of events, and the checkpoints of running jobs."""

import heapq
import math
from collections.abc import Callable, Iterator

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Preempt
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.store.store import CheckpointSaved


class SimulatedEngine:
    """An `Engine` and a `Preemptor` without limits of its own. The simulation makes happen what it is asked for."""

    def __init__(self) -> None:
        self.preempted: list[Lease] = []
        """Leases whose holders have to end; the simulation empties it."""

    def dispatch(self, lease: Lease) -> None:
        """Every start succeeds; the result of the cycle tells what was dispatched."""

    def preempt(self, lease: Lease, order: Preempt) -> None:
        """Note the lease."""
        self.preempted.append(lease)

    def is_ours(self, request_id: str) -> bool:
        """There is no other scheduler."""
        return True

    def reaches(self, worker_id: str) -> bool:
        """The engine reaches every worker."""
        return True

    def open_slots(self) -> int | None:
        """As many as there are devices."""
        return None

    def liveness(self, lease: Lease) -> Liveness:
        """No lease expires here, and no process runs."""
        return Liveness.GONE


class EventQueue:
    """Discrete events, ordered by time, then by their order of creation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None], Callable[[], bool]]] = []
        self._serial = 0

    @property
    def next_s(self) -> float:
        """The time of the next event that still holds; infinite if there is none."""
        while self._heap and not self._heap[0][3]():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def at(
        self,
        time_s: float,
        happen: Callable[[], None] = lambda: None,
        still_holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Call a function at that time. Without a function, the simulation only decides.

        :param still_holds: once it is False, it stays False, and the event does not happen and wakes nobody
        """
        self._serial += 1
        heapq.heappush(self._heap, (time_s, self._serial, happen, still_holds))

    def advance(self) -> None:
        """Go on to the next event, and take in all events of its moment."""
        self.now_s = self.next_s
        while self.next_s == self.now_s:
            heapq.heappop(self._heap)[2]()


class CheckpointSchedule:
    """When running jobs save a checkpoint: at a fixed interval of seconds on devices, not counting the restart.

    :param every_s: 0 or infinite: no checkpoint is reported
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s if 0 < every_s < math.inf else 0.0
        self._next: list[tuple[float, int, int, JobRun]] = []
        """Time, a number that orders ties, number of the interval, job."""
        self._serial = 0

    def begin(self, run: JobRun) -> None:
        """Plan the checkpoints of a job that has got all its devices."""
        if self._every_s:
            self._plan(run.since_s + run.overhead_s + self._every_s, run)

    def until(self, now_s: float) -> Iterator[tuple[float, list[CheckpointSaved]]]:
        """The checkpoints up to and including that time, in their order: time, and the leases of the job."""
        while self._next and self._next[0][0] <= now_s:
            at_s, _, interval_number, run = heapq.heappop(self._next)
            if run.interval_number == interval_number:
                yield at_s, [CheckpointSaved(rank.lease.id, rank.lease.token) for rank in run.rank_leases]
                self._plan(at_s + self._every_s, run)

    def _plan(self, at_s: float, run: JobRun) -> None:
        self._serial += 1
        heapq.heappush(self._next, (at_s, self._serial, run.interval_number, run))
