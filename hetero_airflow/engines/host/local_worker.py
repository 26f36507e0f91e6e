"""The worker processes of LocalExecutor. They outlive no scheduler for longer than their task takes."""

import os
import signal
from multiprocessing.connection import wait
from multiprocessing.queues import SimpleQueue
from types import FrameType
from typing import Any

from airflow.executors.local_executor import _run_worker


class WorkloadsOfScheduler:
    """The workloads of a scheduler, as its worker processes take them. There are none any more once it has ended.

    Airflow's own queue never ends: each worker process keeps the end of the pipe open that the scheduler writes to.

    :param scheduler: pid of the scheduler
    """

    def __init__(self, queue: "SimpleQueue[Any]", scheduler: int) -> None:
        self._queue = queue
        self._scheduler: int | None = None
        self._has_ended = self._is_waiting = self._is_told_to_end = False
        try:
            self._scheduler = os.pidfd_open(scheduler)
        except ProcessLookupError:
            self._has_ended = True
        except OSError:  # a kernel before 5.3 can't tell
            return

    def get(self) -> Any:
        """The next workload. Blocks until there is one.

        :raises EOFError: the scheduler has ended
        """
        self._is_waiting = True
        reader, scheduler = self._queue._reader, self._scheduler  # type: ignore[attr-defined]
        with self._queue._rlock:  # type: ignore[attr-defined]
            if self._has_ended or (scheduler is not None and scheduler in wait([reader, scheduler])):
                raise EOFError
            self._is_waiting = False
            return reader.recv()

    def end(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: ends an idle process. At a second signal, also one that has the end of a task to report."""
        if self._is_waiting or self._is_told_to_end:
            raise SystemExit(128 + number)
        self._is_told_to_end = True


def run_worker(scheduler: int, input: "SimpleQueue[Any]", **arguments: Any) -> None:
    """Run workloads until the scheduler ends or says so.

    Ctrl-C in the terminal of the scheduler signals its whole process group. The scheduler decides what becomes of its
    tasks, so they are in a group of their own. While a task runs, its supervisor handles SIGTERM.

    :param scheduler: its pid
    :param arguments: those of LocalExecutor's own worker processes
    """
    os.setpgrp()
    workloads = WorkloadsOfScheduler(input, scheduler)
    signal.signal(signal.SIGTERM, workloads.end)
    _run_worker(input=workloads, **arguments)  # type: ignore[arg-type]
