"""LocalExecutor, with worker processes from a fork server that has imported the modules of ``[hetero] preload``.

The scheduler starts at once: worker processes are forked from the scheduler itself until a trial shows that the modules
can be preloaded. The same holds after another version of a package was installed, since the fork server has the old
one. Worker processes that are to go end after the task that they have.
"""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hetero_airflow.engines.host_executor import HostExecutor
from hetero_airflow.engines.preload import CANNOT_PRELOAD, PreloadTrial, installed_packages, prepare_environment

FORK_SERVER_MODULES = "hetero_airflow.engines.fork_server_modules"

_LOOK_S = 15.0
"""How often the installed packages are looked at."""

_END_S = 2.0
"""How long a killed fork server may take to end."""


class PreloadedExecutor(HostExecutor):
    """Takes its worker processes from a fork server, where LocalExecutor forks them from the scheduler.

    :param modules: what the fork server imports
    """

    def __init__(self, parallelism: int, team_name: str | None, modules: Sequence[str]) -> None:
        super().__init__(parallelism, team_name)  # type: ignore[no-untyped-call]
        self._modules = tuple(modules)
        self._trial: PreloadTrial | None = None
        self._is_tried = False
        """Whether the modules can be preloaded, and the fork server is not used yet."""
        self._server: int | None = None
        """Pid of the fork server, once it has made a worker process."""
        self._of_server: set[int] = set()
        """Pids of its worker processes."""
        self._packages = installed_packages()
        self._looked_at = time.monotonic()
        self._is_changing = False
        """Whether the packages had changed when they were looked at last."""

    def start(self) -> None:
        """Start worker processes without the modules, and a trial of the modules."""
        self._make_queues()
        self.workers = {}
        self._trial = PreloadTrial(self._modules)
        self._spawn_workers_with_gc_freeze(self.parallelism)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """As LocalExecutor; ends a trial, too."""
        if self._trial is not None:
            self._trial.end()
        super().end()

    def _make_queues(self, *unread: Any) -> None:
        """They suit both kinds of worker processes."""
        context = multiprocessing.get_context("forkserver")
        self.activity_queue = context.SimpleQueue()
        self.result_queue = context.SimpleQueue()
        self._unread_messages = context.Value(ctypes.c_uint, len(unread))
        for message in unread:
            self.activity_queue.put(message)

    def _spawn_worker(self) -> None:
        before = set(self.workers)
        super()._spawn_worker()
        if self._context is not multiprocessing:
            (pid,) = set(self.workers) - before
            self._of_server.add(pid)
            with suppress(psutil.NoSuchProcess):
                self._server = psutil.Process(pid).ppid()

    def _check_workers(self) -> None:
        """As LocalExecutor. When the fork server was killed, its worker processes left the queues locked."""
        self._look_for_changes()
        self._take_trial()
        alive = {pid for pid, process in self.workers.items() if process.is_alive()}
        if self._context is not multiprocessing and self._of_server and not self._of_server & alive:
            self.log.warning("The fork server of [hetero] preload ended, and its worker processes with it.")
            self._renew_queues()
        self._of_server &= alive
        super()._check_workers()  # type: ignore[no-untyped-call]
        if self._context is not multiprocessing and len(self.workers) < self.parallelism:
            self._spawn_workers_with_gc_freeze(self.parallelism - len(self.workers))  # type: ignore[no-untyped-call]

    def _renew_queues(self) -> None:
        unread = []
        while self.activity_queue._reader.poll():  # type: ignore[attr-defined]
            unread.append(self.activity_queue._reader.recv())  # type: ignore[attr-defined]
        self._make_queues(*unread)

    def _look_for_changes(self) -> None:
        """When the installed packages change, go on without the modules; when the change is over, try them again."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        packages = installed_packages()
        has_changed, self._packages = packages != self._packages, packages
        if has_changed:
            self.log.info("The installed packages have changed: [hetero] preload begins anew.")
            if self._trial is not None:
                self._trial.end()
            self._trial, self._is_tried = None, False
            self._use(multiprocessing)
        elif self._is_changing:
            self._trial = PreloadTrial(self._modules)
        self._is_changing = has_changed

    def _take_trial(self) -> None:
        """Use the fork server once the modules are known to suit, and no task runs on a former one."""
        problem = self._trial.problem() if self._trial is not None else None
        if problem is not None:
            self._trial, self._is_tried = None, not problem
            names = ", ".join(self._modules)
            if problem:
                self.log.error(CANNOT_PRELOAD, names, problem)
        if not self._is_tried or any(self.workers[pid].is_alive() for pid in self._of_server & set(self.workers)):
            return
        self._end_server()
        self._is_tried = False
        prepare_environment(self._modules)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([FORK_SERVER_MODULES])
        self.log.info("Tasks start with %s imported.", ", ".join(self._modules))
        self._use(context)

    def _use(self, context: Any) -> None:
        """Take new worker processes from another parent. The present ones end after the task that they have."""
        if context is self._context:
            return
        self._context = context
        tasks = self._take_unread()
        leaving, self.activity_queue = self.activity_queue, multiprocessing.get_context("forkserver").SimpleQueue()
        for process in self.workers.values():
            if process.is_alive():
                leaving.put(None)
        for task in tasks:
            self.activity_queue.put(task)

    def _end_server(self) -> None:
        """End the fork server, so that multiprocessing starts another one. It has no worker processes any more."""
        server, self._server = self._server, None
        if server is None:
            return
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        until = time.monotonic() + _END_S
        while time.monotonic() < until and not _has_ended(server):  # multiprocessing itself waits for it
            time.sleep(0.01)


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
