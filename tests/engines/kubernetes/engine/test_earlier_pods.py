"""Pods of earlier leases, and pods that another scheduler takes over."""

import json
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from tests.engines.kubernetes.engine.running_engine import DONE, Cluster
from tests.engines.kubernetes.fake_api import OOM_KILLED
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_the_end_of_an_earlier_pod_is_not_that_of_the_task(cluster):
    """It went on for a while on a node that had fallen silent."""
    key, earlier, first = cluster.started()
    second = cluster.later_lease(key, earlier)
    name = cluster.run(second)
    cluster.states[key] = TaskInstanceState.RUNNING
    cluster.api.set_status(first, DONE)
    cluster.until(lambda: cluster.pod(earlier) is None)
    assert key not in cluster.reported
    assert cluster.look(second) is Liveness.ALIVE
    cluster.succeed(key, name)


def test_an_earlier_pod_that_is_gone_is_not_taken_for_one_that_is_still_to_be_made(cluster, monkeypatch):
    """Pods are made one by one, or later where the cluster has too much to do."""
    key, earlier, first = cluster.started()
    site, answers = cluster.engine.cluster.adapters[0], []
    is_of_earlier_lease = site.is_of_earlier_lease
    monkeypatch.setattr(
        site,
        "is_of_earlier_lease",
        lambda *arguments: answers.append(is_of_earlier_lease(*arguments)) or answers[-1],
    )
    monkeypatch.setattr(site.executor, "create_pods_after", datetime.fromisoformat("2100-01-01"))
    second = cluster.later_lease(key, earlier)
    cluster.engine.heartbeat()
    cluster.states[key] = TaskInstanceState.QUEUED
    cluster.api.set_status(first, {"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.api.drop("pods", first, "default")
    eventually(lambda: site.view.deleted.get(earlier.id))
    eventually(lambda: cluster.engine.heartbeat() or answers)
    assert set(answers) == {True}
    assert {state for state, _ in cluster.engine.collect().values()} <= {TaskInstanceState.QUEUED}
    site.executor.create_pods_after = None
    name = cluster.made(second)["metadata"]["name"]
    cluster.api.bind(name, "gpu-1")
    cluster.succeed(key, name)


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


def test_a_pod_of_an_earlier_lease_that_is_killed_for_its_memory_says_nothing_of_the_present_one(cluster, monkeypatch):
    key, earlier, first = cluster.started()
    site = cluster.engine.cluster.adapters[0]
    monkeypatch.setattr(site.executor.kube_config, "delete_worker_pods_on_failure", True)
    second = cluster.later_lease(key, earlier)
    name = cluster.run(second)
    cluster.api.set_status(first, OOM_KILLED)
    eventually(lambda: cluster.status(earlier).termination_cause is not None)
    cluster.until(lambda: cluster.pod(earlier) is None)
    assert key not in cluster.reported
    assert (cluster.status(second).termination_cause, cluster.look(second)) == (None, Liveness.ALIVE)
    cluster.succeed(key, name)


def test_another_scheduler_takes_over_the_pod_and_makes_no_second_one(cluster):
    key, lease, name = cluster.started()
    heir = KubernetesEngine(32)
    cluster.begin(heir, "heir")
    try:
        cluster.hand_over(engine=heir, lease=lease, name=key.task_id)
        heir.heartbeat()
        eventually(lambda: cluster.api.pods()[0]["metadata"]["labels"]["airflow-worker"] == "heir")
        assert len(cluster.api.pods()) == 1
        cluster.api.set_status(name, DONE)
        beside = Cluster(cluster.api, heir)
        assert beside.ends(key)[0] == TaskInstanceState.SUCCESS
    finally:
        heir.end()


def test_a_pod_that_was_made_without_an_answer_is_made_once(cluster, monkeypatch):
    """A frozen server reads the calls of the outage when it goes on."""
    key, lease = cluster.hand_over()
    cluster.api.lost_answers = 1
    cluster.engine.heartbeat()
    eventually(lambda: cluster.engine.executor.calls.problem)
    eventually(lambda: cluster.beat() or cluster.engine.executor.calls.problem is None)
    cluster.until(lambda: cluster.look(lease, "queued") is Liveness.ALIVE)
    for _ in range(3):
        cluster.beat()
    assert [pod["metadata"]["labels"][LEASE_LABEL] for pod in cluster.api.pods()] == [lease.id]
    assert key in cluster.engine.executor.running


def test_a_pod_that_a_dead_scheduler_made_unseen_is_taken_over(cluster):
    """The heir has no list that shows the pod, and sends one of the same name."""
    key, lease, name = cluster.started()
    site = cluster.engine.cluster.adapters[0]
    cluster.until(lambda: site.executor.pods.unseen.is_made(lease.id))  # the dead scheduler has no call on its way
    site.handed_over.clear()
    site.executor.running.clear()
    workload, _ = cluster.placed(lease=lease, name=key.task_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.view, "pods", dict)
        patch.setattr(site.executor, "job_id", "heir")
        cluster.engine.hand_over(workload, lease, cluster.workers["gpu-1"])
        eventually(
            lambda: cluster.engine.heartbeat() or cluster.pod(lease)["metadata"]["labels"]["airflow-worker"] == "heir"
        )
    assert [pod["metadata"]["name"] for pod in cluster.api.pods()] == [name]


def test_the_pods_of_a_dead_scheduler_are_listed_with_renewed_credentials(cluster, monkeypatch):
    config = Path(os.environ["AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE"])
    before = config.read_text()
    renewed = json.loads(before)
    renewed["users"][0]["user"] = {"token": "new"}
    task = SimpleNamespace(queued_by_job_id=7, key="of another scheduler")
    assert cluster.engine.try_adopt([task]) == [task]
    try:
        config.write_text(json.dumps(renewed))
        cluster.api.token = "new"
        # it has no pod, which the cluster has said; a refused watch may count as an outage for a moment
        eventually(lambda: cluster.engine.try_adopt([task]) == [task])
    finally:
        cluster.api.token = None
        config.write_text(before)
