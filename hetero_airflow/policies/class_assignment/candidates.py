"""Which requests compete for the classes of devices, and what their weights depend on. Pure.

A request is modelled exactly if all its alternatives ask for the same number of whole accelerators and it prefers none
of them. Any other request for accelerators competes for its turn as if it asked for its largest number of whole
devices: it is placed where it fits best and is not moved. Requests for a CPU alone don't compete.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
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
from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.run_ends import ENOUGH_RUNS, USUAL_RUN_S
from hetero_airflow.units import MILLI_PER_DEVICE

OVERDUE = 0.05
"""A run that has taken longer than expected is expected to need this part of its work so far in addition."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """How a request can run on a class of devices."""

    alternative: int
    """Its number in the request."""
    narrower: Alternative
    """The alternative, restricted to devices of the class."""


Options = Mapping[str, tuple[PlacementOption, ...]]
"""Request id → the options by which alone it may run now."""


def narrowed(snapshot: Snapshot, options: Options) -> Snapshot:
    """The snapshot with requests that see only their options."""
    pending = (
        replace(p, request=_only(p.request, tuple(option.narrower for option in options[p.id])))
        if p.id in options
        else p
        for p in snapshot.pending
    )
    return replace(snapshot, pending=tuple(pending))


def as_requested(plan: Plan, options: Options) -> Plan:
    """The plan for a narrowed snapshot over the requests as users made them."""
    decisions = (
        decision._replace(alternative=options[decision.request_id][decision.alternative].alternative)
        if isinstance(decision, Place) and decision.request_id in options
        else decision
        for decision in plan.decisions
    )
    return replace(plan, decisions=tuple(decisions))


@dataclass(slots=True, eq=False)  # not frozen: that doubles the time of making 10,000
class Candidate:
    """A request that competes for devices; it is never changed."""

    pending: PendingRequest
    count: int
    """Devices that it takes."""
    options: Mapping[str, PlacementOption]
    """Device class → how it runs there."""
    is_exact: bool
    """Whether an assignment can say where it runs, and can move it."""
    speeds: Mapping[str, float]
    """Device class → speed relative to the fastest of its classes, 0 to 1."""
    held_s: Mapping[str, float]
    """Device class → seconds for which it has held its devices there."""
    done_s: float
    """The work that it has done, in seconds of its fastest class."""
    delayed_s: float
    """Seconds since its submission beyond that."""
    left_s: float | None
    """The work that it probably still has to do, in seconds of its fastest class; None where this is unknown."""
    has_run: bool
    lease: Lease | None = None
    """The lease under which it runs; None while it waits, and after its lease is taken back."""
    current: str | None = None
    """Device class on which it runs."""

    @property
    def rank(self) -> int:
        """Of its priority class; the highest class has 0."""
        return self.pending.request.priority.rank


@dataclass(slots=True)
class AssignmentProblem:
    """All candidates, and the devices for which they compete."""

    candidates: list[Candidate]
    """The oldest first, then by id."""
    capacities: dict[str, int]
    """Device class → devices that are free, or held by candidates or fixed requests."""
    mean_run_s: float
    """The mean run on the fastest class: all work done, divided by the number of ended runs (total time on test,
    Epstein and Sobel, JASA 48, 1953). The mean of ended runs alone is too short, because long ones still run."""
    free: dict[str, dict[int, int]]
    """Device class → number of the worker in the index → devices that are free now."""
    ending: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Device class → number of the worker → devices whose leases are taken back and have not ended."""
    fixed: list[Candidate] = field(default_factory=list)
    """Running requests that give way only to higher priority classes: shares don't count, gangs do."""
    settled: frozenset[str] = frozenset()
    """The ids of candidates that go before all others of their class, and give way to none of them."""


def assignment_problem(snapshot: Snapshot, index: WorkerIndex, now: datetime) -> AssignmentProblem:
    """What competes now. Running requests compete too where the snapshot's leases can be taken back."""
    return _ProblemBuilder(snapshot, index, now).build()


