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

from local_airflow import LocalAirflow

from tests.celery_fleet import running_fleet
from tests.fork_servers import fork_servers
from tests.postgres_server import running_postgres

DAGS = Path(__file__).parents[1] / "system" / "preload_dags"
RUNS = 5
"""Of each Airflow; there are two with preload and two without."""
SETTINGS = {"AIRFLOW__CORE__PARALLELISM": "8"}
"""All tasks are queued at once, and as many run as this host has cores. With fewer slots, Airflow's scheduler would
queue the next ones when it has slept for a second."""
MAX_RATIOS = {"local": 0.42, "celery": 0.60}


@contextmanager
def local(preload: str) -> Iterator[LocalAirflow]:
    """An Airflow, once its fork server is ready."""
    settings = {"AIRFLOW__HETERO__PRELOAD": preload, **SETTINGS}
    components = ("api-server", "scheduler", "dag-processor")
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), DAGS, settings=settings, components=components) as airflow,
    ):
        if preload:
            airflow.wait_until(lambda: fork_servers(airflow.pid("scheduler")), "the fork server to be ready")
        yield airflow


@contextmanager
def celery(preload: str) -> Iterator[LocalAirflow]:
    """An Airflow with one Celery worker."""
    settings = {"AIRFLOW__HETERO__PRELOAD": preload, **SETTINGS}
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
    parser.add_argument("engines", nargs="*", default=list(MAX_RATIOS))
    for engine in parser.parse_args().engines:
        running = {"local": local, "celery": celery}[engine]
        plain, preloaded = [], []
        for _ in range(2):
            plain += seconds(running, "")
            preloaded += seconds(running, "torch")
        medians = statistics.median(preloaded), statistics.median(plain)
        print(f"{engine}: eight tasks, first start to last end: {medians[0]:.2f} s preloaded, {medians[1]:.2f} s plain")
        print(f"  ratio {medians[0] / medians[1]:.2f} (limit {MAX_RATIOS[engine]})", flush=True)


if __name__ == "__main__":
    main()
