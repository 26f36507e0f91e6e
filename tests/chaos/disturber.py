"""Carries out the faults of a sequence on a running Airflow with one or more schedulers."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from local_airflow import LocalAirflow

from tests.chaos.dag_modules import dag_module
from tests.chaos.sequence import Sequence, Step
from tests.chaos.verdict import ENDS, TaskId
from tests.worker_fleet import Fleet

DAG_ID = "sequence"
PATIENCE_S = 120.0
"""For a clear or a mark while the API server is away."""
USER_S = 20.0
"""For a task that a fault can strike."""


class Skipped(Exception):
    """There is nothing at that moment to which the fault could happen."""


class Disturber:
    """Does what a sequence says to one DAG run, and keeps a record of it.

    :param fleet: the workers of the engine; None if it is `local`
    :param folder: the witness's
    """

    def __init__(self, airflow: LocalAirflow, postgres: Any, fleet: Fleet | None, folder: Path, run_id: str) -> None:
        self.cleared: Counter[TaskId] = Counter()
        self.marked: set[TaskId] = set()
        self.record: list[dict[str, Any]] = []
        self._airflow = airflow
        self._postgres = postgres
        self._fleet = fleet
        self._witness = dag_module("chaos_witness")
        self._journal = self._witness.Witness(folder)
        self._record_file = folder / "faults.jsonl"
        self._run_id = run_id
        self._busy: set[Any] = set()
        """What a fault already happens to: components, processes, and the database."""
        self._lock = threading.Lock()
        self._hosts = 0

    def carry_out(self, sequence: Sequence) -> None:
        """Blocks until the last fault is over."""
        began = time.monotonic()
        with ThreadPoolExecutor(len(sequence.steps) or 1) as pool:
            for done in [pool.submit(self._carry_out, step, began) for step in sequence.steps]:
                done.result()

    def _carry_out(self, step: Step, began: float) -> None:
        time.sleep(max(0.0, began + step.at_s - time.monotonic()))
        entry: dict[str, Any] = {"at_s": step.at_s, "kind": step.kind, "at": time.time()}
        try:
            entry["struck"] = self._action_of(step.kind)(step)
        except Skipped as error:
            entry["skipped"] = str(error)
        except psutil.NoSuchProcess:
            entry["skipped"] = "the process ended at that moment"
        entry["until"] = time.time()
        with self._lock:
            self.record.append(entry)
            with self._record_file.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def _action_of(self, kind: str) -> Callable[[Step], Any]:
        special = {
            "kill_task": self._kill_process,
            "kill_supervisor": self._kill_process,
            "kill_database": self._restart_database,
            "restart_database": self._restart_database,
            "freeze_task": self._freeze_processes,
            "freeze_supervisor": self._freeze_processes,
            "freeze_worker": self._freeze_processes,
            "freeze_executor": self._freeze_executor,
            "freeze_database": self._freeze_database,
            "kill_host": self._restart_host,
            "freeze_host": self._freeze_host,
            "api_server_away": self._restart_component,
            "rename_host": self._restart_component,
            "leave_daemon": lambda step: "a task of the plan",
            "clear": self._clear,
            "mark_success": self._mark,
            "mark_failed": self._mark,
        }
        default = self._freeze_component if kind.startswith("freeze_") else self._restart_component
        return special.get(kind, default)

    def _kill_process(self, step: Step) -> Any:
        line, process = self._user(step.pick, needs_device=step.kind == "kill_task")
        struck = process if step.kind == "kill_task" else _parent(process)
        struck.kill()
        return {"task": line["task"], "pid": struck.pid}

    def _freeze_processes(self, step: Step) -> Any:
        line, process = self._user(step.pick, needs_device=False)
        targets = {
            "freeze_task": [process],
            "freeze_supervisor": [_parent(process)],
            "freeze_worker": [_parent(process), process],
        }[step.kind]
        with self._alone(*(target.pid for target in targets)):
            self._freeze(targets, step.for_s)
        return {"task": line["task"], "pids": [target.pid for target in targets], "for_s": step.for_s}

    def _freeze_component(self, step: Step) -> Any:
        name = self._component(step)
        with self._alone(name):
            self._freeze([psutil.Process(self._airflow.pid(name))], step.for_s)
        return {"component": name, "for_s": step.for_s}

    def _freeze_executor(self, step: Step) -> Any:
        """All processes in which LocalExecutor of a scheduler runs its tasks, also those that have none."""
        name = _pick(self._airflow.schedulers, step.pick, "no scheduler")
        with self._alone(name):  # only for a moment: its scheduler may be killed while they are frozen
            children = psutil.Process(self._airflow.pid(name)).children()
            workers = [child for child in children if "LocalExecutor" in " ".join(child.cmdline())]
        if not workers:
            raise Skipped("it has no processes")
        with self._alone(*(worker.pid for worker in workers)):
            self._freeze(workers, step.for_s)
        return {"scheduler": name, "pids": [worker.pid for worker in workers], "for_s": step.for_s}

    def _freeze_database(self, step: Step) -> Any:
        with self._alone("database"):
            self._freeze(self._postgres.processes(), step.for_s)
        return {"for_s": step.for_s}

    def _freeze_host(self, step: Step) -> Any:
        name = _pick(self._workers(), step.pick, "no worker")
        with self._alone(name):
            self._freeze(self._fleet.processes(name), step.for_s)
        return {"worker": name, "for_s": step.for_s}

    def _restart_host(self, step: Step) -> Any:
        name = _pick(self._workers(), step.pick, "no worker")
        with self._alone(name):
            self._fleet.kill_worker(name)
            time.sleep(step.for_s)
            self._fleet.restart_worker(name)
        return {"worker": name, "for_s": step.for_s}

    def _workers(self) -> list[str]:
        return [] if self._fleet is None else self._fleet.names

    def _freeze(self, processes: list[psutil.Process], for_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            time.sleep(for_s)
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def _restart_component(self, step: Step) -> Any:
        name = self._component(step)
        with self._alone(name):
            self._airflow.kill(name)
            time.sleep(step.for_s)
            renamed = {}
            if step.kind == "rename_host":
                self._hosts += 1
                renamed = {"CHAOS_HOST": f"chaos-host-{self._hosts}"}
            self._airflow.launch(name, **renamed)
        return {"component": name, "for_s": step.for_s, **renamed}

    def _restart_database(self, step: Step) -> Any:
        with self._alone("database"):
            self._postgres.stop() if step.kind == "restart_database" else self._postgres.kill()
            time.sleep(step.for_s)
            self._postgres.start()
        return {"for_s": step.for_s}

    def _clear(self, step: Step) -> Any:
        id_ = self._pick_task(step, lambda task: True)
        self.cleared[id_] += 1  # before it happens: its new try must not count as a retry
        body = {
            "dry_run": False, "dag_run_id": self._run_id, "only_failed": False, "reset_dag_runs": True,
            "task_ids": [list(id_)],
        }  # fmt: skip
        self._call("POST", f"/dags/{DAG_ID}/clearTaskInstances", json=body)
        return {"task": id_}

    def _mark(self, step: Step) -> Any:
        id_ = self._pick_task(step, lambda task: task["state"] not in ENDS)
        self.marked.add(id_)
        path = f"/dags/{DAG_ID}/dagRuns/{self._run_id}/taskInstances/{id_[0]}/{id_[1]}"
        self._call("PATCH", path, json={"new_state": step.kind.removeprefix("mark_")})
        return {"task": id_}

    def _pick_task(self, step: Step, is_possible: Callable[[Any], bool]) -> TaskId:
        instances = self._call("GET", f"/dags/{DAG_ID}/dagRuns/{self._run_id}/taskInstances?limit=1000")[
            "task_instances"
        ]
        ids = sorted((task["task_id"], task["map_index"]) for task in instances if is_possible(task))
        return _pick([id_ for id_ in ids if id_[1] >= 0], step.pick, "no such task is left")

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        """Ask the API, again while it is away or has no database."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._airflow.api(method, path, **arguments)
            except (httpx.HTTPError, RuntimeError) as error:
                if time.monotonic() > end:
                    raise Skipped(f"the API does not answer: {str(error)[:200]}") from error
                time.sleep(1)

    def _user(self, pick: float, *, needs_device: bool) -> tuple[Any, psutil.Process]:
        """A task that runs, and its process; waits for one.

        :param needs_device: a task without a device that loses its own process is left to Airflow's retries
        """
        end = time.monotonic() + USER_S
        while not (users := self._users(needs_device=needs_device)) and time.monotonic() < end:
            time.sleep(0.2)
        line = _pick(users, pick, "no such task runs")
        return line, psutil.Process(line["pid"])

    def _users(self, *, needs_device: bool) -> list[Any]:
        """The journal's lines of the processes that run now."""
        lines = self._journal.lines()
        over = {(line["pid"], line["ticks"], line["lease"]) for line in lines if line["event"] == "end"}
        return [
            line
            for line in lines
            if line["event"] == "start"
            and (line["devices"] or not needs_device)
            and (line["pid"], line["ticks"], line["lease"]) not in over
            and self._witness.state_of(line) not in ("gone", "Z")
        ]

    def _component(self, step: Step) -> str:
        name = step.kind.removeprefix("kill_").removeprefix("freeze_").replace("_", "-")
        if name in ("scheduler", "rename-host"):
            return _pick(self._airflow.schedulers, step.pick, "no scheduler")
        return "api-server" if name == "api-server-away" else name

    @contextmanager
    def _alone(self, *targets: Any) -> Iterator[None]:
        """Let no second fault happen to these in the meantime.

        :raises Skipped: one happens to them already
        """
        with self._lock:
            busy = self._busy & set(targets)
            if busy:
                raise Skipped(f"another fault happens to {sorted(map(str, busy))}")
            self._busy |= set(targets)
        try:
            yield
        finally:
            with self._lock:
                self._busy -= set(targets)


def _pick(candidates: Any, pick: float, otherwise: str) -> Any:
    if not candidates:
        raise Skipped(otherwise)
    return candidates[int(pick * len(candidates))]


def _parent(process: psutil.Process) -> psutil.Process:
    """The process that looks after a task.

    :raises Skipped: it is gone
    """
    parent = process.parent()
    if parent is None or parent.pid == 1:
        raise Skipped("the task has no supervisor")
    return parent
