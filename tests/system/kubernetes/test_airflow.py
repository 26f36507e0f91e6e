"""A real Airflow whose device tasks run as pods of a real control plane.

The kubelet is simulated: each pod's command runs as a process of this host, with the variables of the pod.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import client
from local_airflow import LocalAirflow

from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.executor.recommended_settings import recommendations
from tests.played_kubelet import played_kubelet
from tests.played_nodes import played_nodes
from tests.system.conftest import QUICK
from tests.system.fleet_runs import finish, notes, run, start_training, with_example
from tests.system.kubernetes.leasing import grant, options
from tests.system.overlaps import overlaps
from tests.system.scheduler_jobs import replace_scheduler

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
VARIABLES_OF_TASKS = (
    "AIRFLOW__CORE__EXECUTOR", "AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__SDK__COORDINATORS",
    "AIRFLOW__SDK__QUEUE_TO_COORDINATOR", "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "AIRFLOW__HETERO__CHECKPOINT_URL",
)  # fmt: skip
"""The variables that docs/kubernetes/ puts into the config map of tasks."""


@pytest.fixture(scope="module")
def fleet(plane, tmp_path_factory, make_postgres_database):
    """A cluster with one node without devices; `gpus` adds two nodes with GPUs."""
    home = tmp_path_factory.mktemp("airflow_on_kubernetes")
    dags = with_example(home / "dags", "retrain_digits.py")
    grant(plane, home / "credentials")
    settings = {
        **QUICK,
        **{recommendation.variable: recommendation.value for recommendation in recommendations("hetero", "kubernetes")},
        **options(plane, home / "credentials", home),
        "AIRFLOW__HETERO__ENGINE": "kubernetes",
        "AIRFLOW__HETERO__CHECKPOINT_URL": f"file://{home}/checkpoints",
    }
    airflow = LocalAirflow(home, dags, settings=settings, database=make_postgres_database())
    environment = airflow.environment
    config_map = {
        "metadata": {"name": "airflow-task"},
        "data": {name: environment[name] for name in VARIABLES_OF_TASKS},
    }
    client.CoreV1Api(plane.connect()).create_namespaced_config_map("airflow", config_map)
    # a shared volume stands for the image's folder of DAG files, and for the store of logs
    image = {"PATH": environment["PATH"], "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    pods = tmp_path_factory.mktemp("pods")
    with (
        played_nodes(plane.connect()) as nodes,
        played_kubelet(nodes, {**image, "OMP_NUM_THREADS": "1"}, pods),
        airflow,
    ):
        nodes.add("cpu-1", 0)
        yield SimpleNamespace(airflow=airflow, nodes=nodes, plane=plane, pods=pods)


@pytest.fixture(scope="module")
def gpus(fleet):
    for name in ("gpu-1", "gpu-2"):
        fleet.nodes.add(name, 2, labels=H100)
    store = fleet.airflow.store()
    known = {"cpu-1", "gpu-1", "gpu-2"}
    fleet.airflow.wait_until(
        lambda: known <= {worker.id for worker in store.snapshot().workers}, "the nodes to be known"
    )
    return fleet


def pod_of(fleet, task_id):
    (pod,) = fleet.nodes.api.list_namespaced_pod("airflow", label_selector=f"task_id={task_id},{LEASE_LABEL}").items
    return pod


def restarts(fleet, name):
    """The nodes on which a training ran, one for each start."""
    return [line["worker"] for line in notes(fleet, name, "start")]


def test_the_example_of_the_readme_runs_unchanged(fleet):
    run_id = run(fleet, "retrain_digits", timeout_s=280)
    assert fleet.airflow.xcom("retrain_digits", run_id, "evaluate") > 0.95
    assert Path(fleet.airflow.xcom("retrain_digits", run_id, "publish")).is_file()
    assert {ti["try_number"] for ti in fleet.airflow.tasks("retrain_digits", run_id)} == {1}


def test_tasks_spread_over_the_nodes_and_none_shares_a_device(gpus):
    run_id = run(gpus, "spread", timeout_s=200)
    uses = [gpus.airflow.xcom("spread", run_id, "use", number) for number in range(8)]
    assert {use["worker"] for use in uses} == {"gpu-1", "gpu-2"}
    assert overlaps(uses) == []


def test_a_pod_that_is_deleted_by_hand_goes_on_from_its_checkpoint_with_the_same_try(gpus):
    run_id = start_training(gpus, "deleted")
    pod = pod_of(gpus, "train_on")
    gpus.nodes.api.delete_namespaced_pod(pod.metadata.name, "airflow", grace_period_seconds=1)
    gpus.airflow.wait_until(lambda: len(restarts(gpus, "deleted")) == 2, "it to run again")
    finish(gpus, "deleted", run_id)


def test_a_node_that_falls_silent_loses_its_task_to_another(gpus):
    run_id = start_training(gpus, "moved")
    (first,) = restarts(gpus, "moved")
    gpus.nodes.stop_reports(first)
    gpus.airflow.wait_until(lambda: len(restarts(gpus, "moved")) > 1, "it to run elsewhere")
    assert restarts(gpus, "moved")[1] != first
    gpus.nodes.resume_reports(first)
    finish(gpus, "moved", run_id)


def test_an_api_server_of_the_cluster_that_is_away_costs_nothing(gpus):
    run_id = start_training(gpus, "in_outage")
    gpus.plane.kill_api_server()
    gpus.plane.start_api_server()
    finish(gpus, "in_outage", run_id)
    assert len(restarts(gpus, "in_outage")) == 1, "it was started again"


def test_kill_9_of_the_scheduler_leaves_running_tasks_alone(gpus):
    run_id = start_training(gpus, "adopted")
    replace_scheduler(gpus.airflow, "train", run_id)
    finish(gpus, "adopted", run_id)
    assert len(restarts(gpus, "adopted")) == 1, "it was started again"
