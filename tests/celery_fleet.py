"""Celery workers beside a local Airflow: each a Celery worker and an agent, with devices of its own."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from local_airflow import LocalAirflow

from hetero_airflow.engines.remote import worker_queue
from tests.redis_server import RedisServer, running_redis
from tests.worker_fleet import Fleet, own_lease_folder

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


class CeleryFleet(Fleet):
    """An Airflow, its Redis and its Celery workers."""

    engine = "celery"

    def __init__(self, airflow: LocalAirflow, redis: RedisServer) -> None:
        super().__init__(airflow)
        self.redis = redis

    def launch_worker(self, name: str, *queues: str) -> None:
        """Start a Celery worker that listens to these queues beside its own."""
        self._launch(name, worker_queue(name), *queues)

    def add_plain(self, name: str) -> None:
        """Start a Celery worker for tasks that ask for no device."""
        self._launch(name, "default")

    def is_ready(self, name: str) -> bool:
        """Whether the Celery worker takes tasks, as often as it was started."""
        log = self.log(name)
        return log.count("[config]") == log.count(" ready. ") > 0

    def _launch(self, name: str, *queues: str) -> None:
        listened = ["celery", "worker", "--queues", ",".join(queues), "--celery-hostname", f"{name}@%h"]
        more = ["--skip-serve-logs", "--concurrency", PROCESSES, "--pid", str(self.pid_file(name))]
        self.airflow.launch(self.component(name), *listened, *more)


@contextlib.contextmanager
def running_fleet(
    home: Path, dags: Path, database: str, workers: Mapping[str, str], settings: Mapping[str, str], schedulers: int = 1
) -> Iterator[CeleryFleet]:
    """An Airflow over Celery with workers of these names and simulated devices."""
    with running_redis(home) as redis:
        all_settings = {**celery_settings(redis, database), **own_lease_folder(home), **settings}
        with LocalAirflow(home, dags, settings=all_settings, database=database, schedulers=schedulers) as airflow:
            fleet = CeleryFleet(airflow, redis)
            fleet.add_all(workers)
            yield fleet
