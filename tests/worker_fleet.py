"""Workers beside a local Airflow: each a worker of the engine and an agent, with devices of its own."""

import contextlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psutil
from local_airflow import LocalAirflow
from sqlalchemy import NullPool, create_engine, select

from hetero_airflow.agent.protocol import ENROLMENT_VARIABLE
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables


def own_lease_folder(home: Path) -> dict[str, str]:
    """Environment by which the workers of two fleets on this host do not see each other's lease files."""
    return {"TMPDIR": str(home)}


class Fleet(ABC):
    """An Airflow and its workers."""

    engine: ClassVar[str]
    host: ClassVar[Mapping[str, str]] = {}
    """Settings that differ on the workers' hosts."""

    def __init__(self, airflow: LocalAirflow) -> None:
        self.airflow = airflow
        self.names: list[str] = []
        """Of the workers with an agent."""

    @abstractmethod
    def launch_worker(self, name: str, *queues: str) -> None:
        """Start the engine's worker, which takes tasks from these queues beside its own."""

    @abstractmethod
    def is_ready(self, name: str) -> bool:
        """Whether the engine's worker takes tasks."""

    def component(self, name: str) -> str:
        """What the engine's worker is called among Airflow's components."""
        return f"{self.engine}-{name}"

    def pid_file(self, name: str) -> Path:
        """Where the engine's worker writes its process id."""
        return self.airflow.home / f"{name}.pid"

    def log(self, name: str) -> str:
        """What the engine's worker has said."""
        return (self.airflow.home / f"{self.component(name)}.log").read_text()

    def enroll(self, name: str) -> str:
        """The secret that lets an agent speak for a worker."""
        output = self.airflow.run("hetero", "enroll", name).stdout
        match = re.search(rf"{ENROLMENT_VARIABLE}=(\S+)", output)
        assert match is not None, output
        return match[1]

    def add(self, name: str, simulated: str, *queues: str) -> None:
        """Start a worker and its agent.

        :param queues: what the worker listens to beside its own queue
        """
        self.names.append(name)
        self.launch_worker(name, *queues)
        agent = ["hetero", "worker", "--url", self.airflow.url, "--name", name, "--engine", self.engine]
        secret = {ENROLMENT_VARIABLE: self.enroll(name), "HETERO_AIRFLOW_SIMULATED_DEVICES": simulated}
        self.airflow.launch(f"agent-{name}", *agent, **self.host, **secret)

    def add_all(self, workers: Mapping[str, str]) -> None:
        """Start workers, given as name and simulated devices, and wait for them."""
        for name, simulated in workers.items():
            self.add(name, simulated)
        self.wait_for(*workers)

    def process(self, name: str) -> psutil.Process:
        """The main process of a component."""
        return psutil.Process(self.airflow.pid(name))

    def processes(self, name: str) -> list[psutil.Process]:
        """All that runs on a worker: of the engine with its tasks, and of the agent."""
        mains = [self.process(self.component(name)), self.process(f"agent-{name}")]
        return [process for main in mains for process in (main, *main.children(recursive=True))]

    def kill_worker(self, name: str) -> float:
        """``kill -9`` all that runs on a worker, as when its host loses power; when."""
        there = self.processes(name)
        at = time.time()
        for component in (f"agent-{name}", self.component(name)):
            self.airflow.kill(component)
        for process in there:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return at

    def freeze_worker(self, name: str) -> list[psutil.Process]:
        """SIGSTOP to all processes of a worker. They may go on later."""
        there = self.processes(name)
        for process in there:
            process.suspend()
        return there

    def restart_worker(self, name: str) -> None:
        """Start what a worker runs again, where it does not run."""
        self.pid_file(name).unlink(missing_ok=True)
        for component in (self.component(name), f"agent-{name}"):
            with contextlib.suppress(KeyError):
                self.airflow.kill(component)
            self.airflow.launch(component)

    def states(self) -> dict[str, WorkerState]:
        """Worker → its state in the store."""
        return {worker.id: worker.state for worker in self.airflow.store().snapshot().workers}

    def wait_until_lost(self, name: str) -> float:
        """When a scheduler has noted that the worker is lost; seconds of Unix time."""
        engine = create_engine(self.airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
        query = select(tables.worker.c.state).where(tables.worker.c.id == name)

        def is_lost() -> bool:
            with engine.connect() as connection:
                return connection.execute(query).scalar_one() == WorkerState.LOST

        self.airflow.wait_until(is_lost, f"{name} to be found lost", every_s=0.2)
        return time.time()

    def wait_for(self, *names: str) -> None:
        """Until the workers are online, and take tasks."""

        def online() -> bool:
            if not all(self.is_ready(name) for name in names):
                return False
            states = self.states()
            return all(states.get(name) is WorkerState.ONLINE for name in names)

        self.airflow.wait_until(online, f"{', '.join(names)} to be online")
