"""Tasks without a device, while the cluster gives no answer, or refuses some calls for a while."""

import time

import pytest
from airflow.utils.state import TaskInstanceState

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _recovered(cluster):
    yield
    cluster.api.refusals.clear()
    cluster.api.post_status = None
    cluster.until(lambda: cluster.engine.executor.calls.problem is None)


def args_of(pod):
    """What the pod's container runs, with the task's token."""
    return pod["spec"]["containers"][0]["args"][-1].replace(" ", "")


def end(cluster, key):
    """Let the pod of a task succeed."""
    (pod,) = cluster.until(lambda: cluster.pods_of(key))
    cluster.succeed(key, pod["metadata"]["name"])


def test_a_pod_that_was_made_without_an_answer_is_made_once(cluster):
    cluster.api.requests.clear()
    cluster.api.lost_answers = 1
    key = cluster.plain()
    cluster.until(lambda: [method for method, _, _ in cluster.api.requests].count("POST") == 2)
    cluster.until(lambda: cluster.engine.executor.calls.problem is None)
    assert len(cluster.pods_of(key)) == 1
    end(cluster, key)


def test_a_task_that_comes_again_in_the_same_try_gets_a_pod_of_its_own(cluster):
    """After it was rescheduled or deferred. The pod from before may still be there."""
    workload, _ = cluster.placed()
    workload.ti.executor_config = {}
    for number, token in enumerate(("first", "second"), start=1):
        cluster.engine.hand_over_unplaced(workload.model_copy(update={"token": token}))
        cluster.until(lambda number=number: len(cluster.pods_of(workload.key)) == number)


def test_tasks_that_were_not_sent_before_an_outage_wait_with_the_same_try(cluster):
    cluster.api.post_status = 503
    keys = [cluster.plain() for _ in range(3)]
    cluster.until(lambda: cluster.engine.executor.calls.problem)
    for _ in range(3):
        cluster.beat()
    assert not cluster.reported.keys() & set(keys)
    cluster.api.post_status = None
    for key in keys:
        end(cluster, key)


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize("make", ["plain", "leased"])
def test_a_pod_that_the_cluster_refuses_for_a_moment_delays_no_other(cluster, monkeypatch, caplog, status, make):
    monkeypatch.setattr(cluster.engine.executor, "task_publish_max_retries", -1)
    name = f"odd{status}"
    cluster.api.refusals[f"d-{name}"] = (status, {"Retry-After": "1"})
    key = cluster.plain(name=name) if make == "plain" else cluster.hand_over(name=name)[0]
    posts = len(cluster.api.requests)
    cluster.until(lambda: any(method == "POST" for method, _, _ in cluster.api.requests[posts:]))
    for other in [cluster.plain(), cluster.plain()]:
        cluster.until(lambda other=other: cluster.pods_of(other))
    assert cluster.engine.executor.calls.problem is None
    cluster.api.refusals.clear()
    cluster.until(lambda: cluster.pods_of(key))
    assert time.monotonic() - cluster.api.refused_at >= 1, "as the cluster has asked"
    assert key not in cluster.reported
    assert caplog.text.count(f"can't be made now ({status} ") == 1, "it is said once"


def test_a_pod_that_is_refused_more_often_than_airflow_is_configured_for_fails_its_task(cluster):
    cluster.api.refusals["d-broken"] = (500, {})
    key = cluster.plain(name="broken")
    assert cluster.ends(key)[0] == TaskInstanceState.FAILED, "task_publish_max_retries is 0"


@pytest.mark.parametrize("case", ["unsent", "made without an answer", "waiting for a node"])
def test_a_task_that_airflow_revokes_and_queues_again_has_one_pod(cluster, case):
    """Airflow revokes a task that is queued for longer than ``task_queued_timeout``, and gives it another token."""
    cluster.api.post_status = 503 if case == "unsent" else None
    cluster.api.lost_answers = int(case == "made without an answer")
    workload, _ = cluster.placed()
    workload.ti.executor_config = {}
    cluster.engine.hand_over_unplaced(workload.model_copy(update={"token": "first"}))
    if case == "waiting for a node":
        cluster.until(lambda: cluster.pods_of(workload.key))
    else:
        cluster.until(lambda: cluster.engine.executor.calls.problem)
    cluster.engine.withdraw(workload.key)
    cluster.engine.hand_over_unplaced(workload.model_copy(update={"token": "second"}))
    cluster.api.post_status = None
    cluster.until(lambda: "second" in "".join(map(args_of, cluster.pods_of(workload.key))))
    marker = cluster.plain()
    cluster.until(lambda: cluster.pods_of(marker))
    (pod,) = cluster.pods_of(workload.key)
    assert '"token":"second"' in args_of(pod)
    assert workload.key not in cluster.reported
    end(cluster, workload.key)
