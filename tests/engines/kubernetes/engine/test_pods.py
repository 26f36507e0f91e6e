"""The pod of a task: how it is made, how it ends, and what it says meanwhile."""

import json
import signal
import time
from types import SimpleNamespace

import pytest
from airflow.utils.state import TaskInstanceState
from kubernetes.client import V1Container, V1ObjectMeta, V1Pod, V1PodSpec, V1ResourceRequirements

from hetero_airflow.engines.engine import LeasedProcess, Liveness, TerminationCause
from tests.engines.kubernetes.engine.running_engine import DONE
from tests.engines.kubernetes.fake_api import OOM_KILLED, a_pod
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_a_placed_task_becomes_a_pod_on_its_node_and_ends(cluster):
    key, lease = cluster.hand_over(gpu=1)
    assert cluster.look(lease, "queued") is Liveness.UNKNOWN
    pod = cluster.made(lease)
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["gpu-1"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert pod["metadata"]["annotations"]["hetero-airflow/devices"] == "nvidia.com/gpu/1"
    assert pod["spec"]["priorityClassName"] == "gpu-high"
    carried = json.loads(pod["spec"]["containers"][0]["args"][-1])
    assert carried["ti"]["id"] == lease.request_id
    name = pod["metadata"]["name"]
    eventually(lambda: cluster.look(lease, "queued") is Liveness.ALIVE)
    cluster.api.bind(name, "gpu-1")
    cluster.api.set_status(name, {"phase": "Running"})
    cluster.states[key] = TaskInstanceState.UP_FOR_RESCHEDULE
    cluster.api.set_status(name, DONE)
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)
    assert cluster.look(lease) is Liveness.GONE
    assert cluster.engine.occupied_slots == 0
    assert not cluster.engine.has_task(SimpleNamespace(id=None, key=key))


def test_a_workload_that_is_placed_again_is_bound_to_its_new_node_only(cluster):
    """The dispatcher keeps the workload, and hands over the same again."""
    workload, lease = cluster.placed()
    written = workload.ti.executor_config
    for _ in range(2):
        cluster.engine.hand_over(workload, lease, cluster.workers["gpu-1"])
        bound = cluster.engine.executor.queued_tasks.pop(workload.key).ti.executor_config["pod_override"]
        key = "required_during_scheduling_ignored_during_execution"
        (term,) = getattr(bound.spec.affinity.node_affinity, key).node_selector_terms
        assert [field.values for field in term.match_fields] == [["gpu-1"]]
        assert workload.ti.executor_config == written


def test_the_end_of_a_task_that_is_queued_again_is_reported(cluster):
    key, _, name = cluster.started()
    cluster.states[key] = TaskInstanceState.QUEUED
    cluster.api.set_status(name, DONE)
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)


