"""LocalExecutor with worker processes that have imported the modules of ``[hetero] preload``."""

import ctypes
import multiprocessing
from collections.abc import Sequence
from typing import Any

from airflow.executors.local_executor import LocalExecutor, _run_worker

from hetero_airflow.engines.preload import preload_problem, prepare_environment

FORK_SERVER_MODULES = "hetero_airflow.engines.fork_server_modules"


class PreloadedLocalExecutor(LocalExecutor):
    """Takes its worker processes from a fork server, where LocalExecutor forks them from the scheduler.

    :param modules: what the fork server imports
    """

    def __init__(self, parallelism: int, team_name: str | None, modules: Sequence[str]) -> None:
        super().__init__(parallelism, team_name)  # type: ignore[no-untyped-call]
        self._modules = tuple(modules)
        self._context = multiprocessing.get_context("forkserver")
        self._is_preloaded = False

    def start(self) -> None:
        """Start the worker processes, from the scheduler itself if the modules can't be preloaded."""
        problem = preload_problem(self._modules)
        if problem:
            self.log.error(
                "hetero_airflow can't preload %s: %s. Tasks run without. Correct [hetero] preload.",
                ", ".join(self._modules),
                problem,
            )
            super().start()
            return
        prepare_environment(self._modules)
        self._context.set_forkserver_preload([FORK_SERVER_MODULES])
        self._make_queues()
        self.workers = {}
        self._is_preloaded = True
        for _ in range(self.parallelism):
            self._spawn_worker()

    def _make_queues(self, *unread: Any) -> None:
        self.activity_queue = self._context.SimpleQueue()
        self.result_queue = self._context.SimpleQueue()
        self._unread_messages = self._context.Value(ctypes.c_uint, len(unread))
        for message in unread:
            self.activity_queue.put(message)

    def _check_workers(self) -> None:
        """As LocalExecutor. When the fork server was killed, its worker processes left the queues locked."""
        if self._is_preloaded and self.workers and not any(process.is_alive() for process in self.workers.values()):
            self.log.warning("The fork server of [hetero] preload ended, and its worker processes with it.")
            unread = []
            while self.activity_queue._reader.poll():  # type: ignore[attr-defined]
                unread.append(self.activity_queue._reader.recv())  # type: ignore[attr-defined]
            self._make_queues(*unread)
            self.workers = {}
            for _ in range(self.parallelism):
                self._spawn_worker()
        super()._check_workers()  # type: ignore[no-untyped-call]

    def _spawn_worker(self) -> None:
        if not self._is_preloaded:
            super()._spawn_worker()  # type: ignore[no-untyped-call]
            return
        process = self._context.Process(
            target=_run_worker,
            kwargs={
                "logger_name": self.log.name,
                "input": self.activity_queue,
                "output": self.result_queue,
                "unread_messages": self._unread_messages,
                "team_conf": self.conf,
            },
        )
        process.start()
        self.workers[process.pid] = process  # type: ignore[assignment,index]
