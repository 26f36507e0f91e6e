"""Alternatives: a list is an order of preference; with a set, the policy chooses.

The task with the list takes the first device that fits now, so it runs on any machine. The task with the set needs one
of the two accelerators. Without one, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. Simulated devices are marked "simulated".
"""

from airflow.sdk import dag

from hetero_airflow.operators import task
from hetero_airflow.runtime import current_lease


@task.device(device=["nvidia/h100-80gb", "ascend/910b", "cpu:2", "cpu"])
def in_order() -> str:
    return f"the first device that fits: {current_lease()}"


@task.device(device={"nvidia/h100-80gb", "ascend/910b"})
def whichever_is_best() -> str:
    return f"the choice of the policy: {current_lease()}"


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def alternatives() -> None:
    in_order()
    whichever_is_best()


alternatives()
