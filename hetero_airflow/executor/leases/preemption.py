"""Takes leases back from running tasks: first a notice, then a grace time, then Airflow's own way to stop a task.

The notice goes through the task state store to the coordinator, which hands it to the task. A task that saves and ends
in time reschedules itself. The coordinator stops the process of any other task at the end of the grace time. If that
does not help either, or there is no coordinator, the task instance is rescheduled here, in the database. Airflow then
refuses the next heartbeat of its supervisor, which kills the process. The try stays the same, and no retry is used up.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from pydantic import ValidationError

from hetero_airflow.clock import Clock
from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.executor.airflow_db.state_store import StateCalls, read_states, write_state
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.leases.kept_tasks import RunningTask
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.executor.task_log import Note
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.runtime.notice import Notice
from hetero_airflow.store.store import CheckpointSaved, Store

log = logging.getLogger(__name__)

_FORCE_AFTER_S = 10.0
"""The coordinator's time to stop a task after the grace time. Then the task is rescheduled here."""


@dataclass(slots=True)
class _Notified:
    """A task that got a notice."""

    task: RunningTask
    notice: Notice
    is_forced: bool = False


class PreemptionNotices:
    """Preempts the tasks that run here; the cycle's `Preemptor`."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        tasks: TaskInstances,
        grace_s: float,
        note: Note,
        clock: Clock,
        states: StateCalls,
    ) -> None:
        self._states = states
        self._store = store
        self._keeper = keeper
        self._tasks = tasks
        self._grace = timedelta(seconds=grace_s)
        self._note = note
        self._clock = clock
        self._notified: dict[str, _Notified] = {}
        self._saved: dict[str, datetime] = {}

    def preempt(self, lease: Lease, cause: str) -> None:
        """Tell the task of a lease to save and end. It waits again when it has."""
        snapshot = self._store.snapshot()
        holder = snapshot.holders.get(lease.request_id)
        readable = {holder.dag_id} if holder else set()
        self.notify(lease, TaskNames.of(snapshot).put_into(cause, readable), self._clock.now())

    def notify(self, lease: Lease, cause: str, now: datetime, grace: timedelta | None = None) -> None:
        """Tell the task of a lease once to save and end, unless it is over already.

        :param grace: a grace time other than the configured one
        """
        task = self._keeper.find(lease.id)
        if task is None or lease.id in self._notified:
            return
        notice = Notice(cause=cause, by=now + (self._grace if grace is None else grace))
        self._notified[lease.id] = _Notified(task, notice)
        text = LeaseNotice(lease_id=lease.id, notice=notice).model_dump_json()
        loss = f"{task.key} could not be told to save. It is stopped at {notice.by}"
        self._states.keep((task.key, PREEMPT), partial(write_state, task.key, PREEMPT, text), loss)
        self._note(task.key, f"preempted: {cause}. It has until {notice.by:%H:%M:%S} UTC to save, and goes on later.")

    def force_overdue(self, now: datetime) -> None:
        """Reschedule the tasks that did not end in time. Also notify those that a dead scheduler preempted."""
        for task in self._keeper.running.values():
            if task.lease.state is LeaseState.PREEMPTED:
                self.notify(task.lease, "taken back before this scheduler took it over", now)
        for id_, notified in list(self._notified.items()):
            key, notice = notified.task.key, notified.notice
            if self._keeper.find(id_) is None:
                del self._notified[id_]
            elif not notified.is_forced and now >= notice.by + timedelta(seconds=_FORCE_AFTER_S):
                notified.is_forced = True
                if self._tasks.reschedule(notified.task.lease.request_id, now, now):
                    log.warning("%s did not end when it was preempted. It is rescheduled by force.", key)
                    self._note(key, f"stopped: {notice.cause}. It had not ended in its grace time.")

    def saved(self) -> Sequence[CheckpointSaved]:
        """The leases whose tasks have published a checkpoint since the last call."""
        running = {task.key: task.lease for task in self._keeper.running.values()}
        answer = self._states.ask("progress", partial(read_states, list(running), PROGRESS))
        if not answer.done():
            return ()
        if (error := answer.exception()) is not None:  # the next call reads it again
            log.warning("The progress of tasks can't be read: %s", error)
            return ()
        live = {lease.id for lease in running.values()}
        self._saved = {id_: at for id_, at in self._saved.items() if id_ in live}
        events = []
        for key, text in answer.result().items():
            try:
                reported = LeaseProgress.model_validate_json(text)
            except ValidationError:
                continue
            at, lease = reported.progress.saved_at, running.get(key)
            if lease is None or reported.lease_id != lease.id:
                continue
            if at is not None and self._saved.get(lease.id) != at:
                self._saved[lease.id] = at
                events.append(CheckpointSaved(lease.id, lease.token))
        return events
