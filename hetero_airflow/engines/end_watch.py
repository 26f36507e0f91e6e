"""A thread that reacts to the ends of tasks while the scheduler's loop sleeps.

The loop sleeps a second when it has nothing to do. Without this thread, a device whose task has ended would be idle
for the rest of that second although other tasks wait for it.
"""

import logging
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import wait
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero_airflow.engines.local import ReportPipe

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class EndWatch:
    """Waits until an engine has an end to report.

    :param react: takes the reports from the engine. The thread calls it
    """

    def __init__(self, react: "Callable[[ReportPipe], None]") -> None:
        self._react = react
        self._thread: Thread | None = None

    def start(self, ends: "ReportPipe | None") -> None:
        """Start the thread. An engine without prompt reports needs none."""
        if ends is None:
            return
        self._stopped, self._stop = Pipe(duplex=False)
        self._thread = Thread(target=self._run, args=(ends,), name="hetero-end-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Returns when it has ended; a second call does nothing."""
        if self._thread is None:
            return
        self._stop.send("stop")  # closing it is not enough: processes that were forked meanwhile have it too
        self._thread.join()
        self._thread = None
        for end in (self._stopped, self._stop):
            end.close()

    def _run(self, ends: "ReportPipe") -> None:
        pause_s = 0.0
        while not self._stopped.poll(pause_s):
            if self._stopped in wait([self._stopped, ends.readable]):
                return
            try:
                self._react(ends)
                pause_s = 0.0
            except Exception:
                log.exception("Ended tasks could not be processed at once; the scheduler's next heartbeat does it")
                pause_s = _RETRY_S
