"""When devices are expected to be free, and where a request would finish earliest. Pure."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_airflow.policies.class_assignment.candidates import OVERDUE, AssignmentProblem, Candidate, PlacementOption


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The class of devices on which a request is expected to finish earliest."""

    way: PlacementOption
    name: str
    ready_s: float
    """Until so many of its devices are free on a worker."""
    is_ready_elsewhere: bool
    """Whether it could start on another class at once."""


class FinishTimes:
    """The devices of a contest, each with the time in seconds at which it is expected to be free.

    Of a run of which nothing is known: when it has run as long as is usual, and some time later if it has already.
    """

    def __init__(self, found: AssignmentProblem, seats: Mapping[str, int]) -> None:
        self._mean_run_s = found.mean_run_s
        self._times: dict[str, dict[int, list[float]]] = {name: {} for name in found.free}
        """Class → worker → the times of its devices, ascending."""
        for workers_of in (found.free, found.coming):
            for name, workers in workers_of.items():
                for worker, devices in workers.items():
                    self._times[name].setdefault(worker, []).extend([0.0] * devices)
        for one in found.contenders:
            if one.current is not None and one.lease is not None:
                left_s = self._left_s(one) / max(one.speeds[one.current], 1e-9)
                self._times[one.current].setdefault(seats[one.lease.worker_id], []).extend([left_s] * one.count)
        for by_worker in self._times.values():
            for times in by_worker.values():
                times.sort()
        self._first: dict[tuple[str, int], list[tuple[float, int]]] = {}
        """(class, number of devices) → heap of (when so many are free, worker); an entry is void once it is not so."""

    def take(self, one: Candidate) -> ClassChoice | None:
        """Where the request would finish earliest, and let it have the devices there; None where it never would."""
        left_s = self._mean_run_s if one.left_s is None else one.left_s
        ready = {name: self._ready(name, one.count) for name in sorted(one.ways)}
        ends = {
            name: at + left_s / one.speeds[name]
            for name, (at, _) in ready.items()
            if one.speeds[name] > 0 and at < math.inf
        }
        if not ends:
            return None
        name = min(ends, key=lambda name: (ends[name], -one.speeds[name], name))
        at, worker = ready[name]
        times = self._times[name][worker]
        del times[: one.count]
        for _ in range(one.count):
            insort(times, ends[name])
        for (class_name, count), first in self._first.items():
            if class_name == name and count <= len(times):
                heapq.heappush(first, (times[count - 1], worker))
        elsewhere = any(other != name and ready[other][0] <= 0 for other in ends)
        return ClassChoice(one.ways[name], name, at, elsewhere)

    def _ready(self, name: str, count: int) -> tuple[float, int]:
        """When so many devices of one worker are free, and which worker; ties go to the first worker."""
        by_worker = self._times[name]
        first = self._first.get((name, count))
        if first is None:
            first = [(times[count - 1], worker) for worker, times in by_worker.items() if len(times) >= count]
            heapq.heapify(first)
            self._first[name, count] = first
        while first and by_worker[first[0][1]][count - 1] != first[0][0]:
            heapq.heappop(first)
        return first[0] if first else (math.inf, 0)

    def _left_s(self, one: Candidate) -> float:
        if one.left_s is not None:
            return one.left_s
        return max(self._mean_run_s - one.attained_service_s, OVERDUE * one.attained_service_s)
