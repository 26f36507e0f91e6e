"""Recovery in Airflow's scheduler: of tasks whose process is lost, and of tasks that come back after a failure."""

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.engines.engine import TerminationCause
from hetero_airflow.executor.airflow_db.state_store import StateCalls, read_states, write_state
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.task_log import Note
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.recovery.adjustment import (
    AVOIDED_LABEL,
    adjusted_request,
    request_after_waiting,
    with_avoided_labels,
)
from hetero_airflow.recovery.classification import failure_of, with_xid_cause
from hetero_airflow.recovery.decisions import Requeue, decide
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, FailureClass, keep_failure, load_failures, replace_failure
from hetero_airflow.recovery.rules import Action, Rules

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreviousRuns:
    """What happened to a task that ran before and waits again."""

    epoch: int = 0
    """The task instance's `max_tries`."""
    failures: tuple[Failure, ...] = ()


class TaskRecovery:
    """Applies the recovery rules to what the task state store has about earlier runs."""

    def __init__(self, tasks: TaskInstances, rules: Rules, note: Note, states: StateCalls) -> None:
        self._states = states
        self._tasks = tasks
        self._rules = rules
        self._note = note
        self._shapes = Shapes()
        self._marked: tuple[tuple[Worker, ...], tuple[PendingRequest, ...], tuple[Worker, ...]] = ((), (), ())

    def send_back(
        self,
        key: Any,
        request_id: str,
        lease: TaskLease | None,
        evidence: Evidence,
        now: datetime,
        *,
        even_queued: bool = False,
    ) -> bool | None:
        """Requeue a task whose process and supervisor are gone, if the rules allow it.

        Returns whether that was done, or another scheduler or a user has decided meanwhile what becomes of the task. If
        not, Airflow fails or retries it. None while the task state store has not answered: call this again.

        :param lease: None for a task without one
        :param evidence: what is known about their end
        :param even_queued: also if Airflow does not know yet that it ran
        """
        epoch = self._tasks.epochs([request_id]).get(request_id)
        if epoch is None:
            return False
        failure = failure_of(evidence, lease, epoch, now)
        run = request_id if lease is None else lease.token
        answer = self._states.ask(("lost", run), partial(_record, key, failure))
        if not answer.done():
            return None
        if (error := answer.exception()) is not None:  # without a record its budget is not counted
            log.warning("Can't record that %s was lost. Airflow's retries decide what happens: %s", key, error)
            return False
        has_retries = key.try_number <= epoch
        decision = decide(failure, load_failures(answer.result()), self._rules, has_retries=has_retries)
        self._note(key, decision.message)
        if not isinstance(decision, Requeue):
            return False
        at, has_run = now + timedelta(seconds=decision.delay_s), bool(evidence.oom_kills)
        if not self._tasks.reschedule(request_id, now, at, even_queued=even_queued or has_run):
            log.info("%s was lost, and its state in Airflow has changed since. Nothing is reported.", key)
        return True

    def failure_of_lease(self, key: Any, token: int, xids: tuple[tuple[str, int], ...]) -> Future[Failure | None]:
        """The failure that a task recorded under the lease with that token.

        :param xids: (device id, XID) of the fatal errors that the driver reported for its devices while it ran; if
            they say more than the task knew, the record is changed
        """
        return self._states.ask(("failure", token), partial(_failure_of_lease, key, token, xids))

    def previous_runs(self, tasks: Mapping[str, tuple[Any, int]]) -> dict[str, PreviousRuns | None]:
        """Request id → earlier runs, for those of the tasks that have run before; None while they are not read yet.

        :param tasks: request id → (key, try number) of tasks that have just begun to wait
        """
        again = [id_ for id_, (_, try_number) in tasks.items() if try_number > 1]
        again += self._tasks.rescheduled([id_ for id_ in tasks if id_ not in again])
        if not again:
            return {}
        epochs = self._tasks.epochs(again)
        keys = {id_: tasks[id_][0] for id_ in epochs}
        answer = self._states.ask("earlier failures", lambda: {id_: _read([key]).get(key) for id_, key in keys.items()})
        if not answer.done():
            return dict.fromkeys(epochs)
        if (error := answer.exception()) is not None:
            log.warning("The earlier failures of tasks can't be read: %s", error)
        records = dict.fromkeys(epochs) if error is not None else answer.result()  # perhaps that of an earlier call
        return {
            id_: PreviousRuns(epoch, load_failures(records[id_])) if id_ in records else None
            for id_, epoch in epochs.items()
        }

    def adjust(
        self,
        request: DeviceRequest,
        previous: PreviousRuns,
        not_started: Iterable[TaskLease],
        workers: Collection[Worker],
        now: datetime,
    ) -> tuple[DeviceRequest, list[str]]:
        """The request of a task after its earlier runs, and the reasons, as sentences for its log.

        :param not_started: the leases under which it was handed over and did not start: what starts tasks there may be
            down
        """
        failures = (*previous.failures, *(_start_failure(lease, previous.epoch, now) for lease in not_started))
        workers = tuple(workers)
        return adjusted_request(request, failures, self._rules, workers, epoch=previous.epoch, shapes=self._shapes)

    def delay_after_failed_starts(self, earlier: int) -> float | None:
        """Seconds until a task whose start failed is tried again; None if it is left to Airflow's retries.

        The rule is that for network failures: no code of the task has run, and its supervisor reached its worker.

        :param earlier: how many starts had failed before
        """
        rule = self._rules[FailureClass.NETWORK]
        is_over = rule.action is not Action.REQUEUE or (rule.times is not None and earlier >= rule.times)
        return None if is_over else rule.delay_after_s(earlier) or 0.0

    def rotated(self, request: DeviceRequest, waited_s: float) -> tuple[DeviceRequest, list[str]]:
        """The request with its next alternative first, if it has waited too long, and the reasons."""
        return request_after_waiting(request, waited_s, self._rules)

    def with_marks(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with its workers marked that a waiting request avoids; the same ones while nothing changed."""
        workers, pending = snapshot.workers, snapshot.pending
        if self._marked[0] is not workers or self._marked[1] is not pending:
            alternatives = ((request.request, a) for request in pending for a in request.request.alternatives)
            avoiding = [request for request, alternative in alternatives if AVOIDED_LABEL in alternative.labels]
            self._marked = workers, pending, with_avoided_labels(workers, avoiding) if avoiding else workers
        return replace(snapshot, workers=self._marked[2])


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


def _read(keys: Collection[Any]) -> dict[Any, Any]:
    """Key → the records as stored."""
    return {key: json.loads(text) for key, text in read_states(keys, FAILURES).items()}


def _record(key: Any, failure: Failure) -> Any:
    """Add a failure to a task's records. Returns them as they were."""
    records = _read([key]).get(key)
    write_state(key, FAILURES, json.dumps(keep_failure(records, failure)))
    return records


def _failure_of_lease(key: Any, token: int, xids: tuple[tuple[str, int], ...]) -> Failure | None:
    records = _read([key]).get(key)
    recorded = next((failure for failure in load_failures(records) if failure.token == token), None)
    failure = recorded and with_xid_cause(recorded, xids)
    if failure is not None and failure != recorded:
        try:
            write_state(key, FAILURES, json.dumps(replace_failure(records, failure)))
        except Exception as error:  # noqa: BLE001  any backend may be configured
            log.warning("Can't record that a device caused the failure of %s: %s", key, error)
    return failure


def _start_failure(lease: TaskLease, epoch: int, now: datetime) -> Failure:
    return Failure(
        failure_class=FailureClass.NETWORK,
        evidence="it did not start there",
        worker=lease.worker,
        at=now,
        epoch=epoch,
        token=lease.token,
    )
