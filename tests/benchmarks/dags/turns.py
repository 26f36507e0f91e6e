"""Short tasks that take turns on one device. Each writes down when its body begins and ends."""

import os
import time
from pathlib import Path

from airflow.sdk import DAG, task

TASKS = 30


@task.device(device="gpu")
def turn(number):
    begun = time.time()
    time.sleep(0.2)
    Path(os.environ["BENCH_TURNS"], f"{number}").write_text(f"{begun} {time.time()}")


with DAG("turns", schedule=None, max_active_tasks=64):
    turn.expand(number=list(range(TASKS)))
