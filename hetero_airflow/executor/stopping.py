"""How a scheduler stops whose tasks run on its own host: they save, or end, and go on after its restart.

Airflow's LocalExecutor waits for its tasks without a limit. Their supervisors wait for the API server, which may have
been stopped before, as by Ctrl-C on `airflow standalone`.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.cached_store import ToleratedOutages
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.run import Run
from hetero_airflow.executor.runs import KILL_AFTER
from hetero_airflow.model.lease import Lease

if TYPE_CHECKING:
    from hetero_airflow.engines.local import LocalEngine

log = logging.getLogger(__name__)

CAUSE = "its scheduler stops"

_POLL_S = 0.2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ignore_later_signals() -> None:
    """Let only the first signal stop this scheduler. A later one would end it in the middle of that.

    `airflow standalone` sends SIGTERM right after a Ctrl-C. A scheduler that was not started for signals is left alone.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if current_thread() is main_thread() and signal.default_int_handler not in before.values():
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, partial(_stop_once, handler, os.getpid()))


def _stop_once(
    handler: Callable[[int, FrameType | None], Any], scheduler: int, number: int, frame: FrameType | None
) -> None:
    if os.getpid() == scheduler:  # its children inherit this
        for later in _SIGNALS:
            signal.signal(later, signal.SIG_IGN)
    handler(number, frame)


class LocalStop:
    """Stops the runs of this host.

    :param take_reports: handles the ends that the engine reports
    """

    def __init__(self, dispatcher: Dispatcher, engine: "LocalEngine", take_reports: Callable[[], None]) -> None:
        self._dispatcher, self._engine, self._take_reports = dispatcher, engine, take_reports
        self._commands, self._runs, self._clock = dispatcher.commands, dispatcher.runs, dispatcher.commands.clock
        self._tolerate_outages = ToleratedOutages()

    def run(self) -> None:
        """Start nothing more, wait for the grace time at most, and end what is left. Blocks until then.

        While the API server answers, any task may end in the grace time. While it does not, no end can be reported, so
        only tasks that save are waited for, and callbacks, which Airflow does not start again. The worker processes and
        what they wait for are left to `LocalEngine.end`.
        """
        grace_s = self._commands.grace.total_seconds()
        taken_back = set(self._engine.take_back())
        here = [run for run in self._all() if run.key not in taken_back and self._is_here(run)]
        with self._tolerate_outages("stopping"):
            self._stop(run for run in self._all() if run.key in taken_back)
        if here:
            log.warning("%d tasks run here. They have %g s to save or to end. They go on later.", len(here), grace_s)
        until = time.monotonic() + grace_s
        ids = [run.request_id for run in here]
        while (any(map(self._is_waited_for, here)) or self._engine.has_callbacks(ids)) and time.monotonic() < until:
            self._look()
            time.sleep(_POLL_S)
        self._end(here)

    def _all(self) -> list[Run]:
        return [*self._runs.leased.values(), *self._runs.sent.values()]

    def _is_here(self, run: Run) -> bool:
        return self._engine.has_run(run.request_id, run.lease.id if run.lease is not None else None)

    def _is_waited_for(self, run: Run) -> bool:
        is_known = self._runs.leased.get(run.key) is run or self._runs.sent.get(run.key) is run
        if not is_known or not self._is_here(run):
            return False
        return self._dispatcher.api.outage is None or (run.lease is not None and self._has_to_save(run.lease))

    def _has_to_save(self, lease: Lease) -> bool:
        progress = self._engine.progress(lease.id)
        return progress is not None and progress.can_save and not progress.has_stopped

    def _look(self) -> None:
        """Ask those to save that can, and handle what has ended."""
        now = self._clock.now()
        with self._tolerate_outages("stopping"):
            self._dispatcher.store.invalidate()
            for run in list(self._runs.leased.values()):
                if run.notice is None and self._has_to_save(run.held_lease):
                    self._commands.notify(run.held_lease, CAUSE, now)
            self._take_reports()
            self._dispatcher.free_ended(now)

    def _end(self, here: list[Run]) -> None:
        """End what is left: SIGTERM, and SIGKILL after `KILL_AFTER`."""
        with self._tolerate_outages("stopping"):
            self._stop(run for run in self._all() if run in here)
        until = time.monotonic() + KILL_AFTER.total_seconds() + 1
        self._engine.terminate_tasks()
        while time.monotonic() < until and (self._engine.has_processes() or self._runs.ending):
            self._look()
            time.sleep(_POLL_S)

    def _stop(self, stopped: Iterable[Run]) -> None:
        runs = list(stopped)
        rows = self._dispatcher.tasks.processes([run.request_id for run in runs])
        found = [(run, events.SchedulerStopped(rows.get(run.request_id, TaskProcess()))) for run in runs]
        self._commands.apply(found, self._clock.now())
