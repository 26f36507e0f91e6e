"""DAGs that run on workers of a fleet. Each task writes down which devices it used, where and when."""

import os
import time

from airflow.sdk import DAG, task
from fleet_notes import nap, note

from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator, TorchrunOperator
from hetero_airflow.runtime import checkpoint, current_lease

AT_PARSE = os.environ.get("CUDA_VISIBLE_DEVICES")
"""The devices that a framework sees if the DAG file imports it at the top."""


def use(name, seconds):
    """Hold a device for a while. Returns which device it was."""
    lease = current_lease()
    about = {"name": name, "worker": lease.worker, "ids": list(lease.ids), "token": lease.token}
    note(**about, what="start")
    start = time.time()
    nap(name, seconds)
    note(**about, what="end")
    ids = [f"{lease.worker}/{id_}" for id_ in lease.ids]
    return {"ids": ids, "kind": lease.kind, "milli": 1000, "start": start, "end": time.time(), "worker": lease.worker,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "at_parse": AT_PARSE}  # fmt: skip


class Sum:
    """The state of a training."""

    def __init__(self):
        self.value = 0.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def train(name, steps):
    """A training that writes down each step, and saves a checkpoint every second step."""
    lease, state = current_lease(), Sum()
    note(name=name, what="start", worker=lease.worker, ids=list(lease.ids), token=lease.token)
    for step in checkpoint.steps(steps, every=2, state=state):
        state.value += step
        note(name=name, what="step", step=step, worker=lease.worker, token=lease.token)
        nap(name, 0.5)
    return state.value


with DAG("spread", schedule=None):
    DevicePythonOperator.partial(task_id="use", python_callable=use, device="h100").expand(
        op_args=[[f"spread{number}", 1.5] for number in range(8)]
    )

with DAG("kinds", schedule=None):
    DevicePythonOperator(task_id="npu", python_callable=use, device="ascend/910b", op_args=["npu", 0.5])
    DeviceBashOperator(task_id="bash", bash_command="echo $ASCEND_RT_VISIBLE_DEVICES", device="ascend/910b:2")

    @task
    def plain():
        return "plain"

    plain()

with DAG("long", schedule=None, params={"seconds": 20}):

    @task.device(device="h100:2")
    def long(params=None):
        return use("long", params["seconds"])

    long()

with DAG("train", schedule=None, params={"name": "train", "steps": 10}):

    @task.device(device="h100:2")
    def train_on(params=None):
        return train(params["name"], params["steps"])

    train_on()

with DAG("gang", schedule=None, params={"name": "gang", "steps": 10}):
    TorchrunOperator.partial(
        task_id="train",
        script="gang_training.py",
        args=["{{ params.name }}", "{{ params.steps }}"],
        device="h100:2",  # as many as each worker has: the ranks can't share one
        processes=1,
        retries=0,
    ).expand(node_rank=range(2))
