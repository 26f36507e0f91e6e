"""Keeps in the store what running tasks report of their speeds and checkpoints."""

import logging
import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from pydantic import ValidationError

from hetero_airflow.contract.state_keys import PROGRESS, LeaseProgress
from hetero_airflow.executor.airflow_db.state_store import StateCalls, read_states
from hetero_airflow.executor.run import Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.model.estimates import MAX_DURATION_S, MAX_SPEED, MIN_SPEED
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import MAX_STEPS, MeasuredSpeed
from hetero_airflow.store.lease_rules import leased_device_class
from hetero_airflow.store.sql.speeds import LeaseSpeed
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import CheckpointSaved

log = logging.getLogger(__name__)

FIRST_S, OFTEN_S, SELDOM_S = 60.0, 15.0, 1800.0
"""A report is read this long after the start; until it has a speed, this often at least; and later this often at least.
In between, the time grows with the age of the lease. A read is a query of Airflow's database for each task."""


class ReportedSpeeds:
    """The reports of the tasks that run here."""

    def __init__(self, store: SqlStore, runs: Runs, states: StateCalls) -> None:
        self._states = states
        self._store = store
        self._runs = runs
        self._due: dict[str, datetime] = {}
        """Lease id → when its report is read next."""
        self._saved: dict[str, datetime] = {}
        """Lease id → the last checkpoint that its task reported."""

    def keep(self, now: datetime) -> bool:
        """Read the reports that are due, and keep their speeds; whether there were any.

        :raises StoreUnavailable: the database is down
        """
        running = {run.held_lease.id: run for run in self._runs.leased.values()}
        first = timedelta(seconds=FIRST_S)
        self._due = {id_: self._due.get(id_, run.held_lease.granted_at + first) for id_, run in running.items()}
        latest = now + timedelta(seconds=SELDOM_S)  # beyond it, the clock was set back
        due = {run.key: run for id_, run in running.items() if not now < self._due[id_] <= latest}
        if not due:
            return False
        answer = self._states.ask("speeds", partial(_read_reports, list(due)))
        if not answer.done():
            return False
        if (error := answer.exception()) is not None:  # the next call reads it again
            log.warning("The speeds of tasks can't be read: %s", type(error).__name__)
            return False
        texts = answer.result()  # perhaps that of an earlier call
        due = {key: run for key, run in due.items() if key in texts}
        speeds = dict(self._read(due, texts, now))
        for run in due.values():
            lease = run.held_lease
            self._due[lease.id] = now + _wait(lease, now, is_known=lease.id in speeds)
        self._store.add_speeds(list(speeds.values()), now)
        return bool(speeds)

    def saved(self) -> Sequence[CheckpointSaved]:
        """The leases whose tasks have published a checkpoint since the last call."""
        running = {run.key: run.held_lease for run in self._runs.leased.values()}
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

    def _read(
        self, due: dict[object, Run], texts: dict[object, str | None], now: datetime
    ) -> Iterator[tuple[str, LeaseSpeed]]:
        """Lease id → its reported speed."""
        holders = self._store.snapshot().holders
        for key, run in due.items():
            lease = run.held_lease
            try:
                report = LeaseProgress.model_validate_json(texts[key] or "")
            except ValidationError:
                continue
            holder, worker = holders.get(lease.request_id), self._store.workers().get(lease.worker_id)
            if report.speed is None or report.lease_id != lease.id or holder is None or worker is None:
                continue
            leased = leased_device_class(lease.claims, {device.id: device for device in worker.devices})
            if leased is not None:
                speed = report.speed
                steps_per_s = min(max(speed.steps_per_s, MIN_SPEED), MAX_SPEED)
                log_speed, steps = math.log(steps_per_s), min(speed.steps, MAX_STEPS)
                ends = {lease.id: end} if (end := _expected_end(report, steps_per_s, now)) is not None else {}
                measured = MeasuredSpeed(
                    holder.task, leased[0], log_speed, speed.deviation, steps, speed.seconds, speed.shares, ends
                )
                yield lease.id, LeaseSpeed(lease.id, measured)


def _read_reports(keys: Sequence[object]) -> dict[object, str | None]:
    """Key → the report of its task; None without one."""
    return dict.fromkeys(keys) | read_states(keys, PROGRESS)


def _expected_end(report: LeaseProgress, steps_per_s: float, now: datetime) -> datetime | None:
    """When the task will have done its last step; None if it does not say how many there are.

    :param steps_per_s: at least `MIN_SPEED`
    """
    step, total = report.progress.step, report.progress.total
    if step is None or total is None:
        return None
    remaining_s = min(max(0, total - 1 - step), MAX_STEPS) / steps_per_s
    return min(report.progress.at, now) + timedelta(seconds=min(remaining_s, MAX_DURATION_S))


def _wait(lease: Lease, now: datetime, *, is_known: bool) -> timedelta:
    """The time until the next read of the report of a lease's task."""
    age_s = max(0.0, (now - lease.granted_at).total_seconds())
    seconds = min(max(OFTEN_S, age_s), SELDOM_S) if is_known else min(max(OFTEN_S, age_s / 8), SELDOM_S)
    return timedelta(seconds=seconds)
