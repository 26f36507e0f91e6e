"""Who competes for the classes of devices: all that wait or may be moved, and what their worth depends on. Pure.

A request is modelled exactly if each of its alternatives asks for the same number of whole accelerators,
and it does not say which alternative it prefers. Any other request for accelerators competes for a turn as if it
asked for its largest number of whole devices: it is placed as it wishes and is not moved. Requests for a
CPU alone don't compete.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache
from typing import NamedTuple

from hetero_airflow.matching.matcher import OccupancyState
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import Device, device_class, device_tokens, matches_model, model_tokens
from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.request import Alternative, DeviceRequest, Priority
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.units import MILLI_PER_DEVICE

USUAL_RUN_S = 4 * 3600.0
"""How long a run is taken to be on its fastest class until `ENOUGH_RUNS` have ended."""

ENOUGH_RUNS = 20

OVERDUE = 0.05
"""What a run that has taken longer than was to be expected still has to do, as a part of what it has done."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """How a request can run on a class of devices."""

    alternative: int
    """Its number in the request."""
    request: DeviceRequest
    """What is asked if it can run in this way only."""

    def narrow(self, pending: PendingRequest) -> PendingRequest:
        """The request if it could run in this way only."""
        return replace(pending, request=self.request)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that competes for devices."""

    pending: PendingRequest
    count: int
    """Devices."""
    ways: Mapping[str, PlacementOption]
    """Device class → how it runs there."""
    is_exact: bool
    """Whether it can be told where to run, and moved."""
    speeds: Mapping[str, float]
    """Device class → speed relative to the fastest of its classes, 0 to 1."""
    held_s: Mapping[str, float]
    """Device class → seconds for which it has held its devices there."""
    attained_service_s: float
    """What it has done, in seconds of its fastest class."""
    delayed_s: float
    """What it has spent beyond that since it was submitted."""
    left_s: float | None
    """What it probably still has to do, in seconds of its fastest class; None where nothing is known of its task."""
    has_run: bool
    lease: Lease | None = None
    """Under which it runs; None while it waits, or has been told to end."""
    current: str | None = None
    """Device class on which it runs."""


@dataclass(slots=True)
class AssignmentProblem:
    """Everyone, and what there is to win."""

    contenders: list[Candidate]
    """The oldest first, then by id."""
    capacities: dict[str, int]
    """Device class → devices that are free or held by contenders."""
    mean_run_s: float
    """How long a run is on its fastest class: all that was done, by the number of runs that ended (total time on
    test, Epstein and Sobel, JASA 48, 1953), since those that have ended are the short ones while others go on."""
    free: dict[str, dict[int, int]]
    """Device class → number of the worker in the fleet → devices that are free now."""
    coming: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Device class → number of the worker → devices whose holders have been told to end."""


def assignment_problem(snapshot: Snapshot, fleet: WorkerIndex, now: datetime) -> AssignmentProblem:
    """Who competes now. Running requests do where the snapshot's leases can be taken back."""
    return _ProblemBuilder(snapshot, fleet, now).read()


class _RequestModel(NamedTuple):
    """What is true of all requests that ask for the same."""

    devices: int
    is_exact: bool
    ways: dict[str, PlacementOption]
    usable: frozenset[str]
    """The classes of the ways."""


