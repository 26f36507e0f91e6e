"""A run that failed for no fault of the task's code is requeued: with the same try, by the recovery rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)

from hetero_airflow.contract.failures import failure_of
from hetero_airflow.contract.retry_policy import configured_rules
from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.operators.stopping import has_preemption_notice
from hetero_airflow.recovery.decisions import Requeue, decide
from hetero_airflow.recovery.evidence import evidence_of
from hetero_airflow.recovery.failure import keep_failure, load_failures
from hetero_airflow.runtime.task_lease import current_lease
from hetero_airflow.settings import LEASE_VARIABLE

_INTENDED_EXCEPTIONS = (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)
"""What a task raises on purpose, or Airflow for it."""


@contextmanager
def requeued_by_rules(context: Context, log: Any) -> Iterator[None]:
    """Within: a failure is put on record, and where the rules say so, the task goes back to be scheduled.

    What is left to Airflow's retries, or fails at once, goes on to `DeviceRetryPolicy`.

    :raises AirflowRescheduleException: it is requeued
    """
    try:
        yield
    except _INTENDED_EXCEPTIONS:
        raise
    except Exception as error:
        if has_preemption_notice():
            raise
        decision = _recovery_decision(error, context)
        log.warning("%s", decision.message)
        if not isinstance(decision, Requeue):
            raise
        log.exception("The task is requeued after this", exc_info=error)
        raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=decision.delay_s)) from None


def _recovery_decision(error: Exception, context: Context) -> Any:
    ti: Any = context["ti"]
    lease = current_lease() if LEASE_VARIABLE in os.environ else None
    failure = failure_of(evidence_of(error), lease, ti.max_tries, datetime.now(UTC))
    states: Any = context.get("task_state_store")
    kept = states.get(FAILURES) if states is not None else None
    if states is not None:
        states.set(FAILURES, keep_failure(kept, failure))
    return decide(failure, load_failures(kept), configured_rules())
