"""Judges the end of a task's process that did not report its end itself: killed, crashed, or stopped."""

import json
from datetime import datetime

from airflow.sdk.configuration import conf

from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.recovery.classification import failure_of
from hetero_airflow.recovery.decisions import RecoveryDecision, decide
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import keep_failure, load_failures
from hetero_airflow.recovery.rules import configured_rules
from hetero_airflow.supervisor.execution_api_calls import ExecutionApiStates


def judge_end(
    evidence: Evidence, lease: TaskLease, epoch: int, states: ExecutionApiStates, now: datetime, *, has_retries: bool
) -> RecoveryDecision:
    """Record the failure, and decide by the configured rules.

    :param has_retries: whether the task has a retry left

    Raises whatever the state store raises: the caller then leaves the task to Airflow.
    """
    failure = failure_of(evidence, lease, epoch, now)
    records = states.get(FAILURES)
    states.set(FAILURES, json.loads(json.dumps(keep_failure(records, failure))))
    return decide(failure, load_failures(records), configured_rules(conf), has_retries=has_retries)
