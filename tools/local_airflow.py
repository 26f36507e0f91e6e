"""A real Airflow in a folder: starts it, calls its API, and stops all its processes.

The demo and the system tests use it. It has the settings that `airflow hetero config` recommends.
"""

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from held_port import HeldPort
from sqlalchemy import NullPool, create_engine

from hetero_airflow.executor.recommended_settings import recommendations
from hetero_airflow.store.sql.store import SqlStore

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USER = "admin"
PATIENCE_S = 600
"""How long to wait for what must come. Only a fault takes this long, also on a slow and busy host."""
HTTP_TIMEOUT_S = 120
"""How long a request to Airflow may take."""

Process = Any
"""As much of `subprocess.Popen` as is used here: pid, returncode, poll, wait, terminate, kill."""


class ColdAirflow:
    """Starts ``airflow`` processes, each as a shell does. Tests put another class in its place."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the environment that most processes will have."""

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, output: int, errors: int
    ) -> Process:
        """Start ``airflow`` with these arguments, as the leader of a new session.

        :param output: a file descriptor
        :param errors: a file descriptor; it may be the same
        """
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *arguments],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments to its end."""
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def close(self) -> None:
        """Free what it needs to start processes."""


class LocalAirflow:
    """An Airflow with its folder, environment and processes.

    :param schedulers: their names are ``scheduler``, ``scheduler-2``, ``scheduler-3``; several need PostgreSQL
    """

    make_starter: Callable[[Mapping[str, str]], Any] = ColdAirflow
    """Makes what starts the processes; gets their environment."""
    copy_migrated_database: Callable[[Path], None] | None = None
    """Puts a migrated SQLite database there, for those who start many Airflows; without it, each migrates its own."""

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        database: str | None = None,
        simulated: str = "",
        settings: Mapping[str, str] | None = None,
        components: Sequence[str] = COMPONENTS,
        schedulers: int = 1,
    ) -> None:
        self.home = home
        self._ports: list[HeldPort] = []
        self.port = self._hold_port()
        self.url = f"http://localhost:{self.port}"
        self.password = secrets.token_urlsafe(12)
        self.components = tuple(components)
        self.schedulers = ("scheduler", *(f"scheduler-{number}" for number in range(2, schedulers + 1)))
        self._lock = threading.RLock()
        """Held while a component ends or starts: a service manager in a thread must not start one twice."""
        self._processes: dict[str, Process] = {}
        self._commands: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {}
        self._killed: list[int] = []
        self._client: httpx.Client | None = None
        self._stranger: httpx.Client | None = None
        """Asks without a login. A new client for each question would cost 20 ms of computing."""
        log_port, triggerer_log_port = self._hold_port(), self._hold_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            **{setting.variable: setting.value for setting in recommendations("hetero")},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database or f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggerer_log_port),
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "True",
            "HETERO_AIRFLOW_SIMULATED_DEVICES": simulated,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **(settings or {}),
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._starter = type(self).make_starter(self.environment)

    def __enter__(self) -> "LocalAirflow":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Migrate the database, start the components, and wait until all answer."""
        self.home.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(f'{{"{USER}": "{self.password}"}}')
        self.migrate()
        for name in self.components:
            self.launch(name)
        for name in self.schedulers[1:]:
            self.launch(name, "scheduler", AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT=str(self._hold_port()))
        try:
            self.wait_until(self.is_healthy, "Airflow to answer")
        except TimeoutError as error:
            ends = "\n".join(f"---- {name}.log ends with\n{self._log_end(name)}" for name in self._processes)
            raise TimeoutError(f"{error}\n{ends}") from None

    def migrate(self) -> None:
        """Make the tables in its database."""
        copy, database = type(self).copy_migrated_database, self.home / "airflow.db"
        if copy is not None and self._is_sqlite and not database.exists():
            copy(database)
        else:
            self.run("db", "migrate")

    def launch(self, name: str, *arguments: str, **environment: str) -> None:
        """Start a component; its output goes to ``<home>/<name>.log``. The same name again runs the same command.

        :param arguments: what comes after ``airflow``; the name where nothing is said
        :param environment: more variables for it alone, from now on
        """
        if arguments or name not in self._commands:
            self._commands[name] = arguments or (name,), {}
        arguments, own_environment = self._commands[name]
        own_environment.update(environment)
        with self._lock, (self.home / f"{name}.log").open("ab") as output:
            environment = {**self.environment, **own_environment}
            self._processes[name] = self._starter.start(
                arguments, environment, self.home, output.fileno(), output.fileno()
            )

    def kill(self, name: str) -> None:
        """``kill -9`` the main process of a component, and no other process."""
        with self._lock:
            process = self._processes.pop(name)
            process.kill()
            process.wait()
            self._killed.append(process.pid)

    def has_ended(self, name: str) -> bool:
        """Whether the main process of a component has ended."""
        return self._processes[name].poll() is not None

    def revive(self) -> list[str]:
        """Restart the components that ended, as a service manager does; return their names."""
        with self._lock:
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            for name in ended:
                self._killed.append(self._processes[name].pid)
                self.launch(name)
            return ended

    def stop(self) -> None:
        """Ask each component to stop; kill those that do not stop in time."""
        for client in filter(None, (self._client, self._stranger)):
            client.close()
        self._client = self._stranger = None
        workers = {name: process for name, process in self._processes.items() if name != "api-server"}
        for process in workers.values():
            process.terminate()
        for name, process in workers.items():
            # the scheduler waits for its tasks to save; the others have nothing to lose
            _wait_for_session(process, 20 if name in self.schedulers else 3)
        if "api-server" in self._processes:
            self._processes["api-server"].terminate()
            _wait_for_session(self._processes["api-server"], 5)
        self._processes.clear()
        while self._killed:
            _kill_session(self._killed.pop())
        self._starter.close()
        while self._ports:
            self._ports.pop().release()

    def _hold_port(self) -> int:
        self._ports.append(HeldPort())
        return self._ports[-1].number

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments to its end."""
        done = self._starter.run(arguments, self.environment, self.home)
        if check and done.returncode != 0:
            raise RuntimeError(
                f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def is_healthy(self) -> bool:
        """Whether the API server answers and sees the other components."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"airflow {name} ended with {process.returncode}:\n{self._log_end(name)}")
        try:
            self._stranger = self._stranger or httpx.Client(timeout=30)
            health = self._stranger.get(f"{self.url}/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        seen = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
        return all(health[key]["status"] == "healthy" for name, key in seen.items() if name in self._processes)

    def api(self, method: str, path: str, **kwargs: Any) -> Any:
        """Call Airflow's public API (``path`` below ``/api/v2``); return the JSON value."""
        if self._client is None:
            answer = httpx.post(
                f"{self.url}/auth/token", json={"username": USER, "password": self.password}, timeout=HTTP_TIMEOUT_S
            )
            answer.raise_for_status()
            token = answer.json()["access_token"]
            headers = {"Authorization": f"Bearer {token}"}
            self._client = httpx.Client(base_url=f"{self.url}/api/v2", headers=headers, timeout=HTTP_TIMEOUT_S)
        answer = self._client.request(method, path, **kwargs)
        if answer.status_code == 500 and "Database error" in answer.text and self._is_sqlite:
            # Airflow first records a request in its database, and blocks a thread for that. Another request that holds
            # SQLite's lock needs the same thread to end.
            answer = self._client.request(method, path, **kwargs)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path} answered {answer.status_code}: {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Wait until Airflow has read the DAG's file, and start a run; return its run id."""

        def is_known() -> bool:
            for error in self.api("GET", "/importErrors")["import_errors"]:
                raise RuntimeError(f"{error['filename']} can't be imported:\n{error['stack_trace']}")
            return any(dag["dag_id"] == dag_id for dag in self.api("GET", "/dags?limit=100")["dags"])

        self.wait_until(is_known, f"Airflow to read the DAG {dag_id}")
        self.api("PATCH", f"/dags/{dag_id}", json={"is_paused": False})
        run = self.api("POST", f"/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": dict(conf or {})})
        return str(run["dag_run_id"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run, as JSON values of the API."""
        return list(self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=1000")["task_instances"])

    def wait_for_run(self, dag_id: str, run_id: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until a run has ended; return its state."""
        state = ""

        def is_over() -> bool:
            nonlocal state
            state = self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state in ("success", "failed")

        self.wait_until(is_over, f"the run {run_id} of {dag_id} to end", timeout_s)
        return state

    def xcom(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Any:
        """The return value of a task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.api("GET", f"{path}?map_index={map_index}&deserialize=true")["value"]

    def log_text(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """A task's log, as in Airflow's UI."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.api("GET", f"{path}?map_index={map_index}")["content"]
        return "\n".join(_log_line(line) for line in content)

    def wait_until(self, condition: Any, what: str, timeout_s: float = PATIENCE_S, every_s: float = 0.25) -> Any:
        """Wait until the condition is true; return its value.

        :raises TimeoutError: it does not become true in time
        """
        begin = asked = time.monotonic()
        while not (value := condition()):
            answered = time.monotonic()
            if answered > begin + timeout_s:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}; see the logs in {self.home}")
            time.sleep(max(every_s, 2 * (answered - asked)))  # on a busy host, leave time to what is waited for
            asked = time.monotonic()
        return value

    def store(self) -> SqlStore:
        """The plugin's store, with its own connections."""
        return SqlStore(create_engine(self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool))

    @property
    def _is_sqlite(self) -> bool:
        return self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite")

    def wait_until_freed(self) -> None:
        """Wait until no lease is left, also by the scheduler's last look at the local runs of this host.

        A lease outlives its task until the task's processes are known to be gone.
        """
        store = self.store()

        def is_free() -> bool:
            snapshot = store.snapshot()
            devices = [device for worker in snapshot.workers for device in worker.devices]
            return not snapshot.leases and not any("local run" in (device.problem or "") for device in devices)

        self.wait_until(is_free, "all leases to be freed")

    def _log_end(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")[-4000:]

    def pid(self, name: str) -> int:
        """The main process of a component."""
        return self._processes[name].pid


def _log_line(line: Any) -> str:
    """The event of a structured log line, with its exceptions."""
    if not isinstance(line, dict):
        return str(line)
    errors = (f"{error.get('exc_type')}: {error.get('exc_value')}" for error in line.get("error_detail") or ())
    return "\n".join([str(line.get("event", line)), *errors])


def _wait_for_session(process: Process, timeout_s: float) -> None:
    """Wait for a process that was asked to stop, then kill what is left of its session."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    _kill_session(process.pid)
    process.wait()


def session_of(leader: int) -> list[psutil.Process]:
    """The processes of a session, also of one whose leader has ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _kill_session(leader: int) -> None:
    for process in session_of(leader):
        with suppress(psutil.Error):
            process.kill()
