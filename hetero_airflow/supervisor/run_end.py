"""How a supervisor judges the end of a task's process that said nothing itself: killed, crashed, or stopped."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hetero_airflow.contract.failures import failure_of
from hetero_airflow.contract.retry_policy import configured_rules
from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.recovery.decisions import RecoveryDecision, decide
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, keep_failure, load_failures
from hetero_airflow.runtime.task_lease import TaskLease
from hetero_airflow.supervisor.monitor import TaskStateStore

_CGROUP = Path("/sys/fs/cgroup")


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


def oom_kills(pid: int) -> int | None:
    """How many processes the kernel has killed for want of memory in the cgroup of a process; None if it can't be told.

    Read from ``memory.events`` of cgroup v2, which holds lines such as ``oom_kill 3``.
    """
    with suppress(OSError, ValueError, IndexError):
        own = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        for line in (_CGROUP / own / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
