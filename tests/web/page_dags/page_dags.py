"""DAGs that the tests of the page look at. Their tasks hold devices until a file appears."""

import os
import time
from pathlib import Path

from airflow.sdk import dag, task

GO = Path(os.environ.get("PAGE_GO", "/nonexistent"))


def wait_for_go():
    while not GO.exists():
        time.sleep(0.2)


@dag(schedule=None, max_active_runs=4)
def train_models():
    @task.device(device="a100", quota={"memory": "40GiB"})
    def fit(number: int) -> int:
        wait_for_go()
        return number

    @task.device(device=["h100", "a100:2"], priority="high")
    def evaluate() -> None:
        wait_for_go()

    @task
    def report() -> str:
        return "no device"

    fit.expand(number=[1, 2, 3, 4])
    evaluate()
    report()


train_models()
