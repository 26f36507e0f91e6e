"""Leases as pods on a real control plane: its scheduler binds the pods, its controllers and its API remove them.

The kubelet is simulated: the tests write to the API what a kubelet would report of pods and nodes.
"""

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import Liveness, TerminationCause
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.worker import WorkerState
from tests.engines.kubernetes.fake_api import a_pod
from tests.system.kubernetes.leasing import ACCOUNT, ENDS, Leasing, grant, leasing
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.fixture(scope="module")
def engine(plane, tmp_path_factory):
    with leasing(plane, tmp_path_factory.mktemp("scheduler")) as engine:
        yield engine


@pytest.fixture
def cluster(engine, nodes):
    """An engine on a cluster with one node of two GPUs."""
    nodes.add("gpu-1")
    engine.knows("gpu-1")
    return engine


def started(cluster: Leasing, nodes, **arguments):
    """Start a task. Returns its key, lease and pod."""
    key, lease = cluster.hand_over(**arguments)
    name = cluster.bound(lease)
    nodes.put(name, "airflow", "Running", RUNS)
    eventually(lambda: cluster.status(lease).message == f"pod airflow/{name} (running)")
    return key, lease, name


def is_gone(cluster, lease):
    return lambda: cluster.engine.collect() is not None and cluster.look(lease) is Liveness.GONE


def test_the_scheduler_binds_each_pod_to_the_node_of_its_lease_and_to_no_other(cluster, nodes):
    for name in ("gpu-2", "gpu-3"):
        nodes.add(name)
    leases = [cluster.hand_over(node)[1] for node in ("gpu-3", "gpu-1", "gpu-3", "gpu-2")]
    for lease in leases:
        cluster.bound(lease)
    nodes_of_pods = [cluster.pod(lease).spec.node_name for lease in leases]
    assert nodes_of_pods == [lease.worker_id for lease in leases]


def test_a_pod_has_what_its_lease_has_and_no_token_of_the_cluster(cluster):
    _, lease = cluster.hand_over(slots=2, priority="high")
    cluster.bound(lease)
    pod = cluster.pod(lease)
    (container,) = pod.spec.containers
    assert container.resources.limits["nvidia.com/gpu"] == "2"
    assert (pod.spec.service_account_name, pod.spec.volumes, pod.spec.priority) == ("airflow-task", None, 1000)
    assert container.security_context.allow_privilege_escalation is False


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_end_of_a_pod_is_that_of_its_task(cluster, nodes, phase):
    key, lease, name = started(cluster, nodes)
    state = TaskInstanceState.SUCCESS if phase == "Succeeded" else TaskInstanceState.FAILED
    cluster.states[key] = state
    code, word = (0, "Completed") if phase == "Succeeded" else (1, "Error")
    nodes.put(name, "airflow", phase, {"terminated": {"exitCode": code, "reason": word}})
    assert cluster.end(key)[0] == state
    assert cluster.look(lease) is Liveness.GONE
    assert cluster.status(lease).termination_cause is None


def test_a_pod_that_finds_no_room_says_so_in_the_schedulers_words(cluster, nodes):
    other_pod = a_pod("other", gpus=2, namespace="default")
    cluster.api.create_namespaced_pod("default", other_pod)
    eventually(lambda: cluster.api.read_namespaced_pod("other", "default").spec.node_name)
    worker = cluster.workers["gpu-1"]
    _, lease = cluster.hand_over_as(worker)
    reason = eventually(lambda: _made(cluster) and _reason_of(cluster, lease, ReasonCode.BUSY))
    assert "Insufficient nvidia.com/gpu" in reason.found
    assert eventually(lambda: not any(d.leasable for d in cluster.learn()["gpu-1"].devices if d.kind == "gpu"))
    cluster.api.delete_namespaced_pod("other", "default", grace_period_seconds=0)
    cluster.bound(lease)


