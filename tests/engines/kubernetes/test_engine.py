"""The engine with a real KubernetesExecutor and its processes, against an API server over real HTTP."""

import json
import signal
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState
from kubernetes.client import (
    ApiClient,
    Configuration,
    CoreV1Api,
    V1Container,
    V1ObjectMeta,
    V1Pod,
    V1PodSpec,
    V1ResourceRequirements,
)
from sqlalchemy.exc import OperationalError

from hetero_airflow.contract.envelope import pack_request
from hetero_airflow.engines.engine import EngineContext, LeasedProcess, Liveness, TerminationCause
from hetero_airflow.engines.kubernetes import leasing_executor
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import a_lease
from tests.engines.kubernetes.fake_api import (
    OOM_KILLED,
    a_node,
    a_pod,
    eventually,
    executor_options,
    kubeconfig,
    running_api,
)
from tests.silent_server import silent_server

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

NUMBERS = count(1)
DONE = {"phase": "Succeeded", "containerStatuses": []}


class Cluster:
    """A running engine, its API server, and a store that records what the engine reports."""

    def __init__(self, api, engine):
        self.api, self.engine, self.workers, self.states, self.reported = api, engine, {}, {}, {}

    def begin(self, engine, job="job"):
        engine.start(EngineContext(job, None, None, dict, lambda: self.workers))
        self.learn(engine)

    def learn(self, engine=None):
        changes = (engine or self.engine).cluster.poll()
        for worker in changes.seen:
            self.workers[worker.id] = worker.model_copy(update={"state": WorkerState.ONLINE})
        for id_ in changes.lost:
            self.workers[id_] = self.workers[id_].model_copy(update={"state": WorkerState.LOST})
        return self.workers

    def placed(self, gpu=0, config=None, lease=None, name=None, node="gpu-1"):
        """The workload of a device task, and its lease of one GPU."""
        number = next(NUMBERS)
        request_id = str(uuid4())
        ti = {
            "id": request_id, "dag_version_id": str(uuid4()), "task_id": name or f"t{number}", "dag_id": "d",
            "run_id": "r", "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "hetero", "priority_weight": 1,
        }  # fmt: skip
        workload = ExecuteTask.model_validate(
            {"ti": ti, "dag_rel_path": Path("d.py"), "token": "t", "log_path": None,
             "bundle_info": {"name": "b", "version": None}}
        )  # fmt: skip
        packed = pack_request([{"device": "gpu", "priority": "high"}])
        workload.ti.executor_config = {"hetero": packed, **(config or {})}
        claims = (Claim(f"nvidia.com/gpu/{gpu}", 1000),)
        return workload, lease or a_lease(request_id, node).model_copy(update={"claims": claims})

    def hand_over(self, *, engine=None, **arguments):
        """A device task on one GPU, handed to the engine; its key and lease."""
        workload, lease = self.placed(**arguments)
        (engine or self.engine).hand_over(workload, lease, self.workers[lease.worker_id])
        return workload.key, lease

    def pod(self, lease):
        """Its pod, once it is made."""
        pods = (pod for pod in self.api.pods() if pod["metadata"]["labels"].get(LEASE_LABEL) == lease.id)
        return next(pods, None)

    def started(self, **arguments):
        """A task whose pod runs."""
        key, lease = self.hand_over(**arguments)
        self.engine.heartbeat()
        pod = self.pod(lease)
        name = pod["metadata"]["name"]
        self.api.bind(name, "gpu-1")
        self.api.set_status(name, {"phase": "Running"})
        eventually(lambda: self.status(lease).message == f"pod default/{name} (running)")
        return key, lease, name

    def look(self, lease, state="running"):
        return self.engine.liveness_of([LeasedProcess(lease, state, is_ours=True)])[lease.id]

    def status(self, lease):
        return self.engine.cluster.status(lease.id)

    def beat(self):
        """One heartbeat; notes the ends that are reported."""
        self.engine.heartbeat()
        ends = (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)
        self.reported |= {key: event for key, event in self.engine.collect().items() if event[0] in ends}

    def until(self, holds):
        """Beat until it holds."""
        return eventually(lambda: self.beat() or holds())

    def ends(self, key):
        """What is reported of a task, in the end."""
        return self.until(lambda: self.reported.get(key))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with running_api() as (api, host), pytest.MonkeyPatch.context() as patch:
        for name, value in executor_options(host, tmp_path_factory.mktemp("kube")).items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__HETERO__KUBERNETES_PRIORITY_CLASSES", '{"high": "gpu-high"}')
        states = {}
        # Airflow's database is not of this test
        patch.setattr(KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: states.get(key))
        api.put("nodes", a_node("gpu-1"))
        cluster = Cluster(api, KubernetesEngine(32))
        cluster.states = states
        cluster.begin(cluster.engine)
        yield cluster
        cluster.engine.end()


