"""From what is known of a run's end to the record of it, for whoever saw it: task, supervisor or scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hetero_airflow.engines.engine import TerminationCause
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.runtime.task_lease import TaskLease

_CGROUP = Path("/sys/fs/cgroup")

_CERTAIN = frozenset({FailureClass.PREEMPTED, FailureClass.HUNG, FailureClass.HARDWARE})
"""What an XID does not explain better."""


def evidence_of_loss(loss: TerminationCause | None, xids: tuple[tuple[str, int], ...]) -> Evidence:
    """What the scheduler knows of the end of a process and its supervisor.

    :param loss: what its cluster says; None where it says nothing, or there is none
    :param xids: (device id, XID) of the fatal ones that the driver told of its devices while it ran
    """
    if loss is not None and loss.is_out_of_memory:
        return Evidence(oom_kills=1, host_memory_bytes=loss.host_memory_bytes)
    return Evidence(is_gone=True, xids=xids)


def failure_of(
    evidence: Evidence, lease: TaskLease | None, epoch: int, now: datetime, step: int | None = None
) -> Failure:
    """The record of a run that failed.

    :param lease: under which it ran; None without one
    :param epoch: the task instance's `max_tries`
    :param step: the last that was done
    """
    finding = classify(evidence)
    is_cpu = lease is not None and lease.kind == "cpu"
    host_memory_bytes = lease.memory_bytes or None if lease and is_cpu else None
    return Failure(
        failure_class=finding.failure_class,
        evidence=finding.evidence,
        worker=lease.worker if lease else None,
        device_ids=lease.ids if lease and not is_cpu else (),
        at=now,
        epoch=epoch,
        token=lease.token if lease else None,
        memory_bytes=lease.memory_bytes or None if lease and not is_cpu else None,
        host_memory_bytes=evidence.host_memory_bytes or host_memory_bytes,
        step=step,
    )


def with_xid_cause(failure: Failure, xids: Sequence[tuple[str, int]]) -> Failure:
    """The failure as one of the hardware, where the driver told of a fatal error that the task itself could not see.

    :param xids: (device id, XID) of the fatal ones of its devices, while it ran
    """
    if not xids or failure.failure_class in _CERTAIN:
        return failure
    finding = classify(Evidence(xids=tuple(xids)))
    return failure.model_copy(update={"failure_class": finding.failure_class, "evidence": finding.evidence})


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
