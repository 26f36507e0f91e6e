"""A shell command on a device: the vendors' software sees only the leased device.

On a CPU, the variables of all accelerators are empty. To try it without an accelerator, start Airflow with
``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:2,ascend/910b:2"``. Simulated devices are marked "simulated".
"""

from airflow.sdk import dag

from hetero_airflow.operators import DeviceBashOperator


@dag(schedule=None, tags=["hetero_airflow", "example"], doc_md=__doc__)
def bash_on_device() -> None:
    DeviceBashOperator(
        task_id="say_where",
        device=["gpu", "cpu"],
        bash_command="""
            echo "the lease: $HETERO_AIRFLOW_LEASE"
            echo "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES', OMP_NUM_THREADS is '$OMP_NUM_THREADS'"
            python -c 'from hetero_airflow.runtime import current_lease; print(current_lease())'
        """,
    )


bash_on_device()
