"""Shares: two tasks use one GPU at the same time, half of it each.

A share is cooperative: frameworks are told to keep to their part of the memory, but no hardware
barrier stops a task that takes more. Ask for a MIG instance (``mig-1g.10gb``) where you need one.

Where there is no GPU, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. What was not real says "simulated".
"""

from __future__ import annotations

import time

from airflow.sdk import dag, task

from hetero_airflow.runtime import current_lease


@task.device(device="gpu:0.5")
def use_half(name: str) -> str:
    lease = current_lease()
    print(f"{name} may use {lease.memory_bytes / 2**30:g} GiB of {', '.join(lease.ids)}")
    time.sleep(5)  # the work
    return str(lease)


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def shares() -> None:
    use_half.override(task_id="one_half")("one half")
    use_half.override(task_id="other_half")("the other half")


shares()
