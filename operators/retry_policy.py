"""The retry policy of device tasks: what Airflow does after a failure that was not requeued."""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.configuration import conf

from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.contract.task_lease import current_lease
from hetero_airflow.errors import NoLeaseError
from hetero_airflow.recovery.classification import failure_of
from hetero_airflow.recovery.decisions import Fail, Requeue, decide, retries_text
from hetero_airflow.recovery.evidence import evidence_of
from hetero_airflow.recovery.failure import Failure, load_failures
from hetero_airflow.recovery.rules import Rules, configured_rules

MAX_REASON = 500
"""Airflow keeps this many characters of a reason."""


class DeviceRetryPolicy(RetryPolicy):
    """Fails a task at once if a retry can't cure it, and gives retries the delay of the recovery rules.

    A retry policy of Airflow can end retries early but not add any. A failure that is requeued without using a retry
    never gets here: the device operator has rescheduled the task. For other operators, such a failure is a retry.

    :param rules: replace those of ``[hetero] recovery_rules``

    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> policy = DeviceRetryPolicy(DEFAULTS)
    >>> policy.evaluate(ModuleNotFoundError("No module named 'flash_attn'"), try_number=1, max_tries=3).action.value
    'fail'
    >>> policy.evaluate(KeyError("label"), try_number=1, max_tries=3).action.value
    'retry'
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide what Airflow does. Called in the task's process after the task has failed.

        :raises SettingsError: the rules can't be read; Airflow then acts as without a policy, and logs it
        """
        rules = self._rules if self._rules is not None else configured_rules(conf)
        history = _history(context)
        token = _token()
        recorded = [failure for failure in history if token is not None and failure.token == token]
        failure = recorded[-1] if recorded else _new_failure(exception, max_tries, token)
        has_retries = try_number <= max_tries
        decision = decide(failure, history, rules, has_retries=has_retries)
        if isinstance(decision, Fail):
            return RetryDecision.fail(decision.message[:MAX_REASON])
        reason = decision.message
        if isinstance(decision, Requeue):  # not rescheduled, so it costs a retry here
            cause = f"It {failure.failure_class.description} ({failure.evidence})"
            reason = f"{cause}: {retries_text(has_retries)}."
        delay = timedelta(seconds=decision.delay_s) if decision.delay_s else None
        return RetryDecision.retry(delay, reason[:MAX_REASON])


def _new_failure(exception: BaseException, epoch: int, token: int | None) -> Failure:
    return failure_of(evidence_of(exception), None, epoch, datetime.now(UTC)).model_copy(update={"token": token})


def _history(context: Context | None) -> tuple[Failure, ...]:
    states: Any = context.get("task_state_store") if context is not None else None
    return () if states is None else load_failures(states.get(FAILURES))


def _token() -> int | None:
    try:
        return current_lease().token
    except NoLeaseError:
        return None
