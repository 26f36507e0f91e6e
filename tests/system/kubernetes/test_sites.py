"""One of several clusters, reached by an Airflow connection with a token of the scheduler's account.

The kubelet is simulated, as in the other tests of this folder.
"""

import json

import pytest
from airflow.utils.state import TaskInstanceState

from tests.system.kubernetes.leasing import ACCOUNT, leasing


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_task_runs_on_a_node_of_a_site(plane, nodes, tmp_path):
    nodes.add("gpu-1")
    extra = {"kube_config": json.dumps(plane.kubeconfig(plane.token(ACCOUNT))), "namespace": "airflow"}
    connection = json.dumps({"conn_type": "kubernetes", "extra": extra})
    clusters = json.dumps({"eu": "kubernetes_eu"})
    more = {"AIRFLOW_CONN_KUBERNETES_EU": connection, "AIRFLOW__HETERO__KUBERNETES_CLUSTERS": clusters}
    with leasing(plane, tmp_path, **more) as bench:
        key, lease = bench.hand_over("eu/gpu-1")
        name = bench.bound(lease)
        assert bench.pod(lease).spec.node_name == "gpu-1"
        assert bench.workers["eu/gpu-1"].labels["hetero/site"] == "eu"
        bench.states[key] = TaskInstanceState.SUCCESS
        nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
        assert bench.end(key)[0] == TaskInstanceState.SUCCESS
