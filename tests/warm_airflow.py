"""Starts ``airflow`` as a fork of a process that has loaded Airflow, so that tests do not load it hundreds of times.

`WarmAirflow` is the tests' side. The process is this module as a program, with the environment of the Airflow that it
serves: Airflow reads some options when it is loaded. It reads requests from a socket, and forks a process for each.

A forked process differs from one that a shell starts in two ways: its command line in ``/proc`` is that of the program,
and it has loaded modules that it may not need. Tests that claim something about these start ``airflow`` themselves.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MEMORY_FOLDER = "TESTS_MEMORY_FOLDER"
"""Environment variable: a folder in place of the one that all processes of this host share."""

LOADED = (
    "airflow.api_fastapi.core_api.routes.public",
    "airflow.api_fastapi.core_api.routes.ui",
    "airflow.api_fastapi.execution_api.app",
    "airflow.cli.commands.api_server_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.db_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
    "airflow.dag_processing.manager",
    "airflow.executors.local_executor",
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow.utils.db",
    "hetero_airflow.executor.executor",
    "hetero_airflow.supervisor.coordinator",
    "hetero_airflow.web.app",
)
"""What the components and commands import first. Not our plugin: it looks at the command."""

_MAX_MESSAGE = 200_000

COMMAND_TIMEOUT_S = 600
"""How long a command may take. Only a fault takes this long, also on a slow and busy host."""


class WarmProcess:
    """A process that `WarmAirflow` has started; as much of `subprocess.Popen` as tests use."""

    def __init__(self, airflow: "WarmAirflow", pid: int) -> None:
        self._airflow = airflow
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """As that of `subprocess.Popen`; None while it is not known to have ended."""
        return self._airflow.ended.get(self.pid)

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        self._airflow.read_ends(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        :raises subprocess.TimeoutExpired: it has not ended in time
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("airflow", timeout or 0.0)
            self._airflow.read_ends(0.05)
        return self._airflow.ended[self.pid]

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class WarmAirflow:
    """Starts ``airflow`` processes with one environment.

    :param environment: that of the process which loads Airflow
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = threading.RLock()
        self._server: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self.ended: dict[int, int] = {}
        """Process id → exit code."""

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, output: int, errors: int
    ) -> WarmProcess:
        """Start ``airflow`` with these arguments, as the leader of a new session.

        :param output: a file descriptor
        :param errors: a file descriptor; it may be the same
        """
        with self._lock:
            connection = self._connect()
            request = json.dumps([list(arguments), dict(environment), str(folder)]).encode()
            socket.send_fds(connection, [request], [output, errors])
            while True:
                message = self._read(None)
                if "started" in message:
                    self.ended.pop(message["started"], None)
                    return WarmProcess(self, message["started"])

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments to its end."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            code = self.start(arguments, environment, folder, output.fileno(), errors.fileno()).wait(COMMAND_TIMEOUT_S)
            texts = [(file.seek(0), file.read())[1] for file in (output, errors)]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def read_ends(self, timeout_s: float) -> None:
        """Take in which processes have ended; wait for the first one at most this long."""
        with self._lock:
            while self._connection is not None and self._read(timeout_s):
                timeout_s = 0

    def close(self) -> None:
        """End the process that has loaded Airflow. Those that it started live on."""
        with self._lock:
            if self._server is not None and self._connection is not None:
                self._connection.close()
                self._server.kill()
                self._server.wait()
            self._server = self._connection = None

    def _connect(self) -> socket.socket:
        if self._connection is None:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_airflow", str(theirs.fileno())],
                env=self._environment,
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
        return self._connection

    def _read(self, timeout_s: float | None) -> dict[str, int]:
        """The next message; empty if none comes in time. An end is noted."""
        assert self._connection is not None
        if not select.select([self._connection], [], [], timeout_s)[0]:
            return {}
        text = self._connection.recv(_MAX_MESSAGE)
        if not text:
            raise RuntimeError("the process that has loaded Airflow ended; its errors are above")
        message: dict[str, int] = json.loads(text)
        if "ended" in message:
            self.ended[message["ended"]] = message["code"]
        return message


def serve(connection: socket.socket) -> None:
    """Fork a process for each request, and report the ends, until the other side closes."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children = 0
    while True:
        readable, _, _ = select.select([connection, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                children -= 1
                report = {"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}
                connection.send(json.dumps(report).encode())
        if connection in readable:
            request, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 2)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                connection.close()
                run(files, *json.loads(request))
            children += 1
            for file in files:
                os.close(file)
            connection.send(json.dumps({"started": pid}).encode())


def run(files: Sequence[int], arguments: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    """Be ``airflow`` with these arguments."""
    os.setsid()
    os.chdir(folder)
    for stream, file in enumerate(files, 1):
        os.dup2(file, stream)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # to be found again, in this environment
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:0] = added
    sys.argv[:] = ["airflow", *arguments]
    _use_memory_folder()
    code = _exit_code()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _use_memory_folder() -> None:
    if MEMORY_FOLDER in os.environ:
        from hetero_airflow.engines.host import lease_folders

        lease_folders._MEMORY = Path(os.environ[MEMORY_FOLDER])


def _exit_code() -> int:
    """Run the command; its exit code."""
    from airflow.__main__ import main

    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as Python does at the end of a program
        traceback.print_exc()
        return 1
    return 0


def load() -> None:
    """Import what ``airflow`` imports."""
    from airflow.cli.cli_parser import get_parser
    from setproctitle import getproctitle

    from hetero_airflow import cli

    get_parser()
    getproctitle()  # finds the memory for titles, which it could not do after the environment has changed
    names = [module.name for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
    for name in (*names, *LOADED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each fork would copy the pages of all objects at its first collection


def main(arguments: list[str]) -> None:
    """Serve the socket whose file descriptor is the argument."""
    connection: Any = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(connection.fileno(), False)
    load()
    serve(connection)


if __name__ == "__main__":
    main(sys.argv[1:])
