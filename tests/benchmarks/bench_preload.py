"""What preload gains: a DAG of eight small torch tasks with and without it, in turns. ``make bench-preload``.

With the engine local, and with a Celery worker over a real Redis and PostgreSQL.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psutil
from local_airflow import LocalAirflow

from tests.celery_fleet import running_fleet
from tests.postgres_server import running_postgres

DAGS = Path(__file__).parents[1] / "system" / "preload_dags"
RUNS = 5
"""Of each Airflow; there are two with preload and two without."""
BARS = {"local": 0.42, "celery": 0.60}


@contextmanager
def local(preload: str) -> Iterator[LocalAirflow]:
    """An Airflow that runs two tasks at once, once its fork server is ready."""
    settings = {"AIRFLOW__HETERO__PRELOAD": preload, "AIRFLOW__CORE__PARALLELISM": "2"}
    components = ("api-server", "scheduler", "dag-processor")
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), DAGS, settings=settings, components=components) as airflow,
    ):

        def is_ready() -> bool:
            children = psutil.Process(airflow.pid("scheduler")).children()
            servers = [child for child in children if "multiprocessing.forkserver" in " ".join(child.cmdline())]
            return not preload or any(server.children() for server in servers)

        airflow.wait_until(is_ready, "the fork server to be ready")
        yield airflow


@contextmanager
def celery(preload: str) -> Iterator[LocalAirflow]:
    """An Airflow with one Celery worker that runs two tasks at once."""
    settings = {"AIRFLOW__HETERO__PRELOAD": preload, "AIRFLOW__CORE__PARALLELISM": "2"}
    with (
        tempfile.TemporaryDirectory() as home,
        running_postgres() as postgres,
        running_fleet(Path(home), DAGS, postgres.url, {"w1": ""}, settings) as fleet,
    ):
        yield fleet.airflow


def seconds(running: Callable[[str], "contextmanager[LocalAirflow]"], preload: str) -> list[float]:
    """The durations of some runs of the DAG in one Airflow, after a first one."""
    with running(preload) as airflow:
        return [_run_s(airflow) for _ in range(RUNS + 1)][1:]


def _run_s(airflow: LocalAirflow) -> float:
    run_id = airflow.trigger("eight")
    state = airflow.wait_for_run("eight", run_id)
    assert state == "success", state
    times = [
        (datetime.fromisoformat(task["start_date"]), datetime.fromisoformat(task["end_date"]))
        for task in airflow.tasks("eight", run_id)
    ]
    return (max(end for _, end in times) - min(start for start, _ in times)).total_seconds()


def main() -> None:
    """Print the medians and their ratio, for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=list(BARS))
    for engine in parser.parse_args().engines:
        running = {"local": local, "celery": celery}[engine]
        plain, preloaded = [], []
        for _ in range(2):
            plain += seconds(running, "")
            preloaded += seconds(running, "torch")
        medians = statistics.median(preloaded), statistics.median(plain)
        print(f"{engine}: eight tasks, first start to last end: {medians[0]:.2f} s preloaded, {medians[1]:.2f} s plain")
        print(f"  ratio {medians[0] / medians[1]:.2f} (bar {BARS[engine]})", flush=True)


if __name__ == "__main__":
    main()