class _RequestModel(NamedTuple):
    """What equal requests have in common."""

    devices: int
    is_exact: bool
    options: dict[str, PlacementOption]
    usable: frozenset[str]
    """The classes of the options."""


class _ProblemBuilder:
    def __init__(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> None:
        self._snapshot = snapshot
        self._index = index
        self._now = now
        self._classes = cache(_shape_classes)
        self._devices: dict[str, Device] = {}
        """Class → a device of it."""
        for shape in dict.fromkeys(state.shape for state in index.states if not state.is_lost):
            for name, device in zip(self._classes(shape), shape.devices, strict=True):
                if name is not None:
                    self._devices.setdefault(name, device)
        self._models: dict[str, _RequestModel] = {}
        self._estimates: dict[tuple[TaskName, frozenset[str]], tuple[dict[str, float], Interval | None]] = {}

    def build(self) -> AssignmentProblem:
        free: dict[str, dict[int, int]] = {name: {} for name in sorted(self._devices)}
        idle_devices = cache(self._idle_devices)
        for number, state in enumerate(self._index.states):
            for name, devices in idle_devices(state):
                free[name][number] = devices
        capacities = {name: sum(workers.values()) for name, workers in free.items()}
        problem = AssignmentProblem([], capacities, USUAL_RUN_S, free)
        problem.candidates += filter(None, map(self._candidate, self._snapshot.pending))
        if self._snapshot.can_preempt:
            self._add_running(problem)
        problem.candidates.sort(key=lambda candidate: (candidate.pending.submitted_at, candidate.pending.id))
        ended = self._snapshot.estimates.finished_s
        if len(ended) >= ENOUGH_RUNS:
            done_s = sum(ended) + sum(candidate.done_s for candidate in (*problem.candidates, *problem.fixed))
            problem.mean_run_s = max(1.0, done_s / len(ended))
        return problem

    def _idle_devices(self, state: OccupancyState) -> list[tuple[str, int]]:
        """(class, number of devices on which nothing runs) of a worker in that state."""
        if state.is_lost:
            return []
        devices = zip(self._classes(state.shape), state.held, strict=True)
        return list(
            Counter(name for name, allocation in devices if name is not None and not allocation.share_milli).items()
        )

    def _add_running(self, problem: AssignmentProblem) -> None:
        """Add the running requests. Their devices, and those of ended tasks, add to the capacities."""
        for lease in self._snapshot.leases:
            holder, number = self._snapshot.holders.get(lease.request_id), self._index.numbers.get(lease.worker_id)
            name = None if number is None else self._leased_class(lease, number)
            if name is None or number is None or lease.state is LeaseState.EXPIRED:
                continue
            devices, is_ending = self._accelerators(lease, number), lease.state is LeaseState.PREEMPTED
            candidate = self._candidate(holder, lease, name) if holder else None
            if is_ending and (candidate or not holder):
                problem.ending[name][number] += devices
            if candidate or (is_ending and not holder):
                problem.capacities[name] += devices
            if candidate and (is_ending or (candidate.is_exact and not self._snapshot.is_protected(lease))):
                problem.candidates.append(candidate)
            elif candidate:
                problem.fixed.append(replace(candidate, count=devices))

    def _accelerators(self, lease: Lease, number: int) -> int:
        entry = self._index.entries[number]
        return sum(entry.shape.devices[entry.position[claim.device_id]].kind != "cpu" for claim in lease.claims)

    def _leased_class(self, lease: Lease, number: int) -> str | None:
        """The class of a lease on whole devices of one class; None for other leases and on a lost worker."""
        entry, state = self._index.entries[number], self._index.states[number]
        if state.is_lost:
            return None
        classes = self._classes(state.shape)
        names = set()
        for claim in lease.claims:
            position = entry.position.get(claim.device_id)
            if position is None:
                return None
            if state.shape.devices[position].kind != "cpu":
                names.add(classes[position] if claim.share_milli == MILLI_PER_DEVICE else None)
        return names.pop() if len(names) == 1 else None

    def _candidate(
        self, pending: PendingRequest, lease: Lease | None = None, current: str | None = None
    ) -> Candidate | None:
        key = pending.request.fingerprint
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._model(pending.request)
        count, is_exact, options, usable = model
        if not options or (current is not None and current not in options):
            return None
        speeds, whole_run = self._task_estimates(pending.task, usable)
        held_s = pending.attained_service_s
        has_run = lease is not None or bool(held_s)
        if lease is not None and current is not None:
            run_s = max(0.0, (self._now - lease.granted_at).total_seconds())
            held_s = {**held_s, current: held_s.get(current, 0.0) + run_s}
            if lease.state is LeaseState.PREEMPTED:
                lease = current = None
        done_s = sum([seconds * speeds.get(name, 1.0) for name, seconds in held_s.items()])
        return Candidate(
            pending, count, options, is_exact and not pending.gang, speeds, held_s, done_s,
            max(0.0, (self._now - pending.submitted_at).total_seconds() - done_s),
            None if whole_run is None else _left_s(whole_run, done_s),
            has_run, lease, current,
        )  # fmt: skip

    def _task_estimates(self, task: TaskName, usable: frozenset[str]) -> tuple[dict[str, float], Interval | None]:
        """Relative speeds, and the duration of a whole run on the fastest class."""
        cached = self._estimates.get((task, usable))
        if cached is None:
            speeds = self._snapshot.estimates.relative_speeds(task, usable)
            fastest = max(speeds, key=lambda name: (speeds[name], name))
            cached = speeds, self._snapshot.estimates.duration_s(task, fastest)
            self._estimates[task, usable] = cached
        return cached

    def _model(self, request: DeviceRequest) -> _RequestModel:
        counts, options = set(), {}
        is_exact = len(request.alternatives) == 1 or not request.is_ordered
        for number, alternative in enumerate(request.alternatives):
            if alternative.kind == "cpu":
                is_exact = False
                continue
            is_exact = is_exact and alternative.share is None
            for name in self._devices:
                narrower = self._narrowed(alternative, name)
                if narrower is not None and name not in options and self._index.is_servable(narrower):
                    options[name] = PlacementOption(number, narrower)
                    counts.add(alternative.count)
                    is_exact = is_exact and self._matching_classes(narrower) == [name]
        return _RequestModel(max(counts, default=0), is_exact and len(counts) == 1, options, frozenset(options))

    def _narrowed(self, alternative: Alternative, name: str) -> Alternative | None:
        """The alternative restricted to devices of the class; None where it asks for other devices."""
        names = self._matching_classes(alternative)
        if name not in names:
            return None
        if len(names) == 1:
            return alternative
        device, model = self._devices[name], alternative.model or ""
        suffix = "" if matches_model(model, model_tokens(device.model)) else f"-{model}"
        narrower = {"vendor": device.vendor, "kind": device.kind, "model": device.model + suffix}
        return Alternative.model_construct(**{**dict(alternative), **narrower})

    def _matching_classes(self, alternative: Alternative) -> list[str]:
        """The classes that the alternative asks for by name."""
        return [
            name
            for name, device in self._devices.items()
            if alternative.vendor in (None, device.vendor)
            and alternative.kind in (None, device.kind)
            and alternative.partition == device.partition
            and (alternative.model is None or matches_model(alternative.model, device_tokens(device)))
        ]


@lru_cache(maxsize=4096)
def _only(request: DeviceRequest, alternatives: tuple[Alternative, ...]) -> DeviceRequest:
    """The request with these alternatives alone, none of which it prefers."""
    return DeviceRequest.model_construct(**{**dict(request), "alternatives": alternatives, "is_ordered": False})


def _left_s(whole_run: Interval, done_s: float) -> float:
    """The time until the middle estimate; past that until the high one; past that a small part more."""
    ends = (end - done_s for end in (whole_run.middle, whole_run.high))
    return next((remaining_s for remaining_s in ends if remaining_s > 0), done_s * OVERDUE)


def _shape_classes(shape: Shape) -> tuple[str | None, ...]:
    """The class of each device that can be leased; None for CPUs and unhealthy devices."""
    return tuple(device_class(device) if device.kind != "cpu" and device.leasable else None for device in shape.devices)
