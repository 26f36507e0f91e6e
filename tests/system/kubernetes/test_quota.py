"""A namespace whose quota is used up: a real API server refuses its pods.

The kubelet is simulated, as in the other tests of this folder.
"""

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import Liveness
from tests.system.kubernetes.leasing import ENDS, leasing
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

QUOTA = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}


@pytest.fixture
def one_gpu(nodes):
    """What the namespace may have of the two."""
    nodes.add("gpu-1")
    nodes.api.create_namespaced_resource_quota("airflow", QUOTA)
    eventually(lambda: nodes.api.read_namespaced_resource_quota("gpus", "airflow").status.used)
    yield nodes
    nodes.api.delete_namespaced_resource_quota("gpus", "airflow")


def test_a_task_beyond_the_quota_fails_in_the_servers_words(one_gpu, plane, tmp_path):
    with leasing(plane, tmp_path) as bench:
        key, lease = bench.hand_over(slots=2)
        state, info = bench.end(key)
        assert (state, "exceeded quota: gpus" in str(info)) == (TaskInstanceState.FAILED, True)
        assert bench.look(lease, "failed") is Liveness.GONE


def test_where_it_is_to_wait_it_waits(one_gpu, plane, tmp_path):
    with leasing(plane, tmp_path, AIRFLOW__KUBERNETES_EXECUTOR__TASK_PUBLISH_MAX_RETRIES="-1") as bench:
        key, lease = bench.hand_over(slots=2)
        for _ in range(5):
            bench.engine.heartbeat()
            assert bench.engine.collect().get(key, (None,))[0] not in ENDS
        assert (bench.pod(lease), bench.look(lease, "queued")) == (None, Liveness.UNKNOWN)
        one_gpu.api.patch_namespaced_resource_quota(
            "gpus", "airflow", {"spec": {"hard": {"requests.nvidia.com/gpu": "2"}}}
        )
        bench.bound(lease)
