"""The jobs with hetero_airflow: each says what it needs."""

from airflow.sdk import DAG, task
from pools_jobs import JOBS, train

from hetero_airflow.runtime import checkpoint, current_lease

with DAG("leases", schedule=None, max_active_tasks=64):
    for job in JOBS:
        models = ["h100", "a100"] if job.any_model else ["h100"]

        @task.device(
            task_id=f"train_{job.number}",
            device={f"{model}:{job.gpus}" for model in models},
            priority=job.priority,
            retries=1,
            retry_delay=1,
        )
        def run(number):
            job = JOBS[number]
            train("leases", job, current_lease().ids, checkpoint.steps(job.steps, every=10, state={"done": 0}))

        run(job.number)
