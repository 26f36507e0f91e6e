"""What requests insist on at one moment: demands on the topology with a waiting budget, as long as it lasts.

A demand such as ``nvlink@10m`` is hard for ten minutes since the request was submitted, and a mere preference
afterwards; of a gang, since its first member was. Where it could not be met even if every worker that is
there now were idle, nobody waits for it.
"""

from __future__ import annotations

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
    """The requests with what they insist on made hard."""

    pending: Sequence[PendingRequest]
    until: Mapping[str, datetime] = field(default_factory=dict)
    """Request id → when it ceases to insist on something; absent where time changes nothing."""


def apply_topology_wait_budgets(
    pending: Sequence[PendingRequest],
    now: datetime,
    is_servable: Callable[[Alternative], bool],
    fits_when_idle: Callable[[Sequence[DeviceRequest]], bool],
) -> TopologyWaitBudget:
    """What the requests insist on now.

    :param is_servable: whether an idle worker could take the alternative
    :param fits_when_idle: whether idle workers could take a gang with these requests
    """
    has_budget: dict[str, bool] = {}
    singles: list[PendingRequest] = []
    gangs: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for one in pending:
        key = one.request.fingerprint
        if key not in has_budget:
            has_budget[key] = any(a.topology and a.topology.budget_s for a in one.request.alternatives)
        if one.gang:
            gangs[one.gang].append(one)
        elif has_budget[key]:
            singles.append(one)
    if not any(has_budget.values()):
        return TopologyWaitBudget(pending)
    changed: dict[str, PendingRequest] = {}
    until: dict[str, datetime] = {}

    def note(one: PendingRequest, ends: datetime, hard: frozenset[int]) -> None:
        changed[one.id] = replace(one, request=with_hard_topology(one.request, hard))
        until[one.id] = ends

    for one in singles:
        ends = {
            number: end
            for number, end in _ends(one.request, one.submitted_at, now).items()
            if _is_within_worker(one.request.alternatives[number])
            and is_servable(hard_alternative(one.request.alternatives[number]))
        }
        if ends:
            note(one, min(ends.values()), frozenset(ends))
    for gang in gangs.values():
        members = sorted(gang, key=attrgetter("id"))
        first = min(one.submitted_at for one in members)
        each = [(one, _ends(one.request, first, now)) for one in members]
        times = [end for _, ends in each for end in ends.values()]
        if times and fits_when_idle([with_hard_topology(one.request, frozenset(ends)) for one, ends in each]):
            for one, ends in each:
                note(one, min(times), frozenset(ends))
    return TopologyWaitBudget([changed.get(one.id, one) for one in pending], until)


def _ends(request: DeviceRequest, since: datetime, now: datetime) -> dict[int, datetime]:
    """Number of an alternative → when its budget ends, of those whose budget has not ended."""
    found = {
        number: since + timedelta(seconds=alternative.topology.budget_s)
        for number, alternative in enumerate(request.alternatives)
        if alternative.topology is not None and alternative.topology.budget_s is not None
    }
    return {number: end for number, end in found.items() if end > now}


def _is_within_worker(alternative: Alternative) -> bool:
    """Whether the demand concerns a request that is in no gang."""
    return alternative.topology is not None and alternative.topology.level.is_within_worker and alternative.count > 1


@lru_cache(maxsize=4096)
def with_hard_topology(request: DeviceRequest, hard: frozenset[int]) -> DeviceRequest:
    """The request with the demands of these alternatives made hard.

    >>> request = DeviceRequest.parse(["h100:2", "a100:2"], topology="nvlink@10m")
    >>> str(with_hard_topology(request, frozenset({0})))
    '2 × nvidia/h100 (topology=nvlink) or 2 × nvidia/a100 (topology=nvlink@10m)'
    """
    return _with(request, (hard_alternative(a) if n in hard else a for n, a in enumerate(request.alternatives)))


@lru_cache(maxsize=4096)
def without_topology(request: DeviceRequest) -> DeviceRequest:
    """The request without any demand on the topology."""
    return _with(request, (_with_topology(alternative, None) for alternative in request.alternatives))


@lru_cache(maxsize=4096)
def hard_alternative(alternative: Alternative) -> Alternative:
    """The alternative with its demand made hard."""
    assert alternative.topology is not None
    return _with_topology(alternative, Topology(alternative.topology.level))


def _with_topology(alternative: Alternative, topology: Topology | None) -> Alternative:
    # a copy made by pydantic would keep the cached key of the original
    return Alternative(
        **{**{name: getattr(alternative, name) for name in Alternative.model_fields}, "topology": topology}
    )


def _with(request: DeviceRequest, alternatives: Iterable[Alternative]) -> DeviceRequest:
    return DeviceRequest(
        alternatives=tuple(alternatives),
        is_ordered=request.is_ordered,
        priority=request.priority,
        wait_timeout_s=request.wait_timeout_s,
    )
