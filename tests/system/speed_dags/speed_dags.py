"""A task that is faster on the device model that is slower by its data sheet."""

import time
from pathlib import Path

from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.runtime import current_lease, progress

STEP_S = {"v100": 0.2, "k80": 0.05}


def train(until):
    """Train until the file exists, or for two seconds."""
    model = current_lease().model
    total = round((600 if until else 2) / STEP_S[model])
    for step in range(total):
        time.sleep(STEP_S[model])
        progress(step, total)
        if until and Path(until).exists():
            break
    return model


with DAG("unlike", schedule=None, max_active_runs=4, params={"until": ""}):
    DevicePythonOperator(
        task_id="train",
        python_callable=train,
        op_args=["{{ params.until }}"],
        device={"nvidia/v100", "nvidia/k80"},
    )
