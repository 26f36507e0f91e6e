"""Alternatives: a list is an order of preference, a set leaves the choice to the policy.

The first of the list that fits now is taken, so this runs anywhere. The set needs one of the two
accelerators; where there is none, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. What was not real says "simulated".
"""

from __future__ import annotations

from airflow.sdk import dag, task

from hetero_airflow.runtime import current_lease


@task.device(device=["nvidia/h100-80gb", "ascend/910b", "cpu:2", "cpu"])
def in_order() -> str:
    return f"the first that fitted: {current_lease()}"


@task.device(device={"nvidia/h100-80gb", "ascend/910b"})
def whichever_is_best() -> str:
    return f"what the policy chose: {current_lease()}"


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def alternatives() -> None:
    in_order()
    whichever_is_best()


alternatives()
