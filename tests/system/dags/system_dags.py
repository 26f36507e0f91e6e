"""DAGs of the system tests; each task tells when it ran and on what."""

import os
import time
from datetime import timedelta

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, Param, task

from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator
from hetero_airflow.runtime import current_lease

AT_PARSE = os.environ.get("CUDA_VISIBLE_DEVICES")
"""What a framework that is imported at the top of the file would see."""


def tell(started_at):
    lease = current_lease()
    return {
        "start": started_at,
        "end": time.time(),
        "ids": list(lease.ids),
        "milli": round(1000 * (lease.share or 1)),
        "vendor": lease.vendor,
        "kind": lease.kind,
        "cores": list(lease.cores),
        "affinity": sorted(os.sched_getaffinity(0)),
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "at_parse": AT_PARSE,
        "alternative": lease.alternative,
        "token": lease.token,
        "simulated": lease.simulated,
    }


def use_device(seconds=1.0):
    started_at = time.time()
    time.sleep(seconds)
    return tell(started_at)


class DeferringOperator(DevicePythonOperator):
    """Waits without a device, for longer than a process may differ from its start, then uses one for long."""

    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=8)), method_name="resume")

    def resume(self, context, event=None):
        return use_device(12)


with DAG("exclusive", schedule=None):
    DevicePythonOperator.partial(task_id="work", python_callable=use_device, device="gpu").expand(op_args=[[1.0]] * 6)

with DAG("features", schedule=None, params={"device": Param("ascend/910b", type="string")}):

    @task
    def plain():
        return "plain"

    @task(on_success_callback=lambda context: open(f"{os.environ['AIRFLOW_HOME']}/called_back", "w").close())
    def with_callback():
        return "called"

    plain()
    with_callback()
    options = {"python_callable": use_device, "op_args": [0.2]}
    DevicePythonOperator(task_id="in_order", device=["fpga", "npu", "gpu"], wait_timeout="5m", **options)
    DevicePythonOperator(task_id="any_of", device={"gpu", "npu"}, **options)
    DevicePythonOperator(task_id="half", device="gpu:0.5", **options)
    DevicePythonOperator(task_id="cores", device="cpu:1", quota={"host_memory": "100MiB"}, **options)
    DevicePythonOperator(task_id="templated", device="{{ params.device }}", **options)
    DeferringOperator(task_id="deferring", device="gpu", python_callable=use_device)
    DeviceBashOperator.partial(task_id="bash").expand(
        device=["gpu", "cpu:1"], bash_command=['echo "sees $CUDA_VISIBLE_DEVICES"']
    )

    @task.device(device="gpu")
    def decorated(x):
        return {**use_device(0.1), "x": x}

    decorated.expand(x=[1, 2])

with DAG("impossible", schedule=None):
    DevicePythonOperator(task_id="refused", device="nvidia/b200:8", python_callable=use_device)
    DevicePythonOperator(task_id="bad_template", device="{{ params.nowhere }}", python_callable=use_device)

with DAG("long", schedule=None, params={"seconds": 20, "device": "gpu:2"}):

    @task.device(device="{{ params.device }}", retries=1, retry_delay=timedelta(seconds=0))
    def long(params=None, ti=None):
        marker = f"{os.environ['AIRFLOW_HOME']}/{ti.run_id.replace(':', '')}.{ti.try_number}.pid"
        with open(marker, "w") as file:
            file.write(str(os.getpid()))
        started_at = time.time()
        while time.time() < started_at + float(params["seconds"]):
            sum(range(1000))
        return tell(started_at)

    long()

with DAG("either", schedule=None):
    DevicePythonOperator(task_id="either", device={"h100", "910b"}, python_callable=use_device, op_args=[0.1])

with DAG("impatient", schedule=None):
    DevicePythonOperator(task_id="impatient", device="gpu", wait_timeout=2, python_callable=use_device)