@pytest.fixture
def cluster(running):
    yield running
    running.api.status = None
    for pod in running.api.pods():
        running.api.drop("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
    running.api.deletions.clear()
    # the next test must not get what this one left: the watches of KubernetesExecutor report later than ours
    running.until(lambda: running.engine.open_slots() == 32 and not running.engine.cluster.adapters[0].view.pods())


def test_a_placed_task_becomes_a_pod_on_its_node_and_ends(cluster):
    key, lease = cluster.hand_over(gpu=1)
    assert cluster.look(lease, "queued") is Liveness.UNKNOWN
    cluster.engine.heartbeat()
    pod = cluster.pod(lease)
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


def test_the_end_of_an_earlier_pod_is_not_that_of_the_task(cluster):
    """It went on for a while on a node that had fallen silent."""
    key, earlier, first = cluster.started()
    cluster.engine.cluster.adapters[0].end_lease(earlier.id)
    second = earlier.model_copy(update={"id": f"{earlier.request_id}.later", "token": earlier.token + 1})
    assert cluster.hand_over(lease=second, name=key.task_id)[0] == key
    cluster.engine.heartbeat()
    name = cluster.pod(second)["metadata"]["name"]
    cluster.api.bind(name, "gpu-1")
    cluster.api.set_status(name, {"phase": "Running"})
    eventually(lambda: cluster.status(second).message == f"pod default/{name} (running)")
    cluster.states[key] = TaskInstanceState.RUNNING
    cluster.api.set_status(first, DONE)
    cluster.until(lambda: cluster.pod(earlier) is None)
    assert key not in cluster.reported
    assert cluster.look(second) is Liveness.ALIVE
    cluster.api.set_status(name, DONE)
    cluster.states[key] = TaskInstanceState.SUCCESS
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)


def test_an_earlier_pod_that_is_gone_is_not_taken_for_one_that_is_still_to_be_made(cluster, monkeypatch):
    """Pods are made one by one, or later where the cluster has too much to do."""
    key, earlier, first = cluster.started()
    site, answers = cluster.engine.cluster.adapters[0], []
    is_of_earlier_lease = site.executor.is_of_earlier_lease
    monkeypatch.setattr(
        site.executor,
        "is_of_earlier_lease",
        lambda *arguments: answers.append(is_of_earlier_lease(*arguments)) or answers[-1],
    )
    monkeypatch.setattr(site.executor, "create_pods_after", datetime.fromisoformat("2100-01-01"))
    site.end_lease(earlier.id)
    second = earlier.model_copy(update={"id": f"{earlier.request_id}.later", "token": earlier.token + 1})
    cluster.hand_over(lease=second, name=key.task_id)
    cluster.engine.heartbeat()
    cluster.states[key] = TaskInstanceState.QUEUED
    cluster.api.set_status(first, {"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.api.drop("pods", first, "default")
    eventually(lambda: site.view.deleted.get(earlier.id))
    eventually(lambda: cluster.engine.heartbeat() or answers)
    assert set(answers) == {True}
    assert {state for state, _ in cluster.engine.collect().values()} <= {TaskInstanceState.QUEUED}
    site.executor.create_pods_after = None
    name = eventually(lambda: cluster.engine.heartbeat() or cluster.pod(second))["metadata"]["name"]
    cluster.api.bind(name, "gpu-1")
    cluster.api.set_status(name, DONE)
    cluster.states[key] = TaskInstanceState.SUCCESS
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)


def test_tasks_of_a_dead_scheduler_end_like_our_own(cluster):
    key, lease, name = cluster.started()
    site = cluster.engine.cluster.adapters[0]
    site.handed_over.clear()  # as in a scheduler that has just begun
    cluster.engine.cluster.follow(key, lease)
    cluster.api.bind(name, "gpu-1")
    cluster.api.set_status(name, DONE)
    cluster.states[key] = TaskInstanceState.QUEUED
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None), "in the words for device tasks"
    assert key not in site.executor.running


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


def test_a_pod_of_an_earlier_lease_that_is_killed_for_its_memory_says_nothing_of_the_present_one(cluster, monkeypatch):
    key, earlier, first = cluster.started()
    site = cluster.engine.cluster.adapters[0]
    monkeypatch.setattr(site.executor.kube_config, "delete_worker_pods_on_failure", True)
    site.end_lease(earlier.id)
    second = earlier.model_copy(update={"id": f"{earlier.request_id}.later", "token": earlier.token + 1})
    cluster.hand_over(lease=second, name=key.task_id)
    cluster.engine.heartbeat()
    name = cluster.pod(second)["metadata"]["name"]
    cluster.api.bind(name, "gpu-1")
    cluster.api.set_status(name, {"phase": "Running"})
    cluster.api.set_status(first, OOM_KILLED)
    eventually(lambda: cluster.status(earlier).termination_cause is not None)
    cluster.until(lambda: cluster.pod(earlier) is None)
    assert key not in cluster.reported
    assert (cluster.status(second).termination_cause, cluster.look(second)) == (None, Liveness.ALIVE)
    cluster.states[key] = TaskInstanceState.SUCCESS
    cluster.api.set_status(name, DONE)
    assert cluster.ends(key) == (TaskInstanceState.SUCCESS, None)