def test_a_pod_whose_node_turned_others_away_says_so(cluster, nodes):
    worker = cluster.workers["gpu-1"]
    taint = {"key": "maintenance", "value": "yes", "effect": "NoSchedule"}
    cluster.api.patch_node("gpu-1", {"spec": {"taints": [taint]}})
    _, lease = cluster.hand_over_as(worker)
    reason = eventually(lambda: _made(cluster) and _reason_of(cluster, lease, ReasonCode.LABELS))
    assert "taint" in reason.found
    problems = eventually(lambda: cluster.learn()["gpu-1"].problems)
    assert problems == ("taints keep pods off the node: maintenance=yes:NoSchedule",)


def test_an_image_that_can_not_be_fetched_is_told_and_can_be_withdrawn(cluster, nodes):
    key, lease = cluster.hand_over()
    name = cluster.bound(lease)
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/x"'}}
    nodes.put(name, "airflow", "Pending", waits)
    reason = eventually(lambda: _reason_of(cluster, lease, ReasonCode.RUNTIME))
    assert reason.found == 'Back-off pulling image "registry.example/x"'
    assert cluster.engine.withdraw(key)
    eventually(lambda: _made(cluster) and _has_ending_pod(cluster.pod(lease)))
    assert cluster.look(lease, "queued") is Liveness.ALIVE, "its kubelet has not reported the end"
    nodes.drop(name, "airflow")
    eventually(lambda: cluster.look(lease, "queued") is Liveness.GONE)


def test_a_pod_that_is_refused_fails_its_task_in_the_servers_words(cluster):
    key, lease = cluster.hand_over(priority="urgent")
    state, info = cluster.end(key)
    assert (state, cluster.pod(lease)) == (TaskInstanceState.FAILED, None)
    assert "no PriorityClass with name missing was found" in str(info)
    assert cluster.look(lease, "failed") is Liveness.GONE


