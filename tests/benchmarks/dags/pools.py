"""The jobs with what Airflow has: a pool for each GPU model, priority weights, and a GPU picked by hand."""

import os
import time

from airflow.sdk import DAG, task
from pools_jobs import GPUS, JOBS, train, visible_gpus

WEIGHTS = {"high": 100, "medium": 10, "low": 1}


def pick_gpus(model, count):
    """The first GPUs of the model that nvidia-smi shows without a process."""
    while True:
        busy = visible_gpus()
        free = [f"{model}-{number}" for number in range(GPUS[model]) if f"{model}-{number}" not in busy]
        if len(free) >= count:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(free[:count])
            return free[:count]
        time.sleep(1)


with DAG("pools", schedule=None, max_active_tasks=64):
    flexible = [job.number for job in JOBS if job.any_model]
    for job in JOBS:
        # a pool is one model, so somebody decides beforehand: every second job that may use an A100 does
        model = "a100" if job.number in flexible[::2] else "h100"

        @task(
            task_id=f"train_{job.number}",
            pool=model,
            pool_slots=job.gpus,
            priority_weight=WEIGHTS[job.priority],
            weight_rule="absolute",
            retries=1,
            retry_delay=1,
            executor="LocalExecutor",
        )
        def run(number, model):
            job = JOBS[number]
            train("pools", job, pick_gpus(model, job.gpus), range(job.steps))

        run(job.number, model)
