"""Estimates when a waiting request starts: the policy decides again and again on simulated futures. Pure.

There are three futures: in the first all runs take as long as the shortest tenth of similar runs, then as long as the
median, then as the longest tenth. In each, leases end, the policy decides, and what it places runs and ends, until the
policy places the request. All runs are rarely short or long together, so the interval is rather too wide.

It does not know future tasks, device failures, missing processes of the engine, or the moments between the end of a
task and the release of its devices. To answer within seconds, it ignores most of the requests that are decided after
the request, except the next few, which backfill may start earlier; and with many leases, up to one lease of a hundred
ends between two decisions.
"""

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
"""Decisions on single requests in one future; beyond it, after some seconds, there is no estimate."""

MAX_MOMENTS = 2_000
MAX_IDLE_MOMENTS = 100
"""Moments in a row at which a policy whose plans depend on the time does nothing."""

_MOMENTS_PER_EXTRA_END = 10
"""After this number of moments, one more run ends before the next moment."""

MAX_LATER_REQUESTS = 100
"""Requests that are decided after the request and are part of the future."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a request starts, by what is known now."""

    start_s: Interval | None = None
    """Seconds from now; None if it is not known."""
    unknown: tuple[TaskName, ...] = ()
    """Tasks without an estimate that run, or start before it, on workers that it could use. If `start_s` is known, it
    starts by then even if they never end, and maybe sooner."""
    beyond_s: float | None = None
    """If it takes too many decisions to find out: even if all runs are short, it starts later than this."""


def estimate_start(
    snapshot: Snapshot, request_id: str, decide: Decide, now: datetime, period_s: float | None
) -> StartEstimate:
    """When a pending request of the snapshot starts, by the estimates of the snapshot.

    An empty estimate means that the end of no run helps: the request waits for something else, or the policy refuses
    it.

    :param period_s: see `period_of`
    """
    order = [decision.request_id for decision in decide(snapshot, now).decisions]
    if request_id not in order:
        return StartEstimate()
    simulated = set(order[: order.index(request_id) + 1 + MAX_LATER_REQUESTS])
    snapshot = replace(snapshot, pending=tuple(pending for pending in snapshot.pending if pending.id in simulated))
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
    """The limit of decisions is reached."""


def _start_s(
    future: SimulatedFuture, request_id: str, decide: Decide, now: datetime, period_s: float | None
) -> float | None:
    """Seconds from now until the policy places the request in that future; None if it never does."""
    remaining, idle_moments = MAX_DECISIONS, 0
    for moment in range(MAX_MOMENTS):
        snapshot = future.snapshot()
        remaining -= len(snapshot.pending)
        if remaining < 0:
            raise _TooManyDecisions
        plan = decide(snapshot, now + timedelta(seconds=future.time_s))
        decided = next((decision for decision in plan.decisions if decision.request_id == request_id), None)
        if isinstance(decided, Place):
            return future.time_s
        future.carry_out(plan)
        is_idle = not (plan.places or plan.preemptions)
        idle_moments = idle_moments + 1 if is_idle else 0
        if isinstance(decided, Refuse) or idle_moments > MAX_IDLE_MOMENTS:
            return None
        ends = 1 + min(moment // _MOMENTS_PER_EXTRA_END, future.running_leases // 100)
        if not plan.preemptions and not future.advance(_next_decision_s(plan, future.time_s, now, period_s), ends):
            return None
    raise _TooManyDecisions


def _next_decision_s(plan: Plan, time_s: float, now: datetime, period_s: float | None) -> float:
    """When the policy may decide differently although only the time has changed."""
    until_s = math.inf if plan.until is None else (plan.until - now).total_seconds()
    return min(until_s if until_s > time_s else math.inf, math.inf if period_s is None else time_s + period_s)
