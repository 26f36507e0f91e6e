"""Many device tasks that wait for few GPUs, and one for an NPU that is free."""

import os
import time

from airflow.sdk import DAG, task

WAITING = int(os.environ.get("BENCH_WAITING", "2000"))
TASKS = max(1, WAITING // 500)
SECONDS = 20.0


@task.device(device="gpu", retries=0)
def wait(number):
    time.sleep(SECONDS)


@task.device(device="npu", retries=0)
def start():
    return time.time()


with DAG("queue", schedule=None, max_active_tasks=WAITING):
    for index in range(TASKS):
        wait.override(task_id=f"wait_{index}").expand(number=list(range(WAITING // TASKS)))

with DAG("start", schedule=None):
    start()
