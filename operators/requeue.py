"""Sends a task back to be scheduled after a preemption or a curable failure: same try, no retry used up."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)

from hetero_airflow.contract.notice import Stopped, has_notice
from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.contract.task_lease import current_lease
from hetero_airflow.recovery.classification import failure_of
from hetero_airflow.recovery.decisions import Requeue, decide
from hetero_airflow.recovery.evidence import evidence_of
from hetero_airflow.recovery.failure import keep_failure, load_failures
from hetero_airflow.recovery.rules import configured_rules
from hetero_airflow.settings import CONTROL_VARIABLE, LEASE_VARIABLE

_INTENDED_EXCEPTIONS = (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)
"""Exceptions that a task raises on purpose, or that Airflow raises for it."""


@contextmanager
def requeued_by_rules(context: Context, log: Any) -> Iterator[None]:
    """Within the context a failure is recorded, and the task is sent back to be scheduled if the rules say so.

    Other failures go on to `DeviceRetryPolicy`, for Airflow's retries or an immediate end.

    :raises AirflowRescheduleException: the task is requeued
    """
    try:
        yield
    except (*_INTENDED_EXCEPTIONS, Stopped):
        raise
    except (Exception, SystemExit) as error:
        if has_preemption_notice():
            raise
        decision = _recovery_decision(error, context)
        log.warning("%s", decision.message)
        if not isinstance(decision, Requeue):
            raise
        log.exception("The task is requeued after this error", exc_info=error)
        raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=decision.delay_s)) from None


def _recovery_decision(error: BaseException, context: Context) -> Any:
    ti: Any = context["ti"]
    lease = current_lease() if LEASE_VARIABLE in os.environ else None
    failure = failure_of(evidence_of(error), lease, ti.max_tries, datetime.now(UTC))
    states: Any = context.get("task_state_store")
    earlier = states.get(FAILURES) if states is not None else None
    if states is not None:
        states.set(FAILURES, keep_failure(earlier, failure))
    has_retries = ti.try_number <= ti.max_tries
    return decide(failure, load_failures(earlier), configured_rules(conf), has_retries=has_retries)


@contextmanager
def rescheduled_if_preempted(log: Any) -> Iterator[None]:
    """Within the context a task that stops, or fails after a preemption notice, is sent back to be scheduled.

    :raises AirflowRescheduleException: the task was preempted
    """
    try:
        yield
        _wait_for_saves()
    except AirflowRescheduleException:
        raise
    except (Stopped, Exception) as error:
        if not (isinstance(error, Stopped) or has_preemption_notice()):
            raise
        log.warning("Preempted: the task has stopped (%s). It goes on later, with the same try.", error)
        raise AirflowRescheduleException(datetime.now(UTC)) from None


def raise_if_preempted() -> None:
    """For `on_kill`: end the task as preempted if there is a notice.

    It runs in a signal handler, while the task does anything. A call to Airflow from there would deadlock.

    :raises AirflowRescheduleException: there is a notice
    """
    if has_preemption_notice():
        raise AirflowRescheduleException(datetime.now(UTC))


def _wait_for_saves() -> None:
    """Wait until pending checkpoints are published: Airflow ends the process without asking."""
    checkpoint = sys.modules.get("hetero_airflow.runtime.checkpoint")
    if checkpoint is not None:
        checkpoint.wait()


def has_preemption_notice() -> bool:
    """Whether the task of this process has a preemption notice."""
    folder = os.environ.get(CONTROL_VARIABLE)
    return folder is not None and has_notice(Path(folder))