def test_a_pod_that_is_killed_for_its_memory_says_so_and_has_no_end_of_its_own(cluster, nodes):
    key, lease, name = started(cluster, nodes)
    nodes.put(name, "airflow", "Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    eventually(is_gone(cluster, lease))
    assert cluster.status(lease).termination_cause == TerminationCause(is_out_of_memory=True)
    assert key not in _ended(cluster)


@pytest.mark.parametrize("how", ["deleted", "evicted by the API", "evicted by its kubelet", "preempted"])
def test_what_is_done_to_a_pod_is_no_failure_of_its_task(cluster, nodes, how):
    key, lease, name = started(cluster, nodes, slots=2, priority="low")
    if how == "evicted by its kubelet":
        nodes.put(name, "airflow", "Failed", reason="Evicted", message="The node was low on resource: memory.")
    else:
        if how == "deleted":
            cluster.api.delete_namespaced_pod(name, "airflow")
        elif how == "evicted by the API":
            cluster.api.create_namespaced_pod_eviction(name, "airflow", {"metadata": {"name": name}})
        else:
            other_pod = a_pod("other", gpus=1, namespace="default")
            other_pod["spec"]["priorityClassName"] = "gpu-high"
            cluster.api.create_namespaced_pod("default", other_pod)
        eventually(lambda: cluster.pod(lease).metadata.deletion_timestamp)
        assert cluster.look(lease) is Liveness.ALIVE, "it keeps its devices until its kubelet reports the end"
        nodes.kill(name, "airflow")
    eventually(is_gone(cluster, lease))
    assert cluster.status(lease).termination_cause == TerminationCause()
    # before 1.26 the API reports an evicted or preempted pod only as deleted
    causes = {"evicted by its kubelet": ("evicted",), "evicted by the API": ("evicted", "deleted")}
    expected = causes.get(how, ("deleted", "preempted"))
    assert any(f"pod airflow/{name} ({word})" in cluster.status(lease).message for word in expected)
    assert key not in _ended(cluster)


def test_a_node_that_falls_silent_is_lost_and_its_pod_told_to_end(cluster, nodes):
    _, lease, name = started(cluster, nodes)
    nodes.stop_reports("gpu-1")
    eventually(lambda: cluster.learn()["gpu-1"].state is WorkerState.LOST)
    eventually(is_gone(cluster, lease))
    assert cluster.status(lease).message.startswith(f"node gpu-1 was lost, and with it pod airflow/{name}")
    eventually(lambda: _made(cluster) and _has_ending_pod(cluster.pod(lease)))
    nodes.resume_reports("gpu-1")
    worker = eventually(lambda: _as_online(cluster, "gpu-1"))
    assert [device.leasable for device in worker.devices if device.kind == "gpu"] == [False, True]
    nodes.drop(name, "airflow")
    eventually(lambda: all(device.leasable for device in cluster.learn()["gpu-1"].devices))


def test_a_node_that_is_deleted_is_lost_and_its_pod_with_it(cluster, nodes):
    _, lease, name = started(cluster, nodes)
    nodes.stop_reports("gpu-1")
    cluster.api.delete_node("gpu-1")
    eventually(lambda: cluster.learn()["gpu-1"].state is WorkerState.LOST)
    eventually(is_gone(cluster, lease))
    assert cluster.status(lease).message.startswith(f"node gpu-1 was lost, and with it pod airflow/{name}")
    eventually(
        lambda: _made(cluster) and (cluster.pod(lease) is None or cluster.pod(lease).metadata.deletion_timestamp)
    )


def test_a_server_that_is_killed_and_comes_back_costs_nothing(cluster, nodes, plane):
    key, lease, name = started(cluster, nodes)
    plane.kill_api_server()
    try:
        eventually(lambda: cluster.engine.open_slots() == 0)
        late, waiting = cluster.hand_over_as(cluster.workers["gpu-1"])
        for _ in range(3):
            cluster.engine.heartbeat()
            assert not _ended(cluster)
        eventually(lambda: cluster.look(lease) is Liveness.UNKNOWN)
    finally:
        plane.start_api_server()
    cluster.bound(waiting)
    assert cluster.look(lease) is Liveness.ALIVE
    nodes.add("gpu-2")
    cluster.knows("gpu-2")
    for task_key, of in ((key, name), (late, cluster.pod(waiting).metadata.name)):
        cluster.states[task_key] = TaskInstanceState.SUCCESS
        nodes.put(of, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
        assert cluster.end(task_key)[0] == TaskInstanceState.SUCCESS


def test_credentials_that_are_no_longer_good_start_nothing_and_fail_nothing(cluster, nodes, plane):
    key, lease, name = started(cluster, nodes)
    cluster.api.delete_namespaced_service_account(ACCOUNT, "airflow")
    plane.kill_api_server()  # a running server keeps a watch whose token has expired
    plane.start_api_server()
    eventually(lambda: "credentials are refused" in (cluster.engine.cluster.adapters[0].view.problem or ""))
    _, waiting = cluster.hand_over_as(cluster.workers["gpu-1"])
    for _ in range(3):
        cluster.engine.heartbeat()
        assert not _ended(cluster)
    assert (cluster.look(lease), cluster.pod(waiting)) == (Liveness.UNKNOWN, None)
    cluster.api.create_namespaced_service_account("airflow", {"metadata": {"name": ACCOUNT}})
    grant(plane, cluster.credentials)
    cluster.bound(waiting)
    cluster.states[key] = TaskInstanceState.SUCCESS
    nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
    assert cluster.end(key)[0] == TaskInstanceState.SUCCESS


def _made(cluster: Leasing) -> bool:
    """One more round of the scheduler's loop."""
    cluster.engine.heartbeat()
    cluster.learn()
    return True


def _has_ending_pod(pod) -> bool:
    return pod is None or pod.metadata.deletion_timestamp is not None


def _ended(cluster: Leasing):
    """The tasks whose end the engine reports."""
    return {key for key, (state, _) in cluster.engine.collect().items() if state in ENDS}


def _reason_of(cluster: Leasing, lease, code: ReasonCode):
    reason = cluster.status(lease).wait_reason
    return reason if reason is not None and reason.code is code else None


def _as_online(cluster: Leasing, node: str):
    worker = cluster.learn()[node]
    return worker if worker.state is WorkerState.ONLINE and not worker.problems else None
