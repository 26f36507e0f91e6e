"""On which classes of devices a request may start now, and which it passes up because waiting pays. Pure.

In the order of the queue, each request goes to the class k with the least cost, in mean runs:

    1.03 · wait + 0.21 (where it has to wait) + length · (1 + 0.3 · devices · P) / r

r is the relative speed there, and P the price of the class: the work that waits for it, in mean runs of each of its
devices, since each device-second delays others. A request that has to wait may also start at once on each other class
that costs no more. On streams with 1 to 8 devices (seeds 1000 to 1007), 0.2 and 0.4 in the place of 0.3 change the mean
JCT by up to 4 % in both directions, which is noise. 0 costs 3 % with known speeds and 5 % with learned ones; 0.7 costs
5 % with known speeds and nothing with learned ones.

Patience is bounded: by the time that the slower class would cost, `PATIENCE` times, and by half of the wait timeout.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hetero_airflow.model.plan import Decision, Plan, Reason, ReasonCode, Wait
from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.free_times import FreeTimes
from hetero_airflow.units import MAX_DURATION_S

WAITING, SWITCHING, PRICE = 1.03, 0.21, 0.3

PATIENCE = 4.0
"""A request waits at most this many times as long as it would lose on the slower devices, from its submission on. With
known speeds (seeds 1000 to 1003), 2 costs 0.3 % of the mean JCT, and no bound saves 0.6 %."""

_FOR_WANT_OF_DEVICES = frozenset({ReasonCode.BUSY, ReasonCode.RESERVED, ReasonCode.SCATTERED})


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """Where a request may start now."""

    names: tuple[str, ...]
    """The classes; the first is the one to which it goes."""
    passed_up: Mapping[str, datetime] = field(default_factory=dict)
    """A class that it passes up → until when."""


class ClassChoices:
    """The choices of one decision.

    :param queue: all that wait, for the prices
    :param patient_rank: requests of this priority class and of lower ones may pass up free devices; infinite: none may
    """

    def __init__(
        self, times: FreeTimes, queue: Sequence[Candidate], mean_run_s: float, now: datetime, patient_rank: float
    ) -> None:
        self._times = times
        self._mean_run_s = mean_run_s
        self._now = now
        self._patient_rank = patient_rank
        work: defaultdict[str, float] = defaultdict(float)
        for candidate in queue:
            if candidate.is_exact:
                fastest = max(candidate.speeds, key=lambda name: (candidate.speeds[name], name))
                work[fastest] += candidate.count * self._length(candidate)
        self._prices = {name: work[name] / max(devices, 1) for name, devices in times.devices.items()}

    def _length(self, candidate: Candidate) -> float:
        """In mean runs, on its fastest class."""
        return 1.0 if candidate.left_s is None else candidate.left_s / self._mean_run_s

    def choose(self, candidate: Candidate) -> ClassChoice | None:
        """Give the request the devices of the class that costs least; None where it can't choose, or run nowhere."""
        ready = self._times.ready(candidate)
        if not ready:
            return None
        speeds, length = candidate.speeds, self._length(candidate)
        if not candidate.is_exact:
            self._take_first(candidate, ready)
            return None
        may_wait = candidate.rank >= self._patient_rank and candidate.pending.request.patience
        free = {name: at for name, (at, _) in ready.items() if at <= 0}
        considered = ready if may_wait or not free else free
        running = {name: length * (1 + PRICE * candidate.count * self._prices[name]) / speeds[name] for name in ready}
        costs = {
            name: running[name] + (WAITING * at / self._mean_run_s + SWITCHING if (at := ready[name][0]) > 0 else 0.0)
            for name in considered
        }
        best = min(costs, key=lambda name: (costs[name], -speeds[name], name))
        at, worker = ready[best]
        self._times.occupy(best, worker, candidate.count, at + length * self._mean_run_s / speeds[best])
        if at <= 0:
            return ClassChoice((best,))
        if not may_wait:
            return ClassChoice((best, *(name for name in ready if name != best)))
        ends = {name: self._patience_ends(candidate, best, name) for name in ready if running[name] > costs[best]}
        ends = {name: end for name, end in ends.items() if end > self._now}
        names = (best, *(name for name in ready if name != best and name not in ends))
        return ClassChoice(names, ends)

    def _take_first(self, candidate: Candidate, ready: Mapping[str, tuple[float, int]]) -> None:
        """Give a request that takes what it gets first the whole devices for it; shares find room beside others."""
        if any(alternative.share is not None for alternative in candidate.pending.request.alternatives):
            return
        name = min(ready, key=lambda name: (ready[name][0], candidate.options[name].alternative, name))
        at, worker = ready[name]
        run_s = self._length(candidate) * self._mean_run_s / candidate.speeds[name]
        self._times.occupy(name, worker, candidate.count, at + run_s)

    def _patience_ends(self, candidate: Candidate, best: str, slower: str) -> datetime:
        """When the request stops to pass up the slower class, in whole minutes or quarters of hours."""
        lost = 1 / candidate.speeds[slower] - 1 / candidate.speeds[best]
        patience_s = min(PATIENCE * max(lost, 0.0) * self._length(candidate) * self._mean_run_s, MAX_DURATION_S)
        limit_s = candidate.pending.request.wait_timeout_s
        step_s = 60 if patience_s < 3600 else 900
        patience_s = math.ceil(patience_s / step_s) * step_s
        if limit_s is not None:
            patience_s = min(patience_s, limit_s / 2)
        return candidate.pending.submitted_at + timedelta(seconds=patience_s)


def explained(plan: Plan, choices: Sequence[tuple[Candidate, ClassChoice]]) -> Plan:
    """The plan with the reason of each request that passes up classes, and the time when the first one stops to."""
    patient = {c.pending.id: (c.pending.request, choice) for c, choice in choices if choice.passed_up}
    decisions: list[Decision] = []
    ends = [] if plan.until is None else [plan.until]
    for decision in plan.decisions:
        if isinstance(decision, Wait) and decision.request_id in patient:
            request, choice = patient[decision.request_id]
            ends.append(min(choice.passed_up.values()))
            if decision.reason.code in _FOR_WANT_OF_DEVICES:
                slower = " or ".join(sorted(choice.passed_up))
                found = f"that it probably ends sooner if it waits for {choice.names[0]} than on {slower}"
                end, then = max(choice.passed_up.values()), "it takes any of them"
                decision = decision._replace(reason=Reason(ReasonCode.SOONER, str(request), found, end, then))
        decisions.append(decision)
    return replace(plan, decisions=tuple(decisions), until=min(ends, default=None))
