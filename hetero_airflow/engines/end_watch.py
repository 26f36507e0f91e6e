"""A thread that reacts to the ends of tasks while the scheduler's loop sleeps.

The loop sleeps a second when it has nothing to do. Without this thread, a device whose task has ended would be idle
for the rest of that second although other tasks wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import wait
from threading import Thread

from hetero_airflow.engines.engine import PromptEnds

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class EndWatch:
    """Waits until an engine has an end to report.

    :param react: takes the reports from the engine. The thread calls it
    """

    def __init__(self, ends: PromptEnds, react: Callable[[PromptEnds], None]) -> None:
        self._ends = ends
        self._react = react
        self._stopped, self._stop = Pipe(duplex=False)
        self._thread = Thread(target=self._run, name="hetero-end-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Returns when it has ended; a second call does nothing."""
        self._stop.close()
        self._thread.join()
        self._stopped.close()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.poll(pause_s):
            if self._stopped in wait([self._stopped, self._ends.readable]):
                return
            try:
                self._react(self._ends)
                pause_s = 0.0
            except Exception:
                log.exception("Ended tasks could not be processed at once; the scheduler's next heartbeat does it")
                pause_s = _RETRY_S
