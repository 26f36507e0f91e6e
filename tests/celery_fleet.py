"""Celery workers beside a local Airflow: each a Celery worker and an agent, with devices of its own."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from local_airflow import LocalAirflow

from hetero_airflow.agent.protocol import ENROLMENT_VARIABLE
from hetero_airflow.engines.queues import queue_of
from tests.redis_server import RedisServer, running_redis

PROCESSES = "4"
"""Tasks that a Celery worker runs at once."""


def celery_settings(redis: RedisServer, database: str) -> dict[str, str]:
    """What makes an Airflow run its tasks with Celery."""
    return {
        "AIRFLOW__HETERO__ENGINE": "celery",
        "AIRFLOW__CELERY__BROKER_URL": redis.url,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
    }


class Fleet:
    """An Airflow, its Redis and its workers."""

    def __init__(self, airflow: LocalAirflow, redis: RedisServer) -> None:
        self.airflow, self.redis = airflow, redis

    def enroll(self, name: str) -> str:
        """The secret that lets an agent speak for a worker."""
        told = self.airflow.run("hetero", "enroll", name).stdout
        found = re.search(rf"{ENROLMENT_VARIABLE}=(\S+)", told)
        assert found is not None, told
        return found[1]

    def add(self, name: str, simulated: str, *queues: str) -> None:
        """Start a Celery worker and its agent.

        :param queues: what the Celery worker listens to beside its own queue
        """
        listened = ",".join([queue_of(name), *queues])
        celery = ["celery", "worker", "--queues", listened, "--celery-hostname", f"{name}@%h", "--skip-serve-logs"]
        home = str(self.airflow.home)
        self.airflow.launch(f"celery-{name}", *celery, "--concurrency", PROCESSES, "--pid", f"{home}/{name}.pid")
        agent = ["hetero", "worker", "--url", self.airflow.url, "--name", name, "--engine", "celery"]
        secret = {ENROLMENT_VARIABLE: self.enroll(name), "HETERO_AIRFLOW_SIMULATED_DEVICES": simulated}
        self.airflow.launch(f"agent-{name}", *agent, **secret)

    def add_plain(self, name: str) -> None:
        """Start a Celery worker for tasks that ask for no device."""
        celery = ["celery", "worker", "--queues", "default", "--celery-hostname", f"{name}@%h", "--skip-serve-logs"]
        self.airflow.launch(f"celery-{name}", *celery, "--concurrency", "2", "--pid", f"{self.airflow.home}/{name}.pid")

    def process(self, name: str) -> psutil.Process:
        """The main process of a component."""
        return psutil.Process(self.airflow.pid(name))

    def processes(self, name: str) -> list[psutil.Process]:
        """All that runs on a worker: of Celery with its tasks, and of the agent."""
        mains = [self.process(f"celery-{name}"), self.process(f"agent-{name}")]
        return [process for main in mains for process in (main, *main.children(recursive=True))]

    def kill_worker(self, name: str) -> float:
        """``kill -9`` all that runs on a worker, as when its host loses power; when."""
        there = self.processes(name)
        at = time.time()
        for component in (f"agent-{name}", f"celery-{name}"):
            self.airflow.kill(component)
        for process in there:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return at

    def freeze_worker(self, name: str) -> list[psutil.Process]:
        """SIGSTOP to all that runs on a worker: it says nothing, hears nothing, and may come back."""
        there = self.processes(name)
        for process in there:
            process.suspend()
        return there

    def restart_worker(self, name: str) -> None:
        """Start what a worker runs again, where it does not run."""
        for component in (f"celery-{name}", f"agent-{name}"):
            with contextlib.suppress(KeyError):
                self.airflow.kill(component)
            (self.airflow.home / f"{name}.pid").unlink(missing_ok=True)
            self.airflow.launch(component)

    def states(self) -> dict[str, str]:
        """Worker → its state, as `airflow hetero workers` says."""
        told = json.loads(self.airflow.run("hetero", "workers", "--json").stdout)
        return {worker["id"]: worker["state"] for worker in told}

    def wait_for(self, *names: str) -> None:
        """Until the workers are online, and Celery's are ready."""

        def online() -> bool:
            logs = [(self.airflow.home / f"celery-{name}.log").read_text() for name in names]
            if not all(log.count("[config]") == log.count(" ready. ") > 0 for log in logs):
                return False
            states = self.states()
            return all(states.get(name) == "online" for name in names)

        self.airflow.wait_until(online, f"{', '.join(names)} to be online", 60, 1)


@contextlib.contextmanager
def running_fleet(
    home: Path, dags: Path, database: str, workers: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[Fleet]:
    """An Airflow over Celery with workers of these names and simulated devices."""
    with running_redis(home) as redis:
        told = {**celery_settings(redis, database), **settings}
        with LocalAirflow(home, dags, settings=told, database=database) as airflow:
            fleet = Fleet(airflow, redis)
            for name, simulated in workers.items():
                fleet.add(name, simulated)
            fleet.wait_for(*workers)
            yield fleet
