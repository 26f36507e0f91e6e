"""Mapped tasks: one request for all instances, or one for each.

Where there is no accelerator, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. What was not real says "simulated".
"""

from __future__ import annotations

from airflow.sdk import dag, task

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.runtime import current_lease


@task.device(device=["gpu", "cpu"])
def score(part: int) -> str:
    return f"part {part} on {current_lease()}"


def where() -> str:
    return str(current_lease())


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def mapped() -> None:
    # Decorated: four parts, as many at a time as there are devices.
    score.expand(part=[0, 1, 2, 3])

    # Operator: the same device for every instance.
    DevicePythonOperator.partial(task_id="add", device="gpu", python_callable=sum).expand(op_args=[[[1, 2]], [[3, 4]]])

    # Another device for each instance: over a literal list, since tasks are placed before they run.
    DevicePythonOperator.partial(task_id="compare", python_callable=where).expand(
        device=["nvidia/h100-80gb", "ascend/910b:2", "cpu"]
    )


mapped()
