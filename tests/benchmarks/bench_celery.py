"""What placing a device costs over Celery: queued → running, device tasks and plain ones in one run of one scheduler.

``make bench-celery``. Device tasks go through HeteroExecutor with the engine celery, plain ones through CeleryExecutor
beside it, to one and the same Celery worker over one Redis, on PostgreSQL. Rounds of five take turns, as in
``bench_overhead``.
"""

import sys
import tempfile
from pathlib import Path

from bench_overhead import HERE, RUNS, WARM_UP, moment, report
from local_airflow import LocalAirflow

from tests.celery_fleet import Fleet, celery_settings
from tests.postgres_server import running_postgres
from tests.redis_server import running_redis


def main():
    with (
        tempfile.TemporaryDirectory() as folder,
        running_postgres() as postgres,
        running_redis(Path(folder)) as redis,
    ):
        settings = {
            **celery_settings(redis, postgres.url),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor,hetero_airflow.executor.HeteroExecutor",
            "BENCH_EXECUTOR": "CeleryExecutor",
        }
        with LocalAirflow(Path(folder), HERE / "dags", settings=settings, database=postgres.url) as airflow:
            fleet = Fleet(airflow, redis)
            fleet.add("w1", "nvidia/h100-80gb:16", "default")
            fleet.wait_for("w1")
            print("run  kind    tasks  median s  p95 s   max s")
            for number in range(WARM_UP + RUNS):
                run_id = airflow.trigger("overhead")
                state = airflow.wait_for_run("overhead", run_id, 900)
                if state != "success":
                    sys.exit(f"the run ended as {state}")
                delays = {"device": [], "plain": []}
                for ti in airflow.tasks("overhead", run_id):
                    kind = ti["task_id"].partition("_")[0]
                    delays[kind].append((moment(ti["start_date"]) - moment(ti["queued_when"])).total_seconds())
                report("warm-up" if number < WARM_UP else str(number - WARM_UP + 1), delays)


if __name__ == "__main__":
    main()
