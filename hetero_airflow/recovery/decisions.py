"""What now? A run failed: again without using a retry, one of Airflow's retries, or the end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_airflow.recovery.failure import Failure, FailureClass, failures_of_epoch
from hetero_airflow.recovery.rules import Action, Rule, Rules


@dataclass(frozen=True, slots=True)
class Requeue:
    """The task waits for devices again after `delay_s`, with the same try."""

    delay_s: float
    words: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Airflow's own retries decide; `delay_s` None leaves the task's own ``retry_delay``."""

    delay_s: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The task fails at once."""

    words: str


RecoveryDecision = Requeue | Retry | Fail


def decide(failure: Failure, history: Sequence[Failure], rules: Rules) -> RecoveryDecision:
    """What is done about a failure, after those that came before it.

    :param history: what the state store holds; whether this failure is in there already makes no difference. The
        budget of a class counts its failures since the last clear, each run once.

    >>> from datetime import UTC, datetime
    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> at = datetime(2026, 1, 1, tzinfo=UTC)
    >>> hung = Failure(failure_class="hung", evidence="no progress for 900 s", at=at, epoch=0, token=1)
    >>> print(decide(hung, (), DEFAULTS).words)
    It hung (no progress for 900 s): requeued at once, for the 1st time of 2, without using a retry.
    """
    rule = rules[failure.failure_class]
    earlier = [
        one
        for one in failures_of_epoch(history, failure.epoch)
        if one.failure_class == failure.failure_class and not one.is_same_run(failure)
    ]
    what = f"It {failure.failure_class.words} ({failure.evidence})"
    if rule.action is Action.FAIL:
        return Fail(f"{what}: fails at once, by the rule for {failure.failure_class}.")
    if rule.action is Action.RETRY:
        return Retry(rule.delay_after_s(len(earlier)), f"{what}: left to the task's retries.")
    why_not = _requeue_obstacle(failure, earlier, rule)
    if why_not is None:
        delay_s = rule.delay_after_s(len(earlier)) or 0.0
        when = f"in {delay_s:g} s" if delay_s else "at once"
        return Requeue(delay_s, f"{what}: requeued {when}{_count(len(earlier), rule)}, without using a retry.")
    if rule.then is Action.FAIL:
        return Fail(f"{what}: fails, since {why_not}.")
    return Retry(None, f"{what}: left to the task's retries, since {why_not}.")


def _requeue_obstacle(failure: Failure, earlier: Sequence[Failure], rule: Rule) -> str | None:
    """Why it is not requeued again; None if it is."""
    if rule.times is not None and len(earlier) >= rule.times:
        return f"it was requeued for this {len(earlier)} times already" if earlier else "it is never requeued for this"
    if rule.memory is not None:
        had = _memory(failure)
        most = max((_memory(one) or 0 for one in earlier), default=0)
        if had is not None and most >= had:
            return "it had no more memory than the last time"
    return None


def _memory(failure: Failure) -> int | None:
    return failure.memory_bytes if failure.failure_class is FailureClass.DEVICE_MEMORY else failure.host_memory_bytes


def _count(earlier: int, rule: Rule) -> str:
    if rule.times is None:
        return ""
    number = earlier + 1
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f", for the {number}{ending} time of {rule.times}"
