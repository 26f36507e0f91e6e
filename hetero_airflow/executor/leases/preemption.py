"""Takes leases back from tasks that run: a notice first, then a grace time, then Airflow's own way of stopping a task.

The notice goes through the task state store to the coordinator, which hands it to the task. A task that saves and ends
in time is rescheduled by its own process. Of one that does not, the coordinator stops the process at the end of the
grace time; and where that does not help either, or there is no coordinator, the task instance is rescheduled here, in
the database, upon which its supervisor's next heartbeat is refused and it kills the process. In each case the try is
the same, and no retry is used up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.executor.airflow_db.state_store import read_states, write_state
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper, RunningTask
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.runtime.notice import Notice
from hetero_airflow.store.store import CheckpointSaved

log = logging.getLogger(__name__)

Note = Callable[[Any, str], None]
"""(key, text): writes into Airflow's audit log of the task."""

_FORCE_AFTER_S = 10.0
"""What the coordinator gets after the grace time, until the task is rescheduled here."""


@dataclass(slots=True)
class _Notified:
    """A task that was told to save and end."""

    task: RunningTask
    notice: Notice
    is_forced: bool = False


class PreemptionNotices:
    """Carries out what plans take back, on the tasks that run here."""

    def __init__(self, keeper: LeaseKeeper, tasks: TaskInstances, grace_s: float, note: Note) -> None:
        self._keeper = keeper
        self._tasks = tasks
        self._grace = timedelta(seconds=grace_s)
        self._note = note
        self._told: dict[str, _Notified] = {}
        self._saved: dict[str, datetime] = {}

    def tell(self, lease: Lease, cause: str, now: datetime, grace: timedelta | None = None) -> None:
        """Tell the task of a lease to save and end; once is enough. One that is over already is not told.

        :param grace: another time than the configured one
        """
        task = self._keeper.find(lease.id)
        if task is None or lease.id in self._told:
            return
        notice = Notice(cause=cause, by=now + (self._grace if grace is None else grace))
        self._told[lease.id] = _Notified(task, notice)
        try:
            write_state(task.key, PREEMPT, LeaseNotice(lease_id=lease.id, notice=notice).model_dump_json())
        except Exception as error:  # noqa: BLE001  the backend may be anybody's; at the end of the grace time we stop it
            log.warning("%s could not be told to save; it is stopped at %s: %s", task.key, notice.by, error)
        self._note(task.key, f"preempted: {cause}. It has until {notice.by:%H:%M:%S} UTC to save, and goes on later.")

    def settle(self, now: datetime) -> None:
        """Tell those whose leases were taken back when another scheduler ran them; stop those that did not end."""
        for task in self._keeper.running.values():
            if task.lease.state is LeaseState.PREEMPTED:
                self.tell(task.lease, "taken back before this scheduler took it over", now)
        for id_, told in list(self._told.items()):
            if self._keeper.find(id_) is None:
                del self._told[id_]
            elif not told.is_forced and now >= told.notice.by + timedelta(seconds=_FORCE_AFTER_S):
                told.is_forced = True
                if self._tasks.reschedule(told.task.lease.request_id, now, now):
                    log.warning("%s did not end when it was preempted; it is rescheduled by force.", told.task.key)
                    self._note(told.task.key, f"stopped: {told.notice.cause}. It had not ended in its grace time.")

    def saved(self) -> Sequence[CheckpointSaved]:
        """The leases whose tasks have published a checkpoint since this was asked last."""
        running = {task.key: task.lease for task in self._keeper.running.values()}
        try:
            texts = read_states(running, PROGRESS)
        except Exception as error:  # noqa: BLE001  the backend may be anybody's; who saved is known a little later
            log.warning("It can't be read how far tasks have come: %s", error)
            return ()
        live = {lease.id for lease in running.values()}
        self._saved = {id_: at for id_, at in self._saved.items() if id_ in live}
        found = []
        for key, text in texts.items():
            try:
                told = LeaseProgress.model_validate_json(text)
            except ValidationError:
                continue
            at, lease = told.progress.saved_at, running[key]
            if told.lease_id == lease.id and at is not None and self._saved.get(lease.id) != at:
                self._saved[lease.id] = at
                found.append(CheckpointSaved(lease.id, lease.token))
        return found
