"""Rounds of equal tasks that do nothing: some ask for a device, some do not."""

import os

from airflow.sdk import DAG, chain, task

ROUNDS, TASKS_A_ROUND = 10, 5
PLAIN = os.environ.get("BENCH_EXECUTOR", "LocalExecutor")
"""What runs the tasks that ask for no device."""


@task.device(device="gpu", trigger_rule="all_done")
def with_device(number):
    return number


@task(executor=PLAIN, trigger_rule="all_done")
def plain(number):
    return number


with DAG("overhead", schedule=None, max_active_tasks=64):
    rounds = []
    for number in range(ROUNDS):
        for name, operator in (("device", with_device), ("plain", plain)):
            task_id = f"{name}_{number}"
            rounds.append(operator.override(task_id=task_id).expand(number=list(range(TASKS_A_ROUND))))
    chain(*rounds)
