"""The scheduler's part in recovery: tasks whose process is lost, and tasks that come back after a failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.contract.failures import failure_of, with_xid_cause
from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.executor.airflow_db.state_store import read_states, write_state
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.recovery.adjustment import adjusted_request, request_after_waiting
from hetero_airflow.recovery.avoidance import AVOIDED_LABEL, with_avoided_labels
from hetero_airflow.recovery.decisions import Requeue, decide
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure, FailureClass, keep_failure, load_failures, replace_failure
from hetero_airflow.recovery.rules import Rules
from hetero_airflow.runtime.task_lease import TaskLease

log = logging.getLogger(__name__)

Note = Callable[[Any, str], None]
"""(key, text): writes into Airflow's audit log of the task."""


@dataclass(frozen=True, slots=True)
class PreviousRuns:
    """A task that waits again after it had run."""

    epoch: int
    """Its `max_tries`."""
    failures: tuple[Failure, ...]


class TaskRecovery:
    """Knows the rules, and what the task state store says of earlier runs."""

    def __init__(self, tasks: TaskInstances, rules: Rules, note: Note) -> None:
        self._tasks = tasks
        self._rules = rules
        self._note = note
        self._shapes = Shapes()
        self._marked: tuple[tuple[Worker, ...], tuple[PendingRequest, ...], tuple[Worker, ...]] | None = None

    def lost(self, key: Any, request_id: str, lease: TaskLease, evidence: Evidence, now: datetime) -> bool:
        """Send a task back to be scheduled whose process and supervisor are gone; whether the rules say so.

        Else it is left to Airflow, which fails it or retries it.

        :param evidence: what is known of their end
        """
        epoch = self._tasks.epochs([request_id]).get(request_id)
        if epoch is None:
            return False
        failure = failure_of(evidence, lease, epoch, now)
        kept = self._read([key]).get(key)
        decision = decide(failure, load_failures(kept), self._rules)
        try:
            write_state(key, FAILURES, json.dumps(keep_failure(kept, failure)))
        except Exception as error:  # noqa: BLE001  the backend may be anybody's; without a record its budget is not counted
            log.warning("The loss of %s can't be put on record, so it is left to its retries: %s", key, error)
            return False
        self._note(key, decision.message)
        if not isinstance(decision, Requeue):
            return False
        at, has_run = now + timedelta(seconds=decision.delay_s), bool(evidence.oom_kills)
        return self._tasks.reschedule(request_id, now, at, even_queued=has_run)

    def failure_of_lease(self, key: Any, token: int, xids: tuple[tuple[str, int], ...]) -> Failure | None:
        """The failure that a task has put on record under the lease with that token.

        :param xids: (device id, XID) of the fatal ones that the driver told of its devices while it ran; where they
            say more than the task knew, the record is changed
        """
        kept = self._read([key]).get(key)
        told = next((failure for failure in load_failures(kept) if failure.token == token), None)
        if told is None:
            return None
        failure = with_xid_cause(told, xids)
        if failure != told:
            try:
                write_state(key, FAILURES, json.dumps(replace_failure(kept, failure)))
            except Exception as error:  # noqa: BLE001  the backend may be anybody's
                log.warning("That %s failed by its device can't be put on record: %s", key, error)
        return failure

    def returned(self, held: Mapping[str, tuple[Any, int]]) -> dict[str, PreviousRuns]:
        """Request id → what became of it before, for those tasks that have run before.

        :param held: request id → (key, try number) of tasks that were just taken up
        """
        again = [id_ for id_, (_, try_number) in held.items() if try_number > 1]
        again += self._tasks.rescheduled([id_ for id_ in held if id_ not in again])
        if not again:
            return {}
        epochs = self._tasks.epochs(again)
        kept = self._read([held[id_][0] for id_ in epochs])
        return {id_: PreviousRuns(epoch, load_failures(kept.get(held[id_][0]))) for id_, epoch in epochs.items()}

    def adjust(
        self,
        request: DeviceRequest,
        before: PreviousRuns,
        not_started: Iterable[TaskLease],
        workers: Collection[Worker],
        now: datetime,
    ) -> tuple[DeviceRequest, list[str]]:
        """What a task asks for now, after what became of it before, and why: in sentences for its log.

        :param unbegun: under which it was handed over and did not begin: what takes tasks there may be away
        """
        missed = (_start_failure(lease, before.epoch, now) for lease in not_started)
        failures = (*before.failures, *missed)
        return adjusted_request(request, failures, self._rules, tuple(workers), epoch=before.epoch, shapes=self._shapes)

    def turned(self, request: DeviceRequest, waited_s: float) -> tuple[DeviceRequest, list[str]]:
        """The request with its next alternative first, if it has waited for too long, and why."""
        return request_after_waiting(request, waited_s, self._rules)

    def marked(self, snapshot: Snapshot) -> tuple[Worker, ...]:
        """The workers, marked where a request that waits avoids them; the same object while nothing changed."""
        workers, pending = snapshot.workers, snapshot.pending
        if self._marked is None or self._marked[0] is not workers or self._marked[1] is not pending:
            requests = [
                one.request for one in pending if any(AVOIDED_LABEL in a.labels for a in one.request.alternatives)
            ]
            self._marked = workers, pending, with_avoided_labels(workers, requests) if requests else workers
        return self._marked[2]

    def _read(self, keys: Collection[Any]) -> dict[Any, Any]:
        """Key → the records as they are kept; nothing where the backend fails: then nobody failed before."""
        try:
            return {key: json.loads(text) for key, text in read_states(keys, FAILURES).items()}
        except Exception as error:  # noqa: BLE001  the backend may be anybody's
            log.warning("It can't be read why tasks failed before: %s", error)
            return {}


def _start_failure(lease: TaskLease, epoch: int, now: datetime) -> Failure:
    return Failure(
        failure_class=FailureClass.NETWORK,
        evidence="it was not begun there",
        worker=lease.worker,
        at=now,
        epoch=epoch,
        token=lease.token,
    )
