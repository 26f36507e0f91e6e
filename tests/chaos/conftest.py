"""One Airflow for all faults of a session. `make chaos` sets the environment variables that choose the faults."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from local_airflow import LocalAirflow

from tests.chaos.catalogue import FAULTS
from tests.chaos.scene import Scene
from tests.chaos.table import Table
from tests.checkpoints.fault_proxy import FaultProxy, fault_proxy
from tests.postgres_server import running_postgres
from tests.s3_server import running_s3
from tests.system.fleet_runs import with_example

HERE = Path(__file__).parent
ENGINE = os.environ.get("CHAOS_ENGINE") or "local"
BACKEND = os.environ.get("CHAOS_BACKEND") or "postgres"
SEEDS = [int(seed) for seed in (os.environ.get("CHAOS_SEEDS") or "0").split()]
REPLAY = os.environ.get("CHAOS_REPLAY")
NAMES = [] if REPLAY else os.environ.get("CHAOS_FAULTS", "").split() or [*FAULTS, "sequence"]
"""Faults of the catalogue, and ``sequence`` for random sequences."""

SETTINGS = {
    "AIRFLOW__HETERO__POLICY": "priority",
    "AIRFLOW__HETERO__MIN_RUN_S": "1",
    "AIRFLOW__HETERO__GRACE_S": "6",
    "AIRFLOW__HETERO__HANG_TIMEOUT_S": "15",
    "AIRFLOW__HETERO__CHECKPOINT_CONN_ID": "chaos_s3",
    # a session with many faults needs more retries than a task in production
    "AIRFLOW__HETERO__RECOVERY_RULES": '{"lost_worker": {"times": null}}',
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "AIRFLOW__CORE__PARALLELISM": "24",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "100",
    "OMP_NUM_THREADS": "1",  # on a busy host, the threads of several trainings wait for each other
}
S3 = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_PROXY": "127.0.0.1",
}
"""Credentials for boto3 in this process. Tasks get the key from an Airflow connection."""
KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
SIMULATED = "nvidia/h100-80gb:20,ascend/910b:8"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "chaos_airflow" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.chaos)


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """The table of the session, printed at the end."""
    path = os.environ.get("CHAOS_TABLE")
    table = Table(Path(path) if path else None)
    yield table
    table.print()


@pytest.fixture(scope="session")
def s3() -> Iterator[FaultProxy]:
    """Forwards requests to moto's HTTP server, except for those that a fault lets fail."""
    for name in ("werkzeug", "botocore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with running_s3() as url, fault_proxy(url) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in S3.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=proxy.url)
        client.create_bucket(Bucket="chaos")
        client.close()
        yield proxy


@contextlib.contextmanager
def service_manager(airflow: LocalAirflow) -> Iterator[None]:
    """Restarts components of Airflow that end by themselves, as some do when their database is away."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(1):
            airflow.revive()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(scope="session")
def chaos_airflow(tmp_path_factory: pytest.TempPathFactory, s3: FaultProxy) -> Iterator[Scene]:
    """Airflow on the chosen database, before the first fault."""
    home = tmp_path_factory.mktemp("chaos")
    connection = {
        "conn_type": "aws",
        "login": S3["AWS_ACCESS_KEY_ID"],
        "password": S3["AWS_SECRET_ACCESS_KEY"],
        "extra": {"endpoint_url": s3.url, "region_name": S3["AWS_DEFAULT_REGION"]},
    }
    settings = {**SETTINGS, "AIRFLOW_CONN_CHAOS_S3": json.dumps(connection), "CHAOS_S3_URL": "s3://chaos/checkpoints"}
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_postgres()) if BACKEND == "postgres" else None
        database = postgres.url if postgres else f"sqlite:///{home}/airflow.db"
        dags = with_example(home / "dags", "train_resumable.py", beside=HERE / "dags")
        airflow = LocalAirflow(home, dags, simulated=SIMULATED, settings=settings, database=database)
        for name in KEY:
            del airflow.environment[name]
        stack.enter_context(airflow)
        stack.enter_context(service_manager(airflow))
        scene = Scene(airflow, BACKEND, 0, "none", database, postgres=postgres)
        s3.fault = scene.fault_of
        for _ in range(2):  # the first one warms up
            training = scene.train(steps=1)
            began = time.time()
            training.wait_for_step(0)
            scene.plain_start_s = training.done()[0]["at"] - began
            training.finish()
        yield scene
