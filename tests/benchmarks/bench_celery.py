"""What placing a device costs over Celery: queued → running, device tasks and plain ones in one run of one scheduler.

``make bench-celery``. Device tasks go through HeteroExecutor with the engine celery, plain ones through CeleryExecutor
beside it, to one and the same Celery worker over one Redis, on PostgreSQL.
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from local_airflow import LocalAirflow
from queueing_delays import DAGS, print_delays

from tests.celery_fleet import CeleryFleet, celery_settings
from tests.postgres_server import running_postgres
from tests.redis_server import running_redis

PLAIN = "CeleryExecutor"


@contextmanager
def boot(executors):
    with (
        tempfile.TemporaryDirectory() as folder,
        running_postgres() as postgres,
        running_redis(Path(folder)) as redis,
    ):
        settings = {
            **celery_settings(redis, postgres.url),
            "AIRFLOW__CORE__EXECUTOR": executors,
            "BENCH_EXECUTOR": PLAIN,
        }
        with LocalAirflow(Path(folder), DAGS, settings=settings, database=postgres.url) as airflow:
            fleet = CeleryFleet(airflow, redis)
            fleet.add("w1", "nvidia/h100-80gb:16", "default")
            fleet.wait_for("w1")
            yield airflow


if __name__ == "__main__":
    print_delays(boot, PLAIN)