class _ProblemBuilder:
    def __init__(self, snapshot: Snapshot, fleet: WorkerIndex, now: datetime) -> None:
        self._snapshot = snapshot
        self._fleet = fleet
        self._now = now
        self._seats = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
        self._classes = cache(_shape_classes)
        self._models: dict[str, Device] = {}
        for shape in dict.fromkeys(state.shape for state in fleet.states if not state.is_lost):
            for name, device in zip(self._classes(shape), shape.devices, strict=True):
                if name is not None:
                    self._models.setdefault(name, device)
        self._known: dict[str, _RequestModel] = {}
        self._highest = min((one.request.priority.rank for one in snapshot.pending), default=len(Priority))
        self._beliefs: dict[tuple[TaskName, frozenset[str]], tuple[dict[str, float], Interval | None]] = {}

    def read(self) -> AssignmentProblem:
        free: dict[str, dict[int, int]] = {name: {} for name in sorted(self._models)}
        idle = cache(self._idle)
        for number, state in enumerate(self._fleet.states):
            for name, devices in idle(state):
                free[name][number] = devices
        found = AssignmentProblem(
            [], {name: sum(workers.values()) for name, workers in free.items()}, USUAL_RUN_S, free
        )
        found.contenders += filter(None, map(self._contender, self._snapshot.pending))
        if self._snapshot.can_preempt:
            found.contenders += self._holders(found)
        found.contenders.sort(key=lambda one: (one.pending.submitted_at, one.pending.id))
        ended = self._snapshot.estimates.finished_s
        if len(ended) >= ENOUGH_RUNS:
            found.mean_run_s = max(
                1.0, (sum(ended) + sum(one.attained_service_s for one in found.contenders)) / len(ended)
            )
        return found

    def _idle(self, state: OccupancyState) -> list[tuple[str, int]]:
        """Class → devices of a worker of that state on which nothing runs."""
        if state.is_lost:
            return []
        names = zip(self._classes(state.shape), state.held, strict=True)
        return list(Counter(name for name, held in names if name is not None and not held.share_milli).items())

    def _holders(self, found: AssignmentProblem) -> Iterable[Candidate]:
        """The requests that run and can be moved; their devices are to be won, too."""
        for lease in self._snapshot.leases:
            holder, number = self._snapshot.holders.get(lease.request_id), self._seats.get(lease.worker_id)
            if holder is None or number is None or lease.state is LeaseState.EXPIRED:
                continue
            if (
                lease.state is not LeaseState.PREEMPTED
                and self._snapshot.is_protected(lease)
                and not self._is_outranked(holder)
            ):
                continue
            name = self._leased_class(lease, number)
            one = self._contender(holder, lease, name) if name is not None else None
            if one is None or name is None:
                continue
            if lease.state is LeaseState.PREEMPTED:
                found.coming[name][number] += one.count
            elif not one.is_exact:
                continue
            found.capacities[name] += one.count
            yield one

    def _is_outranked(self, holder: PendingRequest) -> bool:
        """Whether somebody of a higher class waits."""
        return self._highest < holder.request.priority.rank

    def _leased_class(self, lease: Lease, number: int) -> str | None:
        """The class of a lease that holds whole devices of one class of a worker that is well."""
        seat, state = self._fleet.entries[number], self._fleet.states[number]
        if state.is_lost:
            return None
        classes = self._classes(state.shape)
        names = set()
        for claim in lease.claims:
            position = seat.position.get(claim.device_id)
            if position is None:
                return None
            if state.shape.devices[position].kind != "cpu":
                names.add(classes[position] if claim.share_milli == MILLI_PER_DEVICE else None)
        return names.pop() if len(names) == 1 else None

    def _contender(
        self, pending: PendingRequest, lease: Lease | None = None, on: str | None = None
    ) -> Candidate | None:
        key = pending.request.fingerprint
        modelled = self._known.get(key)
        if modelled is None:
            modelled = self._known[key] = self._model(pending.request)
        count, is_exact, ways, usable = modelled
        if not ways or (on is not None and on not in ways):
            return None
        speeds, whole = self._policy_context(pending.task, usable)
        held_s = pending.attained_service_s
        has_run = lease is not None or bool(held_s)
        if lease is not None and on is not None:
            stay_s = max(0.0, (self._now - lease.granted_at).total_seconds())
            held_s = {**held_s, on: held_s.get(on, 0.0) + stay_s}
            if lease.state is LeaseState.PREEMPTED:
                lease = on = None
        attained_service_s = sum([seconds * speeds.get(name, 1.0) for name, seconds in held_s.items()])
        return Candidate(
            pending, count, ways, is_exact and not pending.gang, speeds, held_s, attained_service_s,
            max(0.0, (self._now - pending.submitted_at).total_seconds() - attained_service_s),
            None if whole is None else _left_s(whole, attained_service_s),
            has_run, lease, on,
        )  # fmt: skip

    def _policy_context(self, task: TaskName, usable: frozenset[str]) -> tuple[dict[str, float], Interval | None]:
        """Relative speeds, and how long a whole run is on the fastest class."""
        known = self._beliefs.get((task, usable))
        if known is None:
            speeds = self._snapshot.estimates.relative_speeds(task, usable)
            fastest = max(speeds, key=lambda name: (speeds[name], name))
            known = speeds, self._snapshot.estimates.duration_s(task, fastest)
            self._beliefs[task, usable] = known
        return known

    def _model(self, request: DeviceRequest) -> _RequestModel:
        counts, ways = set(), {}
        is_exact = len(request.alternatives) == 1 or not request.is_ordered
        for number, alternative in enumerate(request.alternatives):
            if alternative.kind == "cpu":
                is_exact = False
                continue
            is_exact = is_exact and alternative.share is None
            for name in self._models:
                narrowed = self._narrowed(alternative, name)
                if narrowed is not None and name not in ways and self._fleet.is_servable(narrowed):
                    ways[name] = PlacementOption(number, _only(request, narrowed))
                    counts.add(alternative.count)
                    is_exact = is_exact and self._names(narrowed) == [name]
        return _RequestModel(max(counts, default=0), is_exact and len(counts) == 1, ways, frozenset(ways))

    def _narrowed(self, alternative: Alternative, name: str) -> Alternative | None:
        """The alternative with only devices named like those of the class; None where it asks for others."""
        names = self._names(alternative)
        if name not in names:
            return None
        if len(names) == 1:
            return alternative
        device, asked = self._models[name], alternative.model or ""
        rest = "" if matches_model(asked, model_tokens(device.model)) else f"-{asked}"
        narrower = {"vendor": device.vendor, "kind": device.kind, "model": device.model + rest}
        return Alternative.model_construct(**{**dict(alternative), **narrower})

    def _names(self, alternative: Alternative) -> list[str]:
        """The classes whose name is asked for."""
        return [
            name
            for name, device in self._models.items()
            if alternative.vendor in (None, device.vendor)
            and alternative.kind in (None, device.kind)
            and alternative.partition == device.partition
            and (alternative.model is None or matches_model(alternative.model, device_tokens(device)))
        ]


@lru_cache(maxsize=4096)
def _only(request: DeviceRequest, alternative: Alternative) -> DeviceRequest:
    """The request with this alternative alone."""
    return DeviceRequest.model_construct(**{**dict(request), "alternatives": (alternative,)})


def _left_s(whole: Interval, attained_service_s: float) -> float:
    """Until the middle estimate; past it until the high one; past that a little."""
    ends = (end - attained_service_s for end in (whole.middle, whole.high))
    return next((left for left in ends if left > 0), attained_service_s * OVERDUE)


def _shape_classes(shape: Shape) -> tuple[str | None, ...]:
    """The class of each device that can be leased; None for CPUs and for those that are not well."""
    return tuple(device_class(device) if device.kind != "cpu" and device.leasable else None for device in shape.devices)