def test_a_pod_that_is_deleted_before_it_starts_is_gone(cluster):
    key, lease = cluster.hand_over()
    cluster.engine.heartbeat()
    name = cluster.pod(lease)["metadata"]["name"]
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


def test_a_cluster_whose_credentials_expire_starts_nothing_and_fails_nothing(cluster, monkeypatch):
    monkeypatch.setattr(leasing_executor, "_RETRY_DELAY", leasing_executor.timedelta(0))
    key, lease = cluster.hand_over()
    cluster.api.status = 401
    cluster.api.cut()
    eventually(lambda: cluster.engine.open_slots() == 0 and not cluster.engine.cluster.adapters[0].view.is_synced)
    for _ in range(3):
        cluster.beat()
    assert key not in cluster.reported
    eventually(lambda: cluster.look(lease, "queued") is Liveness.UNKNOWN)
    assert cluster.learn()["gpu-1"].state is WorkerState.ONLINE
    cluster.api.status = None
    eventually(lambda: cluster.engine.open_slots() > 0)
    eventually(lambda: (cluster.engine.heartbeat(), cluster.pod(lease))[1])


def test_a_server_that_refuses_a_pod_for_a_moment_is_asked_again(cluster, monkeypatch):
    monkeypatch.setattr(leasing_executor, "_RETRY_DELAY", leasing_executor.timedelta(0))
    key, lease = cluster.hand_over()
    cluster.api.post_status = 503  # no other request fails: KubernetesExecutor repeats a failed deletion without end
    cluster.engine.heartbeat()
    cluster.api.post_status = None
    assert (cluster.pod(lease), cluster.engine.executor.has_task(SimpleNamespace(id=None, key=key))) == (None, True)
    eventually(lambda: (cluster.engine.heartbeat(), cluster.pod(lease))[1])


def test_a_pod_that_the_server_refuses_for_good_fails_its_task(cluster):
    cluster.api.forbidden.add("/api/v1/namespaces/default/pods")
    try:
        key, lease = cluster.hand_over()
        cluster.engine.heartbeat()
        state, info = cluster.engine.collect()[key]
    finally:
        cluster.api.forbidden.clear()
    assert (state, "403" in str(info)) == (TaskInstanceState.FAILED, True)
    assert cluster.look(lease, "failed") is Liveness.GONE


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
    cluster.engine.heartbeat()
    pod = cluster.pod(lease)
    assert pod["spec"]["containers"][0]["image"] == "own"
    assert pod["metadata"]["labels"]["team"] == "a"


def test_a_pod_that_waits_in_the_cluster_can_be_withdrawn(cluster):
    key, lease = cluster.hand_over()
    cluster.engine.heartbeat()
    name = cluster.pod(lease)["metadata"]["name"]
    eventually(lambda: cluster.look(lease, "queued") is Liveness.ALIVE)
    assert cluster.engine.withdraw(key)
    cluster.engine.heartbeat()
    eventually(lambda: cluster.api.deletions == [(name, None)])
    eventually(lambda: cluster.look(lease, "scheduled") is Liveness.GONE)


def test_a_node_that_is_gone_ends_what_it_had(cluster):
    cluster.api.put("nodes", a_node("gpu-1"))
    _, lease, name = cluster.started()
    cluster.api.put("nodes", a_node("gpu-1", ready="Unknown"))
    eventually(lambda: cluster.learn()["gpu-1"].state is WorkerState.LOST)
    assert cluster.look(lease) is Liveness.GONE
    cluster.engine.heartbeat()
    eventually(lambda: cluster.api.deletions == [(name, None)])
    cluster.api.put("nodes", a_node("gpu-1"))
    worker = eventually(lambda: (gpu_1 := cluster.learn()["gpu-1"]).state is WorkerState.ONLINE and gpu_1)
    assert [device.leasable for device in worker.devices if device.kind == "gpu"] == [False, True]
    cluster.api.drop("pods", name, "default")
    eventually(lambda: all(device.leasable for device in cluster.learn()["gpu-1"].devices))


