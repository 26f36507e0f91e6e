"""Pods that are sent again. The tests of the engine send them for real."""

import pytest
from kubernetes.client import ApiException

from hetero_airflow.engines.kubernetes.pods.pod_creation import make_pod, pod_name
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL, SEAL_ANNOTATION
from tests.engines.kubernetes.fake_api import a_pod, connect

TASK = {"dag_id": "d", "task_id": "t", "run_id": "r", "try_number": "1"}
SENT = {"apiVersion": "v1", "kind": "Pod", **a_pod("p", annotations=TASK)}
OURS = {"metadata": {"labels": {"airflow-worker": "7"}}}


def test_a_run_has_one_name_until_its_pod_has_ended():
    first = pod_name("dag-task-abcdefgh", "run", "")
    assert first == pod_name("dag-task-ijklmnop", "run", "")
    assert first.startswith("dag-task-")
    assert len({first, pod_name("dag-task-abcdefgh", "run", first), pod_name("dag-task-abcdefgh", "later", "")}) == 3


def test_a_pod_that_is_there_is_taken_over(api):
    uid = make_pod(connect(api), SENT, OURS).metadata.uid
    again = make_pod(connect(api), SENT, OURS)
    assert (again.metadata.uid, again.metadata.labels["airflow-worker"]) == (uid, "7")


@pytest.mark.parametrize(
    "present",
    [
        {"annotations": TASK | {"try_number": "2"}},
        {"annotations": {}},
        {"annotations": TASK, "labels": {LEASE_LABEL: "l"}},
        {"annotations": TASK | {SEAL_ANNOTATION: "forged"}},
    ],
)
def test_a_pod_of_another_task_or_lease_is_not_taken_over(api, present):
    api.put("pods", a_pod("p", **present))
    with pytest.raises(ApiException, match="409"):
        make_pod(connect(api), SENT, OURS)
