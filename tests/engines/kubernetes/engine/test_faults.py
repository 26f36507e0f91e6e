"""A cluster that does not answer, refuses, loses a node or is not configured any more."""

import json
import time
from types import SimpleNamespace

import pytest
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import OperationalError

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.model.worker import WorkerState
from tests.engines.kubernetes.engine.running_engine import DONE, Cluster
from tests.engines.kubernetes.fake_api import a_node, connect, kubeconfig, running_api
from tests.silent_server import silent_server
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_a_cluster_whose_credentials_expire_starts_nothing_and_fails_nothing(cluster, monkeypatch):
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
    key, lease = cluster.hand_over()
    cluster.api.post_status = 503
    cluster.engine.heartbeat()
    eventually(lambda: cluster.engine.executor.calls.problem)
    cluster.beat()
    assert (cluster.engine.open_slots(), key in cluster.reported) == (0, False)
    cluster.api.post_status = None
    cluster.made(lease)


def test_a_pod_that_the_server_refuses_for_good_fails_its_task(cluster):
    cluster.api.post_status = 403
    try:
        key, lease = cluster.hand_over()
        state, info = cluster.ends(key)
    finally:
        cluster.api.post_status = None
    assert (state, "403" in str(info)) == (TaskInstanceState.FAILED, True)
    eventually(lambda: cluster.beat() or cluster.look(lease, "failed") is Liveness.GONE)


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
            eventually(lambda: both.engine.heartbeat() or (eu.pods() and us.pods()))
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


def test_a_cluster_that_never_answers_delays_no_heartbeat_and_costs_no_task(cluster):
    """The watches go on, so that it seems to be there. KubernetesExecutor alone would wait for ever."""
    ended, ended_lease, name = cluster.started()
    executor = cluster.engine.executor
    calls = executor.calls
    with silent_server() as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_connect", lambda: connect(SimpleNamespace(host=f"http://127.0.0.1:{silent.port}")))
        patch.setattr(calls, "_api", None)
        cluster.states[ended] = TaskInstanceState.SUCCESS
        cluster.api.set_status(name, DONE)
        new = [cluster.hand_over(gpu=gpu)[1] for gpu in (0, 1)]
        beats = 0
        while calls.problem is None:
            cluster.beat()
            beats += 1
            time.sleep(0.1)
        assert beats > 2, "a beat waits for the call that finds the problem"
        foreign_task = SimpleNamespace(queued_by_job_id=7, key="of another scheduler")
        assert cluster.engine.try_adopt([foreign_task]) == [], "it is not started again beside its pod"
        assert cluster.engine.open_slots() == 0, "nothing more is placed there"
    calls._api = None
    assert cluster.ends(ended) == (TaskInstanceState.SUCCESS, None)
    assert cluster.look(ended_lease) is Liveness.GONE
    cluster.until(lambda: all(cluster.pod(lease) for lease in new) and cluster.pod(ended_lease) is None)
