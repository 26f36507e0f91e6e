"""When will a request that waits start? The policy's own decisions, made again and again on a pretend future. Pure.

Three futures are played: all runs take as long as a tenth of the like do, half do, nine tenths do. In
each, leases end, the policy decides, what it places runs and ends in its turn, until it places the
request. That all runs are long, or all short, together is rarer than the tenths say, so the interval
is wide rather than narrow.

What it does not know: tasks that will come, devices that will fail, processes that the engine is short of,
and that a task gives its devices back some moments after it has ended. To be done in seconds, of a long
queue it looks at what is decided before the request and the next few after it, which may slip into gaps
before it; and where many leases are held, it lets up to one of a hundred end before it decides again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.plan import Place, Plan, Refuse
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.advice.future import SimulatedFuture

Decide = Callable[[Snapshot, datetime], Plan]
"""A policy's `decide`."""

MAX_DECISIONS = 100_000
"""Requests decided on in one future, counted at each moment anew; then it is given up, after some seconds."""

MAX_MOMENTS = 2_000
MAX_IDLE_MOMENTS = 100
"""Moments in a row at which a policy that changes its mind with time alone does nothing."""

_MOMENTS_PER_EXTRA_END = 10
"""After each so many moments, one run more ends before the next."""

MAX_LATER_REQUESTS = 100
"""Requests looked at that are decided after the one that is asked about."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a request will start as things stand."""

    start_s: Interval | None = None
    """Seconds from now; None if that can't be told."""
    unknown: tuple[TaskName, ...] = ()
    """Tasks that are in its way or will come before it, and of which it is not known how long they will run. Where
    `start_s` is known, it starts by then even if they never end, and maybe sooner."""
    beyond_s: float | None = None
    """Where it takes too many decisions to find out: even if runs are short, it starts later than this."""


def estimate_start(
    snapshot: Snapshot, request_id: str, decide: Decide, now: datetime, period_s: float | None
) -> StartEstimate:
    """When a pending request of the snapshot will start, by the estimates of the snapshot.

    Nothing known and nothing unknown means that nothing which runs is in its way: what it waits for is no end of a
    run, or the policy refuses it.

    :param period_s: what `period_of` says of the policy
    """
    order = [decision.request_id for decision in decide(snapshot, now).decisions]
    if request_id not in order:
        return StartEstimate()
    near = set(order[: order.index(request_id) + 1 + MAX_LATER_REQUESTS])
    snapshot = replace(snapshot, pending=tuple(pending for pending in snapshot.pending if pending.id in near))
    starts: list[float] = []
    unknown: dict[TaskName, None] = {}
    for part in range(len(Interval._fields)):
        future = SimulatedFuture(snapshot, request_id, now, part)
        try:
            start_s = _start_s(future, request_id, decide, now, period_s)
        except _TooManyDecisions:
            return StartEstimate(None, tuple(unknown | future.unknown), min([*starts, future.time_s]))
        unknown |= future.unknown
        if start_s is None:
            return StartEstimate(None, tuple(unknown))
        starts.append(start_s)
    return StartEstimate(Interval(*sorted(starts)), tuple(unknown) if starts[-1] else ())


class _TooManyDecisions(Exception):
    """It takes too many decisions."""


def _start_s(
    future: SimulatedFuture, request_id: str, decide: Decide, now: datetime, period_s: float | None
) -> float | None:
    """Seconds from now until the request is placed in that future; None if it is not."""
    left, idle = MAX_DECISIONS, 0
    for moment in range(MAX_MOMENTS):
        snapshot = future.snapshot()
        left -= len(snapshot.pending)
        if left < 0:
            raise _TooManyDecisions
        plan = decide(snapshot, now + timedelta(seconds=future.time_s))
        own = next((decision for decision in plan.decisions if decision.request_id == request_id), None)
        if isinstance(own, Place):
            return future.time_s
        future.carry_out(plan)
        is_idle = not (plan.places or plan.preemptions)
        idle = idle + 1 if is_idle else 0
        if isinstance(own, Refuse) or idle > MAX_IDLE_MOMENTS:
            return None
        ends = 1 + min(moment // _MOMENTS_PER_EXTRA_END, future.running // 100)
        if not plan.preemptions and not future.advance(_next_decision_s(plan, future.time_s, now, period_s), ends):
            return None
    raise _TooManyDecisions


def _next_decision_s(plan: Plan, time_s: float, now: datetime, period_s: float | None) -> float:
    """When the policy may decide otherwise though nothing but the time has changed."""
    until_s = math.inf if plan.until is None else (plan.until - now).total_seconds()
    return min(until_s if until_s > time_s else math.inf, math.inf if period_s is None else time_s + period_s)
