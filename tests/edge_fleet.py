"""Edge workers beside a local Airflow: each an edge worker and an agent, which speak to its API server alone."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from local_airflow import LocalAirflow

from hetero_airflow.engines.remote import worker_queue
from tests.worker_fleet import Fleet, own_lease_folder

PROCESSES = "4"
"""Tasks that an edge worker runs at once."""


class EdgeFleet(Fleet):
    """An Airflow and its edge workers, which know its address and no database."""

    engine = "edge"
    host: ClassVar[Mapping[str, str]] = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://nobody@127.0.0.1:1/none"
    }

    def launch_worker(self, name: str, *queues: str) -> None:
        """Start an edge worker that asks for the jobs of these queues beside its own."""
        arguments = ["edge", "worker", "--queues", ",".join([worker_queue(name), *queues]), "--edge-hostname", name]
        more = ["--concurrency", PROCESSES, "--pid", str(self.pid_file(name))]
        self.airflow.launch(self.component(name), *arguments, *more, **self.host)

    def is_ready(self, name: str) -> bool:
        """Whether the API server took the edge worker; one that was refused, as its forerunner's name, tries again."""
        self.airflow.revive()
        return self.pid_file(name).exists()


@contextlib.contextmanager
def running_edge_fleet(
    home: Path, dags: Path, database: str, workers: Mapping[str, str], settings: Mapping[str, str], schedulers: int = 1
) -> Iterator[EdgeFleet]:
    """An Airflow over edge workers of these names, with simulated devices."""
    all_settings = {
        "AIRFLOW__HETERO__ENGINE": "edge",
        "AIRFLOW__EDGE__API_ENABLED": "True",
        "AIRFLOW__EDGE__HEARTBEAT_INTERVAL": "2",
        "AIRFLOW__EDGE__JOB_POLL_INTERVAL": "1",
        "AIRFLOW__EDGE__API_RETRIES": "100",
        "AIRFLOW__EDGE__API_RETRY_WAIT_MAX": "2",
        **own_lease_folder(home),
        **settings,
    }
    with LocalAirflow(home, dags, settings=all_settings, database=database, schedulers=schedulers) as airflow:
        airflow.environment["AIRFLOW__EDGE__API_URL"] = f"{airflow.url}/edge_worker/v1/rpcapi"
        fleet = EdgeFleet(airflow)
        fleet.add_all(workers)
        yield fleet
