"""Credentials that are replaced on disk while a scheduler or a task uses them; the earlier token is then refused.

The kubelet is simulated, as in the other tests of this folder.
"""

import json
from uuid import uuid4

import pytest
from airflow.utils.state import TaskInstanceState
from kubernetes import client
from kubernetes.config import incluster_config

from tests.system.kubernetes.leasing import ACCOUNT, leasing
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Revocable:
    """A token of a service account, written to a file, and its successor.

    :param write: writes a token where it is read
    """

    def __init__(self, plane, account, write):
        self._plane, self._account, self._write = plane, account, write
        self._api = client.CoreV1Api(plane.connect())
        self._secret = f"token-{uuid4()}"
        self._api.create_namespaced_secret("airflow", {"metadata": {"name": self._secret}})
        self._token = plane.token(account, secret=self._secret)
        write(self._token)

    def replace(self):
        """Write another token, and return when the server refuses the first one."""
        self._write(self._plane.token(self._account))
        self._api.delete_namespaced_secret(self._secret, "airflow")
        api = client.VersionApi(self._plane.connect(self._token))
        eventually(lambda: self._is_refused(api))

    def _is_refused(self, api):
        try:
            api.get_code()
        except client.ApiException as error:
            return error.status == 401
        return False


def in_cluster(plane, folder, monkeypatch):
    """Options of a scheduler that runs in the cluster, and what writes its token."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", plane.url.rpartition(":")[2])
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(plane.certificate))
    connection = {"conn_type": "kubernetes", "extra": {"in_cluster": True, "namespace": "airflow"}}
    options = {
        "AIRFLOW_CONN_KUBERNETES_EU": json.dumps(connection),
        "AIRFLOW__HETERO__KUBERNETES_CLUSTERS": json.dumps({"eu": "kubernetes_eu"}),
    }
    return options, (folder / "token").write_text


def kubeconfig(plane, folder, monkeypatch):
    """The same for a scheduler outside the cluster."""
    path = folder / "replaced"
    options = {"AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(path)}
    return options, lambda token: path.write_text(json.dumps(plane.kubeconfig(token)))


@pytest.mark.parametrize(("of", "node"), [(in_cluster, "eu/gpu-1"), (kubeconfig, "gpu-1")])
def test_a_scheduler_uses_credentials_that_are_replaced_on_disk(plane, nodes, tmp_path, monkeypatch, of, node):
    nodes.add("gpu-1")
    options, write = of(plane, tmp_path, monkeypatch)
    token = Revocable(plane, ACCOUNT, write)
    with leasing(plane, tmp_path, **options) as bench:
        key, lease = bench.hand_over(node)
        name = bench.bound(lease)
        token.replace()
        bench.states[key] = TaskInstanceState.SUCCESS
        nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
        assert bench.end(key)[0] == TaskInstanceState.SUCCESS
        _, second = bench.hand_over(node)
        bench.bound(second)
        (adapter,) = bench.engine.cluster.adapters
        eventually(lambda: bench.learn() and adapter.problem is None)
