"""A request with a template: a parameter chooses the device when the DAG is triggered.

Templates are rendered before the task is placed. They can use params, dag_run, run_id, logical_date and ds.

Without an accelerator, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. Simulated devices are marked "simulated".
"""

from airflow.sdk import Param, dag

from hetero_airflow.operators import task
from hetero_airflow.runtime import current_lease


@task.device(device="{{ params.device }}", priority="{{ params.priority }}")
def run_there() -> str:
    return str(current_lease())


@dag(
    schedule=None,
    params={
        "device": Param("cpu", type="string", examples=["cpu", "gpu", "nvidia/h100-80gb:2", "ascend/910b"]),
        "priority": Param("medium", enum=["urgent", "high", "medium", "low"]),
    },
    tags=["hetero_airflow", "example"],
    doc_md=__doc__,
)
def templated() -> None:
    run_there()


templated()
