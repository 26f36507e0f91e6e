"""Mapped tasks: one request for all instances, or one request for each instance.

Without an accelerator, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. Simulated devices are marked "simulated".
"""

from airflow.sdk import dag

from hetero_airflow.operators import DevicePythonOperator, task
from hetero_airflow.runtime import current_lease


@task.device(device=["gpu", "cpu"])
def score(part: int) -> str:
    return f"part {part} on {current_lease()}"


def where() -> str:
    return str(current_lease())


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def mapped() -> None:
    # Decorator: four parts; as many run at a time as devices are free.
    score.expand(part=[0, 1, 2, 3])

    # Operator: the same request for every instance.
    DevicePythonOperator.partial(task_id="add", device="gpu", python_callable=sum).expand(op_args=[[[1, 2]], [[3, 4]]])

    # A request for each instance: the list must be literal, since a task is placed before it runs.
    DevicePythonOperator.partial(task_id="compare", python_callable=where).expand(
        device=["nvidia/h100-80gb", "ascend/910b:2", "cpu"]
    )


mapped()