def test_another_scheduler_takes_over_the_pod_and_makes_no_second_one(cluster):
    key, lease, name = cluster.started()
    heir = KubernetesEngine(32)
    cluster.begin(heir, "heir")
    try:
        cluster.hand_over(engine=heir, lease=lease, name=key.task_id)
        heir.heartbeat()
        assert len(cluster.api.pods()) == 1
        assert cluster.api.pods()[0]["metadata"]["labels"]["airflow-worker"] == "heir"
        cluster.api.set_status(name, DONE)
        beside = Cluster(cluster.api, heir)
        assert beside.ends(key)[0] == TaskInstanceState.SUCCESS
    finally:
        heir.end()


def test_a_pod_that_waits_says_why(cluster):
    _, lease = cluster.hand_over()
    cluster.engine.heartbeat()
    name = cluster.pod(lease)["metadata"]["name"]
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


def test_a_lease_in_a_cluster_that_is_not_configured_any_more_fails_its_task(cluster):
    clusters = cluster.engine.cluster
    adapters, clusters.adapters = clusters.adapters, []
    try:
        key, _ = cluster.hand_over()
    finally:
        clusters.adapters = adapters
    assert cluster.engine.collect()[key][0] == TaskInstanceState.FAILED


def test_an_outage_of_airflows_database_is_no_end_of_the_scheduler(cluster, monkeypatch, caplog):
    def fail(self):
        raise OperationalError("SELECT 1", {}, OSError("gone"))

    monkeypatch.setattr(KubernetesExecutor, "sync", fail)
    for _ in range(2):
        cluster.engine.heartbeat()
        cluster.engine.collect()
    assert caplog.text.count("OperationalError") == 1


def test_each_of_several_clusters_runs_what_was_placed_there(cluster, monkeypatch):
    with running_api() as (eu, eu_host), running_api() as (us, us_host):
        for api, host, site in ((eu, eu_host, "eu"), (us, us_host, "us")):
            api.put("nodes", a_node("gpu-1"))
            extra = {"kube_config": json.dumps(kubeconfig(host)), "namespace": "ml"}
            text = json.dumps({"conn_type": "kubernetes", "extra": extra})
            monkeypatch.setenv(f"AIRFLOW_CONN_{site.upper()}", text)
        monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_CLUSTERS", '{"eu": "eu", "us": "us"}')
        both = Cluster(eu, KubernetesEngine(32))
        both.begin(both.engine, "several")
        try:
            assert sorted(both.workers) == ["eu/gpu-1", "us/gpu-1"]
            assert {worker.labels["hetero/site"] for worker in both.workers.values()} == {"eu", "us"}
            assert all(both.engine.reaches(worker) for worker in both.workers.values())
            placed = {api: both.hand_over(node=f"{site}/gpu-1") for api, site in ((eu, "eu"), (us, "us"))}
            both.engine.heartbeat()
            for api, (key, lease) in placed.items():
                (pod,) = api.pods()
                assert pod["metadata"]["labels"][LEASE_LABEL] == lease.id
                assert pod["metadata"]["namespace"] == "ml"
                eventually(lambda lease=lease: both.look(lease, "queued") is Liveness.ALIVE)
                cluster.states[key] = TaskInstanceState.SUCCESS
                api.set_status(pod["metadata"]["name"], DONE, "ml")
                assert both.ends(key) == (TaskInstanceState.SUCCESS, None)
        finally:
            both.engine.end()


def test_a_cluster_that_never_answers_delays_one_heartbeat_and_costs_no_task(cluster):
    """The watches go on, so that it seems to be there. KubernetesExecutor alone would wait for ever."""
    ended, ended_lease, name = cluster.started()
    executor = cluster.engine.executor
    client = executor.kube_client
    with silent_server() as silent:
        executor.use_client(CoreV1Api(ApiClient(Configuration(host=f"http://127.0.0.1:{silent.port}"))))
        cluster.states[ended] = TaskInstanceState.SUCCESS
        cluster.api.set_status(name, DONE)
        new = [cluster.hand_over(gpu=gpu)[1] for gpu in (0, 1)]
        began, longest_s = time.monotonic(), 0.0
        while not executor.silence.is_on:
            began = time.monotonic()
            cluster.beat()
            longest_s = max(longest_s, time.monotonic() - began)
        tries = len(silent.connections)
        assert tries == 1, "each call is tried once"
        cluster.beat()
        assert longest_s < 8, "about half of the lease time"
        foreign_task = SimpleNamespace(queued_by_job_id=7, key="of another scheduler")
        assert cluster.engine.try_adopt([foreign_task]) == [], "it is not started again beside its pod"
        assert cluster.engine.open_slots() == 0, "nothing more is placed there"
        assert len(silent.connections) == tries, "the engine did not call it again"
    executor.use_client(client)
    assert cluster.ends(ended) == (TaskInstanceState.SUCCESS, None)
    assert cluster.look(ended_lease) is Liveness.GONE
    cluster.until(lambda: all(cluster.pod(lease) for lease in new))
