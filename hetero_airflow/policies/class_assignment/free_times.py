"""When the whole devices of each class are expected to be free. Pure."""

import heapq
import math
from bisect import insort
from datetime import datetime

from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.core.run_ends import run_ends
from hetero_airflow.units import MILLI_PER_DEVICE

MAX_CHOICES = 1000
"""A class is chosen for so many requests at the front of the queue; others are placed where they fit."""

_AT_ONCE_S = 1.0
"""A lease that has been taken back, or that is overdue, ends within this time."""


class FreeTimes:
    """The devices of an assignment problem. All times are seconds from now; those of runs are middle estimates."""

    def __init__(self, problem: AssignmentProblem, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> None:
        self._times: dict[str, dict[int, list[float]]] = {
            name: {worker: [0.0] * devices for worker, devices in workers.items()}
            for name, workers in problem.free.items()
        }
        """Class → worker → when each of its devices is free, ascending."""
        ends = run_ends(snapshot, index, now)
        for lease in snapshot.leases:
            number, end = index.numbers.get(lease.worker_id), ends.get(lease.id)
            if number is None or index.states[number].is_lost or (end is None and lease.state is LeaseState.EXPIRED):
                continue
            entry = index.entries[number]
            for claim in lease.claims:
                position = entry.position.get(claim.device_id)
                device = None if position is None else entry.shape.devices[position]
                if (
                    device is not None
                    and device.leasable
                    and device.kind != "cpu"
                    and claim.share_milli == MILLI_PER_DEVICE
                ):
                    times = self._times.setdefault(device_class(device), {}).setdefault(number, [])
                    times.append(_AT_ONCE_S if end is None else max(end.middle_s, _AT_ONCE_S))
        for by_worker in self._times.values():
            for times in by_worker.values():
                times.sort()
        self.devices = {name: sum(map(len, by_worker.values())) for name, by_worker in self._times.items()}
        """Class → its number of devices."""
        self._first: dict[tuple[str, int], list[tuple[float, int]]] = {}
        """(class, number of devices) → heap of (when this number is free, worker); an entry may be out of date."""

    def ready(self, candidate: Candidate) -> dict[str, tuple[float, int]]:
        """Class → (when enough of its devices are free on one worker, the number of the worker), where it can run."""
        found = {}
        for name, speed in sorted(candidate.speeds.items()):
            if speed > 0 and name in self._times:
                at, worker = self._ready(name, candidate.count)
                if at < math.inf:
                    found[name] = at, worker
        return found

    def _ready(self, name: str, count: int) -> tuple[float, int]:
        """When this number of devices of one worker is free, and which worker; ties go to the first worker."""
        by_worker = self._times[name]
        first = self._first.get((name, count))
        if first is None:
            first = [(times[count - 1], worker) for worker, times in by_worker.items() if len(times) >= count]
            heapq.heapify(first)
            self._first[name, count] = first
        while first and by_worker[first[0][1]][count - 1] != first[0][0]:
            heapq.heappop(first)
        return first[0] if first else (math.inf, 0)

    def occupy(self, name: str, worker: int, count: int, until_s: float) -> None:
        """Take the devices of a worker that are free first, until that time."""
        times = self._times[name][worker]
        del times[:count]
        for _ in range(count):
            insort(times, until_s)
        for (class_name, size), first in self._first.items():
            if class_name == name and size <= len(times):
                heapq.heappush(first, (times[size - 1], worker))
