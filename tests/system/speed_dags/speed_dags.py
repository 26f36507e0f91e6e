"""A task that is faster on the device model that is slower by its data sheet."""

import time

from airflow.sdk import DAG, Param

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.runtime import current_lease, progress

STEP_S = {"v100": 0.2, "k80": 0.05}


def train(seconds):
    model = current_lease().model
    total = round(float(seconds) / STEP_S[model])
    for step in range(total):
        time.sleep(STEP_S[model])
        progress(step, total)
    return model


with DAG("unlike", schedule=None, max_active_runs=4, params={"seconds": Param(2.0, type="number")}):
    DevicePythonOperator(
        task_id="train",
        python_callable=train,
        op_args=["{{ params.seconds }}"],
        device={"nvidia/v100", "nvidia/k80"},
    )
