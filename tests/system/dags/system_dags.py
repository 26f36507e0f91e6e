"""DAGs of the system tests. Each task returns when and on which devices it ran."""

import os
import threading
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, Param, task

from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator, TorchrunOperator
from hetero_airflow.runtime import current_lease
from hetero_airflow.sensors import CheckpointPublished, CheckpointSensor, DeviceAvailableSensor

AT_PARSE = os.environ.get("CUDA_VISIBLE_DEVICES")
"""The devices that a framework sees if the DAG file imports it at the top."""


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
    """Waits without a device, for longer than the tolerance of process start times. Then uses a device for long."""

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
    DevicePythonOperator(task_id="in_order", device=["nvidia/b200", "npu", "gpu"], wait_timeout="5m", **options)
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
    DevicePythonOperator.partial(task_id="kinds", **options).expand(device=["gpu", "npu", "tpu", "fpga", "cpu"])

with DAG("impossible", schedule=None):
    DevicePythonOperator(task_id="refused", device="nvidia/b200:8", python_callable=use_device)
    DevicePythonOperator(task_id="bad_template", device="{{ params.nowhere }}", python_callable=use_device)


def is_over(params, passed_s):
    """Whether the task has run for long enough, or the file exists that it waits for."""
    if params["until"]:
        return os.path.exists(params["until"])
    return passed_s >= float(params["seconds"])


with DAG("long", schedule=None, params={"seconds": 20, "until": "", "device": "gpu:2"}):

    @task.device(device="{{ params.device }}", retries=1, retry_delay=timedelta(seconds=0))
    def long(params=None, ti=None):
        marker = f"{os.environ['AIRFLOW_HOME']}/{ti.run_id.replace(':', '')}.{ti.try_number}.pid"
        with open(marker, "w") as file:
            file.write(str(os.getpid()))
        started_at, cpu_s = time.time(), time.process_time()
        while not is_over(params, passed_s := time.time() - started_at):
            while time.process_time() - cpu_s < passed_s / 5:  # a task that does not compute counts as hung
                sum(range(1000))
            time.sleep(0.05)
        return tell(started_at)

    long()


class Count:
    """Stands for a training: the state grows step by step, and shows whether a step was done twice."""

    def __init__(self):
        self.steps = []

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = list(state["steps"])


def count(params, dag_run):
    from hetero_airflow.runtime import checkpoint

    state, first = Count(), None
    hurry = f"{os.environ['AIRFLOW_HOME']}/{dag_run.run_id.replace(':', '')}.hurry"
    for step in checkpoint.steps(int(params["steps"]), every=5, state={"count": state}):
        first = step if first is None else first
        time.sleep(0 if os.path.exists(hurry) else float(params["nap"]))
        state.steps.append(step)
    return {"first": first, "is_whole": state.steps == list(range(int(params["steps"]))), **tell(time.time())}


LENGTH = {"steps": 40, "nap": 0.2}

with DAG("saving", schedule=None, params={**LENGTH, "device": "h100"}):

    @task.device(device="{{ params.device }}", priority="low", retries=0)
    def saving(params=None, dag_run=None):
        return count(params, dag_run)

    saving()


def wait_for_itself():
    lock = threading.Lock()
    with lock:
        lock.acquire()


with DAG("deadlocking", schedule=None):

    @task.device(device="npu", retries=0)
    def deadlocking(dag_run=None):
        from hetero_airflow.runtime import checkpoint

        marker = f"{os.environ['AIRFLOW_HOME']}/{dag_run.run_id.replace(':', '')}.deadlocked"
        state, first = Count(), None
        for step in checkpoint.steps(10, every=1, state={"count": state}):
            first = step if first is None else first
            if step == 5 and not os.path.exists(marker):
                open(marker, "w").close()
                wait_for_itself()
            state.steps.append(step)
        return {"first": first, "is_whole": state.steps == list(range(10))}

    deadlocking()

with DAG("urgent", schedule=None):
    DevicePythonOperator(
        task_id="urgent", device="h100:2", priority="urgent", python_callable=use_device, op_args=[1.0]
    )

with DAG("resuming", schedule=None, params=LENGTH):

    @task.device(device="gpu", checkpoint={"on_clear": "resume"})
    def resuming(params=None, dag_run=None):
        return count(params, dag_run)

    resuming()

with DAG("reading", schedule=None, params={"folder": ""}):

    @task.device(device="gpu")
    def reading(params=None):
        from hetero_airflow.runtime import data

        tree = data.cached_tree(params["folder"])
        return {path.name: [str(path.resolve()), path.read_text()] for path in sorted(tree.iterdir())}

    @task.device(device="gpu", outlets=[Asset("az://models/team-a/data/c.txt")])
    def publishing(outlets=None):
        from hetero_airflow.runtime import data

        Path("c.txt").write_text("c.txt")
        data.publish("c.txt", outlets[0].uri)

    publishing() >> reading() >> reading.override(task_id="again")()

with DAG("waiting", schedule=None, params=LENGTH):

    @task.device(device="gpu")
    def train(params=None, dag_run=None):
        return count(params, dag_run)

    train()
    CheckpointSensor(task_id="halfway", of_task="train", step=19, timeout=300)
    DeviceAvailableSensor(task_id="room", device="gpu", timeout=300)
    DeviceAvailableSensor(task_id="no_room", device="nvidia/b200:8", timeout=300)

with DAG(
    "watching",
    schedule=[
        Asset(
            "counted",
            watchers=[AssetWatcher(name="new", trigger=CheckpointPublished(of_dag="waiting", of_task="train"))],
        )
    ],
    is_paused_upon_creation=False,  # Airflow starts the watchers of a DAG that it reads unpaused
):

    @task
    def announced(triggering_asset_events=None):
        (events,) = triggering_asset_events.values()
        return [event.extra for event in events]

    announced()

with DAG("failing", schedule=None):

    @task.device(device="gpu", retries=2, retry_delay=timedelta(seconds=0))
    def no_cure():
        import_module("a_module_that_no_worker_has")

    @task.device(device={"h100", "910b"}, retries=0)
    def wants_more(ti=None, task_state_store=None):
        lease = current_lease()
        tried_bytes = task_state_store.get("asked") or []
        task_state_store.set("asked", [*tried_bytes, lease.memory_bytes])
        if lease.memory_bytes < 70 * 2**30:
            raise RuntimeError("NPU out of memory. Tried to allocate 96.00 GiB")
        return [*tried_bytes, lease.memory_bytes]

    no_cure()
    wants_more()

with DAG("either", schedule=None):
    DevicePythonOperator(task_id="either", device={"h100", "910b"}, python_callable=use_device, op_args=[0.1])

with DAG("impatient", schedule=None):
    DevicePythonOperator(task_id="impatient", device="gpu", wait_timeout=2, python_callable=use_device)

with DAG("gang", schedule=None, params={"dies": "nobody", "steps": 8}):
    TorchrunOperator.partial(
        task_id="train",
        script="gang_script.py",
        args=[
            f"{os.environ.get('AIRFLOW_HOME', '.')}/gangs/{{{{ run_id | replace(':', '') }}}}",
            "{{ params.dies }}",
            "{{ params.steps }}",
        ],
        device="h100",
        max_restarts=1,
        retries=0,
    ).expand(node_rank=range(2))
