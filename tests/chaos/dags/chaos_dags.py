"""The DAGs that run during the faults: a training, a hundred small tasks, one that preempts, one that waits."""

import os
from datetime import timedelta

from airflow.sdk import DAG, task

from hetero_airflow.operators import DevicePythonOperator, TorchrunOperator
from hetero_airflow.sensors import CheckpointSensor

FRESH = 100


def use(number):
    """Hold a device for a moment, and write down when."""
    import time

    from chaos_training import note

    from hetero_airflow.runtime import current_lease

    lease = current_lease()
    start = time.time()
    time.sleep(0.05)
    journal = f"{os.environ['AIRFLOW_HOME']}/uses.jsonl"
    note(journal, {"number": number, "ids": list(lease.ids), "start": start, "end": time.time()})


PARAMS = {"journal": "", "steps": 40, "nap_s": 0.2, "every": 4, "seed": 0, "deaths": []}

EVERYTHING = "h100:20"
"""Takes all GPUs of the worker, so it and the other tasks wait for each other."""

for name, device, url in (
    ("files", "h100:2", None),
    ("everywhere", EVERYTHING, None),
    ("s3", "h100:2", os.environ.get("CHAOS_S3_URL")),
):
    with DAG(f"train_{name}", schedule=None, params=PARAMS):

        @task.device(
            device=device,
            priority="low",
            retries=2,
            retry_delay=timedelta(0),
            checkpoint={"url": url} if url else None,
        )
        def train(params=None):
            from chaos_training import train

            return train(**params)

        train()

with DAG("train_torchrun", schedule=None, params=PARAMS):
    TorchrunOperator(task_id="train", script="chaos_training.py", args=["{{ params | tojson }}"], device="h100:2")

with DAG("fresh", schedule=None):
    DevicePythonOperator.partial(
        task_id="use", python_callable=use, device={"gpu", "npu"}, max_active_tis_per_dag=10
    ).expand(op_args=[[number] for number in range(FRESH)])

with DAG("urgent", schedule=None):
    DevicePythonOperator(task_id="use", python_callable=use, device=EVERYTHING, priority="urgent", op_args=[-1])

with DAG("watch", schedule=None, params={"run_id": ""}):
    CheckpointSensor(
        task_id="wait", of_dag="train_files", of_task="train", run_id="{{ params.run_id }}", complete=True, timeout=600
    )
