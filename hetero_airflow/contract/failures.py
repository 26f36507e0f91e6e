"""Records of failed runs, made by whichever process saw the end: task, supervisor or scheduler."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hetero_airflow.engines.engine import TerminationCause
from hetero_airflow.recovery.classification import IMPORT_ERRORS, classify
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.runtime.task_lease import TaskLease

_CGROUP = Path("/sys/fs/cgroup")

_CERTAIN = frozenset({FailureClass.PREEMPTED, FailureClass.HUNG, FailureClass.HARDWARE})
"""Classes that a fatal XID does not replace."""


def evidence_of_loss(cause: TerminationCause | None, xids: tuple[tuple[str, int], ...]) -> Evidence:
    """What the scheduler knows about the end of a process and its supervisor.

    :param cause: what its cluster reports; None without a report, or without a cluster
    :param xids: (device id, XID) of the fatal errors that the driver reported for its devices while it ran
    """
    if cause is not None and cause.is_out_of_memory:
        return Evidence(oom_kills=1, host_memory_bytes=cause.host_memory_bytes)
    if cause is not None and cause.worker_problem is not None:
        return Evidence(worker_problem=cause.worker_problem)
    return Evidence(is_gone=True, xids=xids)


def failure_of(
    evidence: Evidence, lease: TaskLease | None, epoch: int, now: datetime, step: int | None = None
) -> Failure:
    """The record of a run that failed.

    :param lease: its lease; None without one
    :param epoch: the task instance's `max_tries`
    :param step: the last step that it finished
    """
    classification = classify(evidence)
    failure_class = classification.failure_class
    if lease is not None and lease.is_remote and evidence.final_exception_type in IMPORT_ERRORS:
        failure_class = FailureClass.CODE_ERROR  # another worker may have the module
    is_cpu = lease is not None and lease.kind == "cpu"
    has_device = lease is not None and not is_cpu and not lease.simulated
    if failure_class is FailureClass.WORKER and not classification.is_of_host and not has_device:
        failure_class = FailureClass.CODE_ERROR  # it uses a device that it has not leased
    host_memory_bytes = lease.memory_bytes or None if lease and is_cpu else None
    return Failure(
        failure_class=failure_class,
        evidence=classification.evidence,
        worker=lease.worker if lease else None,
        device_ids=lease.ids if lease and not is_cpu else (),
        is_of_host=classification.is_of_host,
        at=now,
        epoch=epoch,
        token=lease.token if lease else None,
        memory_bytes=lease.memory_bytes or None if lease and not is_cpu else None,
        host_memory_bytes=evidence.host_memory_bytes or host_memory_bytes,
        step=step,
    )


def with_xid_cause(failure: Failure, xids: Sequence[tuple[str, int]]) -> Failure:
    """The failure as a hardware failure, if the driver reported a fatal error that the task itself could not see.

    :param xids: as in `evidence_of_loss`
    """
    if not xids or failure.failure_class in _CERTAIN:
        return failure
    classification = classify(Evidence(xids=tuple(xids)))
    return failure.model_copy(
        update={"failure_class": classification.failure_class, "evidence": classification.evidence}
    )


def oom_kills(pid: int) -> int | None:
    """How many processes in the cgroup of a process the kernel has killed because memory ran out; None if unknown.

    Read from ``memory.events`` of cgroup v2, which has lines such as ``oom_kill 3``.
    """
    with suppress(OSError, ValueError, IndexError):
        cgroup = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        for line in (_CGROUP / cgroup / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
