"""What happens after a failure: a requeue that uses no retry, one of Airflow's retries, or the end. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_airflow.recovery.failure import Failure, FailureClass, failures_of_epoch
from hetero_airflow.recovery.rules import Action, Rule, Rules


@dataclass(frozen=True, slots=True)
class Requeue:
    """The task waits for devices again after `delay_s`, with the same try."""

    delay_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Airflow's own retries decide. `delay_s` is None: the task's own ``retry_delay`` applies."""

    delay_s: float | None
    message: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The task fails at once."""

    message: str


RecoveryDecision = Requeue | Retry | Fail


def decide(failure: Failure, history: Sequence[Failure], rules: Rules, *, has_retries: bool = True) -> RecoveryDecision:
    """What happens after a failure and those before it.

    :param history: from the state store, with or without this failure. The budget of a class counts its failures since
        the last clear, each run once.
    :param has_retries: whether the task has a retry left; only the message depends on it

    >>> from datetime import UTC, datetime
    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> at = datetime(2026, 1, 1, tzinfo=UTC)
    >>> hung = Failure(failure_class="hung", evidence="no progress", at=at, epoch=0, token=1)
    >>> print(decide(hung, (), DEFAULTS).message)
    It hung (no progress): requeued at once, for the 1st time of 2, without using a retry, by the rule for hung.
    """
    rule = rules[failure.failure_class]
    earlier = [
        record
        for record in failures_of_epoch(history, failure.epoch)
        if record.failure_class == failure.failure_class and not record.is_same_run(failure)
    ]
    failure_text = f"It {failure.failure_class.description} ({failure.evidence})"
    by_rule = f"by the rule for {failure.failure_class}"
    retries = retries_text(has_retries)
    if rule.action is Action.FAIL:
        return Fail(f"{failure_text}: fails at once, {by_rule}.")
    if rule.action is Action.RETRY:
        return Retry(rule.delay_after_s(len(earlier)), f"{failure_text}: {retries}, {by_rule}.")
    obstacle = _requeue_obstacle(failure, earlier, rule)
    if obstacle is None:
        delay_s = rule.delay_after_s(len(earlier)) or 0.0
        when = f"in {delay_s:g} s" if delay_s else "at once"
        count = _count(len(earlier), rule)
        return Requeue(delay_s, f"{failure_text}: requeued {when}{count}, without using a retry, {by_rule}.")
    if rule.then is Action.FAIL:
        return Fail(f"{failure_text}: fails, since {obstacle}, {by_rule}.")
    return Retry(None, f"{failure_text}: {retries}{' and' if not has_retries else ', since'} {obstacle}, {by_rule}.")


def retries_text(has_retries: bool) -> str:
    """What happens to a task that is left to Airflow's retries, as a part of a sentence."""
    return "left to the task's retries" if has_retries else "fails, since the task has no retry left"


def _requeue_obstacle(failure: Failure, earlier: Sequence[Failure], rule: Rule) -> str | None:
    """Why the task is not requeued again; None if it is."""
    if rule.times is not None and len(earlier) >= rule.times:
        return f"it was requeued for this {len(earlier)} times already" if earlier else "it is never requeued for this"
    if rule.memory is not None:
        memory = _memory(failure)
        most = max((_memory(record) or 0 for record in earlier), default=0)
        if memory is not None and most >= memory:
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
