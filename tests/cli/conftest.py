"""A console to read from, and a migrated Airflow home that the commands are run on."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from local_airflow import ColdAirflow
from rich.console import RenderableType
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.output import show
from hetero_airflow.model.device import Telemetry
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_pending, a_worker
from tests.migrated_database import copy_migrated_database
from tests.warm_airflow import WarmAirflow

Render = Callable[..., str]


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Render:
    """What a user of a pipe or a terminal of that width reads, without the blanks at the ends of lines."""

    def rendered(parts: Iterable[RenderableType], width: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        show(*parts)
        return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())

    return rendered


class Installation:
    """An Airflow home, and how its ``airflow`` is called."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._airflow = WarmAirflow(self._environment())

    @property
    def url(self) -> str:
        return f"sqlite:///{self.home}/airflow.db"

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments and environment variables.

        Airflow reads some variables when it is loaded. A command without these runs in a process that has loaded it.
        """
        is_cold = any(name.startswith(("AIRFLOW__DATABASE", "AIRFLOW__LOGGING", "PYTHON")) for name in variables)
        starter = ColdAirflow(self._environment()) if is_cold else self._airflow
        return starter.run(arguments, self._environment() | variables, Path.cwd())

    def output(self, *arguments: str, **variables: str) -> str:
        """What ``airflow hetero`` prints with these arguments; it succeeds, and complains of nothing."""
        done = self.run("hetero", *arguments, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def complaint(self, *arguments: str, **variables: str) -> str:
        """What ``airflow hetero`` says is wrong with these arguments; it prints nothing else, and no traceback."""
        done = self.run("hetero", *arguments, **variables)
        assert (done.returncode, done.stdout) == (1, "")
        assert "Traceback" not in done.stderr
        return done.stderr

    def hetero(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the console script `hetero`, where importing Airflow fails."""
        script = "import sys; sys.modules['airflow'] = None; from hetero_airflow.cli.main import main; main()"
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, env=self._environment(), capture_output=True, text=True)

    def close(self) -> None:
        """End the process that has loaded Airflow."""
        self._airflow.close()

    def _environment(self) -> dict[str, str]:
        prefixes = ("AIRFLOW", "HETERO", "COLUMNS", "FORCE_COLOR", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        return environment | {"AIRFLOW_HOME": str(self.home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


@pytest.fixture(scope="session")
def unmigrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An Airflow without tables."""
    with closing(Installation(tmp_path_factory.mktemp("unmigrated"))) as made:
        yield made


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A migrated Airflow with one worker, where one task is placed, two wait and one was refused."""
    made = Installation(tmp_path_factory.mktemp("airflow"))
    copy_migrated_database(made.home / "airflow.db")
    gpu = a_device("GPU-5a3c1f2e-8c1b-4a0e-9d52-1f2f3a4b5c6d")
    worker = a_worker(devices=(a_cpu(), gpu, a_device("SIM-0", model="t4", memory="16GiB", simulated=True)))
    engine = create_engine(made.url, poolclass=NullPool)
    store = SqlStore(engine)
    requests = [
        a_pending("placed", "a100", quota={"cpus": 2}, priority="high"),
        a_pending("waits", ["a100", "h100:2"], map_index=3, run_id="manual__2026-01-01T00:00:00+00:00"),
        a_pending("[red]waits\x1b[31m", "a100:0.5", priority="low"),
        a_pending("refused", "h100"),
    ]
    reading = Telemetry(device_id=gpu.id, memory_free_bytes=2**34)
    store.record([WorkerSeen(worker, (reading,)), *map(RequestSubmitted, requests)], EPOCH)
    Cycle(store, PriorityPolicy(), FakeEngine(), 60).run(EPOCH + timedelta(seconds=5))
    engine.dispose()
    with sqlite3.connect(made.home / "airflow.db") as connection:
        _insert(connection, "slot_pool", pool="hetero_devices", slots=-1)
        _insert(connection, "dag_run", dag_id="dag", run_id="run", id=1)
        for task_id in ("placed", "plain"):
            values = {"dag_id": "dag", "run_id": "run", "map_index": -1, "state": "success"}
            _insert(connection, "task_instance", id=f"{task_id:>032}", task_id=task_id, **values)
        audited = {"refused": "No known worker can ever run this. It fails at once", "unread": "No quota"}
        audited["plain"] = "stopped: its scheduler was stopped."  # an earlier run's, which explains nothing now
        for id_, (task_id, text) in enumerate(audited.items(), 1):
            names = {"dag_id": "dag", "run_id": "run", "task_id": task_id, "map_index": -1}
            _insert(connection, "log", id=id_, event="hetero_airflow", extra=text, **names)
        values = {"dag_id": "dag", "run_id": "run", "map_index": -1, "state": "failed"}
        _insert(connection, "task_instance", id=f"{'unread':>032}", task_id="unread", **values)
    connection.close()
    with closing(made):
        yield made


def _insert(connection: sqlite3.Connection, table: str, **values: Any) -> None:
    """A row with these values, and something in each other column that must have a value."""
    for _, name, kind, is_required, default, _ in connection.execute(f"PRAGMA table_info({table})"):
        if is_required and default is None and name not in values:
            values[name] = datetime.now(UTC).isoformat() if kind == "TIMESTAMP" else 0
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
