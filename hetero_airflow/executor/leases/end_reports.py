"""Judges the ends of tasks that the engine reports: a report may be late, wrong, or that of an earlier run."""

from __future__ import annotations

from typing import Any

from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.engines.engine import AirflowEngine, Liveness, termination_cause_of
from hetero_airflow.executor.leases.kept_tasks import ENDED, EngineEvent, RunningTask
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.executor.leases.lease_use import has_begun, is_run_over


class EndReports:
    """Decides which reported ends count for the tasks that the lease keeper has."""

    def __init__(self, keeper: LeaseKeeper, engine: AirflowEngine) -> None:
        self._keeper = keeper
        self._engine = engine

    def is_late(self, key: Any) -> bool:
        """Whether an end that is reported now is that of a run which was ended here before. It counts once."""
        is_late = key not in self._keeper.running and key in self._keeper.unreported
        if is_late:
            del self._keeper.unreported[key]
        return is_late

    def denied(self) -> dict[Any, EngineEvent]:
        """Key → the reported end that `is_over` did not believe; it may be true by now."""
        running = self._keeper.running.items()
        return {key: task.denied_end for key, task in running if task.denied_end is not None}

    def is_over(self, key: Any, event: EngineEvent) -> bool:
        """Whether a running task is over, now that the engine reports its end.

        Where a report may be an earlier run's, Airflow's row decides. If the processes of the run are gone and nobody
        tells Airflow, the keeper finds out.
        """
        if self._engine.traits.names_runs:
            has_failed = event[0] == TaskInstanceState.FAILED
            return not (has_failed and self._is_lost(key)) and not self._is_still_running(key, failed=has_failed)
        task = self._keeper.running[key]
        task.denied_end = event
        try:
            return is_run_over(task.lease, self._keeper.process(task.lease))
        except SQLAlchemyError:
            return False

    def failed_start(self, key: Any, state: Any) -> RunningTask | None:
        """A task that failed before it began, for Airflow still has it QUEUED: its supervisor could not start it.

        None for any other report. If it may be an earlier run's, the keeper finds out that the task did not start.
        """
        if state != TaskInstanceState.FAILED or not self._engine.traits.names_runs or self._is_lost(key):
            return None
        task = self._keeper.running[key]
        try:
            process = self._keeper.process(task.lease)
        except SQLAlchemyError:
            return None
        is_queued = process.state == TaskInstanceState.QUEUED and not has_begun(task.lease, process)
        return task if is_queued and task.start is not None else None

    def end(self, key: Any) -> None:
        """End a running task whose report is believed."""
        self._keeper.end(key, ENDED)
        self._keeper.unreported.pop(key, None)

    def is_to_run_again(self, key: Any) -> bool:
        """Whether Airflow knows of the end, and schedules the task again; see `TaskProcess.is_to_run_again`."""
        try:
            return self._keeper.process(self._keeper.running[key].lease).is_to_run_again
        except SQLAlchemyError:
            return False

    def _is_lost(self, key: Any) -> bool:
        """Whether a cluster says that a task was lost. Its reported end then does not count: the keeper acts on it."""
        return termination_cause_of(self._engine.cluster, self._keeper.running[key].lease) is not None

    def _is_still_running(self, key: Any, *, failed: bool) -> bool:
        """Whether the task runs although the engine reported an end.

        A success may be that of an earlier process. A failure is that of a slower process, or of a supervisor that
        could not report how its task ended. The keeper finds out whether a process is left.
        """
        if not failed and key not in self._keeper.unreported:
            return False
        lease = self._keeper.running[key].lease
        try:
            process = self._keeper.process(lease)
        except SQLAlchemyError:
            return failed
        if process.state != TaskInstanceState.RUNNING or (failed and self._engine.cluster is None):
            return process.state == TaskInstanceState.RUNNING
        return self._keeper.liveness_of([(lease, process)])[lease.id] is Liveness.ALIVE
