"""LocalExecutor, with worker processes that end with their scheduler."""

import multiprocessing
import os
from typing import Any

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecuteTask

from hetero_airflow.engines.host.local_worker import run_worker

_LOCK_S = 1.0
"""A worker process holds the lock of the queue for much less, unless it was stopped or killed then."""


class HostExecutor(LocalExecutor):
    """LocalExecutor, with worker processes that end with their scheduler."""

    _context: Any = multiprocessing

    def _spawn_worker(self) -> None:
        process = self._context.Process(
            target=run_worker,
            kwargs={
                "scheduler": os.getpid(),
                "logger_name": self.log.name,
                "input": self.activity_queue,
                "output": self.result_queue,
                "unread_messages": self._unread_messages,
                "team_conf": self.conf,
            },
        )
        process.start()
        self.workers[process.pid] = process

    def take_back(self) -> list[ExecuteTask]:
        """The tasks that no worker process has begun. Each worker process ends after what it has, and the callbacks."""
        workloads = self._take_unread()
        tasks = [workload for workload in workloads if isinstance(workload, ExecuteTask)]
        with self._unread_messages:
            self._unread_messages.value -= len(tasks)
        for workload in workloads:
            if not isinstance(workload, ExecuteTask):
                self.activity_queue.put(workload)
        tasks += self.queued_tasks.values()
        self.queued_tasks.clear()
        self._process_workloads([*self.queued_callbacks.values(), *self.queued_connection_tests.values()])  # type: ignore[no-untyped-call]
        for _ in self.workers:
            self.activity_queue.put(None)
        return tasks

    def _take_unread(self) -> list[Any]:
        """What no worker process has begun. It still counts as unread."""
        workloads = []
        reader, lock = self.activity_queue._reader, self.activity_queue._rlock  # type: ignore[attr-defined]
        if reader.poll() and lock.acquire(timeout=_LOCK_S):  # an idle worker process holds the lock while it waits
            while reader.poll():
                workloads.append(reader.recv())
            lock.release()
        return workloads
