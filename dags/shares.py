"""Shares: two tasks use one GPU at the same time, each with half of it.

A share is cooperative: frameworks are configured to use only their part of the memory, but no hardware limit stops a
task that uses more. If you need a hardware limit, request a MIG instance (``mig-1g.10gb``).

Without a GPU, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. Simulated devices are marked "simulated".
"""

import time

from airflow.sdk import dag

from hetero_airflow.operators import task
from hetero_airflow.runtime import current_lease


@task.device(device="gpu:0.5")
def use_half(name: str) -> str:
    lease = current_lease()
    size = "half" if lease.memory_bytes is None else f"{lease.memory_bytes / 2**30:g} GiB"
    print(f"{name} can use {size} of {', '.join(lease.ids)}")
    time.sleep(5)  # the work
    return str(lease)


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def shares() -> None:
    use_half.override(task_id="one_half")("one half")
    use_half.override(task_id="other_half")("the other half")


shares()