def test_a_pod_that_fails_by_itself_has_failed(cluster):
    key, lease, name = cluster.started()
    cluster.states[key] = TaskInstanceState.QUEUED  # Airflow's executor would make another one by itself
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status = {"name": "base", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    cluster.api.set_status(name, {"phase": "Failed", "containerStatuses": [status]})
    state, info = cluster.ends(key)
    assert state == TaskInstanceState.FAILED
    assert info
    eventually(lambda: cluster.look(lease) is Liveness.GONE)  # our watch may be later than KubernetesExecutor's
    assert len(cluster.api.pods()) == 1


@pytest.mark.parametrize("how", ["evicted", "deleted by hand"])
def test_what_is_done_to_a_pod_is_no_failure_of_its_task(cluster, how):
    key, lease, name = cluster.started()
    if how == "evicted":
        cluster.api.set_status(name, {"phase": "Failed", "reason": "Evicted", "message": "low on memory"})
    else:
        cluster.api.set_status(name, {"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")
        assert cluster.look(lease) is Liveness.ALIVE
        cluster.api.drop("pods", name, "default")
    eventually(lambda: cluster.status(lease).termination_cause)  # before KubernetesExecutor's own watch is asked
    cluster.until(lambda: key not in cluster.engine.executor.running)
    assert key not in cluster.reported
    eventually(lambda: cluster.look(lease) is Liveness.GONE)
    assert "evicted" in cluster.status(lease).message or "deleted" in cluster.status(lease).message


def test_a_pod_that_is_killed_for_its_memory_is_not_reported_and_tells_its_limit(cluster):
    limited = V1Container(name="base", resources=V1ResourceRequirements(limits={"memory": "1Gi"}))
    key, lease, name = cluster.started(config={"pod_override": V1Pod(spec=V1PodSpec(containers=[limited]))})
    assert cluster.status(lease).termination_cause is None
    cluster.api.set_status(name, OOM_KILLED)
    eventually(lambda: cluster.status(lease).termination_cause)  # before KubernetesExecutor's own watch is asked
    cluster.until(lambda: key not in cluster.engine.executor.running)
    assert key not in cluster.reported
    eventually(lambda: cluster.look(lease) is Liveness.GONE)
    assert cluster.status(lease).termination_cause == TerminationCause(is_out_of_memory=True, host_memory_bytes=2**30)
    assert cluster.status(lease).message == f"pod default/{name} (oom killed)"


def test_a_pod_that_is_deleted_before_it_starts_is_gone(cluster):
    key, lease = cluster.hand_over()
    name = cluster.made(lease)["metadata"]["name"]
    eventually(lambda: cluster.look(lease, "queued") is Liveness.ALIVE)
    cluster.api.drop("pods", name, "default")
    eventually(lambda: cluster.look(lease, "queued") is Liveness.GONE)
    assert not cluster.engine.has_task(SimpleNamespace(id=None, key=key))


def test_a_task_that_outlives_its_lease_has_its_pod_deleted(cluster):
    _, lease, name = cluster.started()
    use = LeasedProcess(lease, "success", is_ours=True)
    cluster.engine.signal(use, signal.SIGTERM)
    eventually(lambda: cluster.api.deletions == [(name, None)])
    cluster.engine.signal(use, signal.SIGTERM)
    cluster.engine.signal(use, signal.SIGKILL)
    eventually(lambda: cluster.api.deletions == [(name, None), (name, 1)])


def test_an_override_that_is_none_fails_its_task_and_not_the_scheduler(cluster):
    key, _ = cluster.hand_over(config={"pod_override": {"spec": "nonsense"}})
    state, info = cluster.engine.collect()[key]
    assert state == TaskInstanceState.FAILED
    assert info.startswith("Its pod can't be made")


def test_the_authors_override_is_in_the_pod(cluster):
    override = V1Pod(
        metadata=V1ObjectMeta(labels={"team": "a"}), spec=V1PodSpec(containers=[V1Container(name="base", image="own")])
    )
    _, lease = cluster.hand_over(config={"pod_override": override})
    pod = cluster.made(lease)
    assert pod["spec"]["containers"][0]["image"] == "own"
    assert pod["metadata"]["labels"]["team"] == "a"


def test_a_pod_that_waits_in_the_cluster_can_be_withdrawn(cluster):
    key, lease = cluster.hand_over()
    name = cluster.made(lease)["metadata"]["name"]
    eventually(lambda: cluster.look(lease, "queued") is Liveness.ALIVE)
    assert cluster.engine.withdraw(key)
    cluster.engine.heartbeat()
    eventually(lambda: cluster.api.deletions == [(name, None)])
    eventually(lambda: cluster.look(lease, "scheduled") is Liveness.GONE)


def test_a_pod_that_waits_says_why(cluster):
    _, lease = cluster.hand_over()
    name = cluster.made(lease)["metadata"]["name"]
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    cluster.api.set_status(name, {"phase": "Pending", "conditions": [why]})
    expected = f"pod default/{name} (unschedulable): 0/1 nodes are available"
    eventually(lambda: cluster.status(lease).message == expected)


def test_a_task_without_a_device_goes_unchanged_to_kubernetes_executor(cluster):
    cluster.api.put("pods", a_pod("foreign", "gpu-1"))
    assert cluster.engine.open_slots() == 32
    assert cluster.engine.reaches(cluster.workers["gpu-1"])
    assert not cluster.engine.reaches(cluster.workers["gpu-1"].model_copy(update={"engine": "celery"}))
    assert cluster.engine.try_adopt([]) == []


def test_a_task_costs_two_calls(cluster):
    run_to_their_ends(cluster, 1)  # the calls by which an engine begins are over then
    cluster.api.requests.clear()
    run_to_their_ends(cluster, 4)
    for _ in range(20):
        cluster.beat()
        time.sleep(0.05)
    calls = [method for method, _, query in cluster.api.requests if "watch" not in query]
    assert (calls.count("POST"), calls.count("DELETE"), len(calls)) == (4, 4, 8), cluster.api.requests


def run_to_their_ends(cluster, count):
    """Run some tasks, and wait until their pods are gone."""
    tasks = [cluster.started() for _ in range(count)]
    for key, _, name in tasks:
        cluster.states[key] = TaskInstanceState.SUCCESS
        cluster.api.set_status(name, DONE)
    for key, *_ in tasks:
        assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)
    cluster.until(lambda: not cluster.api.pods())
