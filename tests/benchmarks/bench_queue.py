"""What 2,000 waiting device tasks cost one scheduler: its heartbeat's age, and the start of a task for a free device.

``make bench-queue DATABASE=sqlite WAITING=2000``. Two simulated GPUs serve the queue, each task takes 20 s. A simulated
NPU is free: once all tasks are queued, one task after the other asks for it. "Queueing" is the time while Airflow
queues the 2,000; "empty" is the same Airflow before that.
"""

import argparse
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from local_airflow import LocalAirflow
from queueing_delays import DAGS, OURS, queued_s
from sqlalchemy import NullPool, create_engine, text

from tests.postgres_server import running_postgres

SETTINGS = {
    # in one loop Airflow queues at most so many tasks as both say; LocalExecutor starts PARALLELISM processes
    "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "512",
    "AIRFLOW__CORE__PARALLELISM": "32",
    "BENCH_EXECUTOR": OURS,  # of another DAG in the folder
}
STARTS = 6


class Watch:
    """Reads the age of the scheduler's heartbeat four times a second, past the API server."""

    def __init__(self, airflow):
        self.engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)

    def query(self, statement):
        with self.engine.connect() as connection:
            return connection.execute(text(statement)).scalar()

    def age_s(self):
        beat = self.query("SELECT max(latest_heartbeat) FROM job WHERE job_type = 'SchedulerJob'")
        beat = datetime.fromisoformat(beat) if isinstance(beat, str) else beat
        beat = beat if beat.tzinfo else beat.replace(tzinfo=UTC)
        return (datetime.now(UTC) - beat).total_seconds()

    def tasks_in(self, *states):
        names = ", ".join(f"'{state}'" for state in states)
        return self.query(f"SELECT count(*) FROM task_instance WHERE dag_id = 'queue' AND state IN ({names})")

    @contextmanager
    def phase(self, name):
        is_over, ages = threading.Event(), []

        def read():
            while not is_over.wait(0.25):
                ages.append(self.age_s())

        begin = time.monotonic()
        with ThreadPoolExecutor() as threads:
            reading = threads.submit(read)
            try:
                yield
            finally:
                is_over.set()
        reading.result()
        print(
            f"{name:9} {time.monotonic() - begin:6.1f} s: heartbeat age median {statistics.median(ages):5.2f} s, "
            f"oldest {max(ages):5.2f} s",
            flush=True,
        )


def starts(airflow, name, number):
    """Seconds from the trigger, and from queued, until a task for the free NPU runs."""
    triggered, queued = [], []
    for _ in range(number):
        begin = time.time()
        run_id = airflow.trigger("start")
        airflow.wait_for_run("start", run_id, 300)
        (ti,) = airflow.tasks("start", run_id)
        triggered.append(airflow.xcom("start", run_id, "start") - begin)
        queued.append(queued_s(ti))
    for since, values in (("its trigger", triggered), ("queued", queued)):
        figures = f"median {statistics.median(values):4.1f} s, longest {max(values):4.1f} s"
        print(f"{name:9} {number} tasks start on a free device: from {since:11} {figures}", flush=True)


def measure(airflow, waiting):
    watch = Watch(airflow)
    starts(airflow, "warm-up", 1)
    with watch.phase("empty"):
        starts(airflow, "empty", 3)
    with watch.phase("queueing"):
        airflow.trigger("queue")
        airflow.wait_until(
            lambda: watch.tasks_in("queued", "running", "success") == waiting, "all tasks to be queued", 600, 1
        )
    with watch.phase("waiting"):
        starts(airflow, "waiting", STARTS)
        time.sleep(20)
    print(f"{watch.tasks_in('queued')} tasks are still queued", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", nargs="?", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("waiting", nargs="?", type=int, default=2000)
    parser.add_argument("--home", help="keep Airflow's folder here")
    options = parser.parse_args()
    with ExitStack() as stack:
        home = options.home or stack.enter_context(tempfile.TemporaryDirectory())
        database = stack.enter_context(running_postgres()).url if options.database == "postgresql" else None
        simulated = "nvidia/h100-80gb:2,ascend/910b:1"
        settings = {**SETTINGS, "BENCH_WAITING": str(options.waiting)}
        airflow = LocalAirflow(Path(home), DAGS, database=database, simulated=simulated, settings=settings)
        measure(stack.enter_context(airflow), options.waiting)


if __name__ == "__main__":
    main()
