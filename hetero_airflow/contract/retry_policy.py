"""The retry policy of device tasks: what Airflow does about a failure that was not requeued."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.configuration import conf

from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.errors import NoLeaseError
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.decisions import Fail, Requeue, decide
from hetero_airflow.recovery.evidence import evidence_of
from hetero_airflow.recovery.failure import Failure, load_failures
from hetero_airflow.recovery.rules import Rules, parse_rules
from hetero_airflow.runtime.task_lease import current_lease
from hetero_airflow.settings import SECTION, default

MAX_REASON = 500
"""Characters that Airflow keeps of a reason."""


class DeviceRetryPolicy(RetryPolicy):
    """Fails at once what a retry can't cure, and gives retries the delay of the recovery rules.

    Airflow's policy can end retries early but not add any: what is requeued without using a retry never gets here,
    for the device operator has rescheduled it. It serves other operators too: there, all but failing is a retry.

    :param rules: instead of those of ``[hetero] recovery_rules``

    >>> policy = DeviceRetryPolicy(parse_rules(""))
    >>> policy.evaluate(KeyError("label"), try_number=1, max_tries=3).action.value
    'fail'
    >>> policy.evaluate(ValueError("loss is nan"), try_number=1, max_tries=3).action.value
    'retry'
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """What Airflow shall do; called in the task's process after the task has failed.

        :raises SettingsError: rules that can't be read; Airflow then does as without a policy, and logs it
        """
        rules = self._rules if self._rules is not None else configured_rules()
        history = _history(context)
        token = _token()
        known = [one for one in history if token is not None and one.token == token]
        finding = classify(evidence_of(exception))
        failure = known[-1] if known else Failure(
            failure_class=finding.failure_class, evidence=finding.evidence, at=datetime.now(UTC), epoch=max_tries,
            token=token,
        )  # fmt: skip
        decision = decide(failure, history, rules)
        if isinstance(decision, Fail):
            return RetryDecision.fail(decision.message[:MAX_REASON])
        words = decision.message
        if isinstance(decision, Requeue):  # nobody has rescheduled it: it costs a retry here
            words = f"It {failure.failure_class.description} ({failure.evidence}): left to the task's retries."
        return RetryDecision.retry(
            timedelta(seconds=decision.delay_s) if decision.delay_s else None, words[:MAX_REASON]
        )


def configured_rules() -> Rules:
    """The table that ``[hetero] recovery_rules`` makes, in a task's process.

    :raises SettingsError: it can't be read
    """
    text = conf.get(SECTION, "recovery_rules", fallback=default("recovery_rules"))
    return parse_rules(str(text), f"[{SECTION}] recovery_rules")


def _history(context: Context | None) -> tuple[Failure, ...]:
    states: Any = context.get("task_state_store") if context is not None else None
    return () if states is None else load_failures(states.get(FAILURES))


def _token() -> int | None:
    try:
        return current_lease().token
    except NoLeaseError:
        return None
