"""How a supervisor judges the end of a task's process that said nothing itself: killed, crashed, or stopped."""

from __future__ import annotations

import json
from datetime import datetime

from hetero_airflow.contract.failures import failure_of
from hetero_airflow.contract.retry_policy import configured_rules
from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.recovery.decisions import RecoveryDecision, decide
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, keep_failure, load_failures
from hetero_airflow.runtime.task_lease import TaskLease
from hetero_airflow.supervisor.monitor import TaskStateStore


def judge_end(
    evidence: Evidence, lease: TaskLease, epoch: int, states: TaskStateStore, now: datetime
) -> RecoveryDecision:
    """What is to be done; the failure is on record then.

    Whatever the state store answers, or cannot, is raised: the caller leaves the task to Airflow then.
    """
    failure = failure_of(evidence, lease, epoch, now)
    kept = states.get(FAILURES)
    states.set(FAILURES, json.loads(json.dumps(keep_failure(kept, failure))))
    return judge(failure, kept)


def judge(failure: Failure, kept: object) -> RecoveryDecision:
    """What the configured rules say of a failure, given what the state store held before."""
    return decide(failure, load_failures(kept), configured_rules())
