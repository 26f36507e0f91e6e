"""Topology demands with a waiting budget: hard while the budget lasts, a preference afterwards.

A demand such as ``nvlink@10m`` is hard for ten minutes after the request was submitted; for a gang, after its first
member was submitted. A request never waits for a topology that the current workers could not give it even when idle.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter

from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.topology import Topology


@dataclass(frozen=True, slots=True)
class TopologyWaitBudget:
    """The pending requests, with the demands made hard whose budget still lasts."""

    pending: Sequence[PendingRequest]
    until: Mapping[str, datetime] = field(default_factory=dict)
    """Request id → when the first of its budgets ends; absent for a request without one."""


def apply_topology_wait_budgets(
    pending: Sequence[PendingRequest],
    now: datetime,
    is_servable: Callable[[Alternative], bool],
    fits_when_idle: Callable[[Sequence[DeviceRequest]], bool],
) -> TopologyWaitBudget:
    """The requests with the demands that are hard now.

    :param is_servable: whether an idle worker could run the alternative
    :param fits_when_idle: whether idle workers could run a gang with these requests
    """
    has_budget: dict[str, bool] = {}
    singles: list[PendingRequest] = []
    gangs: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for request in pending:
        key = request.request.fingerprint
        if key not in has_budget:
            has_budget[key] = any(a.topology and a.topology.budget_s for a in request.request.alternatives)
        if request.gang:
            gangs[request.gang].append(request)
        elif has_budget[key]:
            singles.append(request)
    if not any(has_budget.values()):
        return TopologyWaitBudget(pending)
    hard = [entry for single in singles for entry in _hard_single(single, now, is_servable)]
    hard += [entry for gang in gangs.values() for entry in _hard_gang(gang, now, fits_when_idle)]
    changed = {request.id: request for request, _ in hard}
    return TopologyWaitBudget(
        [changed.get(request.id, request) for request in pending], {request.id: end for request, end in hard}
    )


def _hard_single(
    pending: PendingRequest, now: datetime, is_servable: Callable[[Alternative], bool]
) -> Iterable[tuple[PendingRequest, datetime]]:
    """A request outside of gangs with its hard demands, and when the first budget ends; nothing if it has none."""
    alternatives = pending.request.alternatives
    ends = {
        number: end
        for number, end in _budget_ends(pending.request, pending.submitted_at, now).items()
        if _is_within_worker(alternatives[number]) and is_servable(hard_alternative(alternatives[number]))
    }
    if ends:
        yield _with_hard_demands(pending, ends), min(ends.values())


def _hard_gang(
    gang: Sequence[PendingRequest], now: datetime, fits_when_idle: Callable[[Sequence[DeviceRequest]], bool]
) -> Iterable[tuple[PendingRequest, datetime]]:
    """The same for the members of a gang, whose budgets begin with its first member."""
    first = min(member.submitted_at for member in gang)
    ends = [(member, _budget_ends(member.request, first, now)) for member in sorted(gang, key=attrgetter("id"))]
    first_end = min((end for _, of_member in ends for end in of_member.values()), default=None)
    if first_end is not None:
        members = [_with_hard_demands(member, of_member) for member, of_member in ends]
        if fits_when_idle([member.request for member in members]):
            yield from ((member, first_end) for member in members)


def _with_hard_demands(pending: PendingRequest, ends: Iterable[int]) -> PendingRequest:
    return replace(pending, request=with_hard_topology(pending.request, frozenset(ends)))


def _budget_ends(request: DeviceRequest, since: datetime, now: datetime) -> dict[int, datetime]:
    """Number of an alternative → when its budget ends, for the budgets that have not ended."""
    ends = {
        number: since + timedelta(seconds=alternative.topology.budget_s)
        for number, alternative in enumerate(request.alternatives)
        if alternative.topology is not None and alternative.topology.budget_s is not None
    }
    return {number: end for number, end in ends.items() if end > now}


def _is_within_worker(alternative: Alternative) -> bool:
    """Whether its topology demand has a meaning for a request outside of gangs."""
    return alternative.topology is not None and alternative.topology.level.is_within_worker and alternative.count > 1


@lru_cache(maxsize=4096)
def with_hard_topology(request: DeviceRequest, hard: frozenset[int]) -> DeviceRequest:
    """The request with the demands of the alternatives with these numbers made hard.

    >>> request = DeviceRequest.parse(["h100:2", "a100:2"], topology="nvlink@10m")
    >>> str(with_hard_topology(request, frozenset({0})))
    '2 × nvidia/h100 (topology=nvlink) or 2 × nvidia/a100 (topology=nvlink@10m)'
    """
    return _with_alternatives(
        request, (hard_alternative(a) if n in hard else a for n, a in enumerate(request.alternatives))
    )


@lru_cache(maxsize=4096)
def without_topology(request: DeviceRequest) -> DeviceRequest:
    """The request without its topology demands."""
    return _with_alternatives(request, (alternative.with_fields(topology=None) for alternative in request.alternatives))


@lru_cache(maxsize=4096)
def hard_alternative(alternative: Alternative) -> Alternative:
    """The alternative with its demand made hard."""
    assert alternative.topology is not None
    return alternative.with_fields(topology=Topology(alternative.topology.level))


def _with_alternatives(request: DeviceRequest, alternatives: Iterable[Alternative]) -> DeviceRequest:
    return DeviceRequest.model_construct(**{**dict(request), "alternatives": tuple(alternatives)})
