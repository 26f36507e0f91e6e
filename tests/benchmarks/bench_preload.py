"""What preload gains: a DAG of eight small torch tasks with and without it, in turns. ``make bench-preload``."""

import statistics
import tempfile
from datetime import datetime
from pathlib import Path

from local_airflow import LocalAirflow

DAGS = Path(__file__).parents[1] / "system" / "preload_dags"
ROUNDS, RUNS = 2, 3


def seconds(preload: str) -> list[float]:
    """The durations of some runs of the DAG in one Airflow, after a first one."""
    settings = {"AIRFLOW__HETERO__PRELOAD": preload, "AIRFLOW__CORE__PARALLELISM": "2"}
    components = ("api-server", "scheduler", "dag-processor")
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), DAGS, settings=settings, components=components) as airflow,
    ):
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
    """Print the medians and their ratio."""
    plain: list[float] = []
    preloaded: list[float] = []
    for _ in range(ROUNDS):
        plain += seconds("")
        preloaded += seconds("torch")
    medians = statistics.median(preloaded), statistics.median(plain)
    print(f"eight tasks, first start to last end: {medians[0]:.2f} s preloaded, {medians[1]:.2f} s plain")
    print(f"ratio {medians[0] / medians[1]:.2f} (bar 0.45)")


if __name__ == "__main__":
    main()
