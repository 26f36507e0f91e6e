"""A running engine that the tests of a file share."""

import pytest
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_utils import ResourceVersion

from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.watch import cluster_view
from tests.engines.kubernetes.engine.running_engine import Cluster
from tests.engines.kubernetes.fake_api import a_node, executor_options, running_api


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with running_api() as (api, host), pytest.MonkeyPatch.context() as patch:
        for name, value in executor_options(host, tmp_path_factory.mktemp("kube")).items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__HETERO__KUBERNETES_PRIORITY_CLASSES", '{"high": "gpu-high"}')
        states = {}
        # Airflow's database is not of this test
        patch.setattr(KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: states.get(key))
        patch.setattr(cluster_view, "NODE_GRACE_S", 0)  # else the outage of one test is that of the next
        api.have_claims("gpu.nvidia.com")
        api.put("nodes", a_node("gpu-1"))
        # what KubernetesExecutor has read from another cluster, with a namespace of the same name
        patch.setitem(ResourceVersion().resource_version, "default", "1000000")
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
