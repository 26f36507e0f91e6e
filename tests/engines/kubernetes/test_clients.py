import json

import pytest
from kubernetes.client import ApiException, Configuration
from kubernetes.config import incluster_config

from hetero_airflow.engines.kubernetes.clients import ClusterAddress, client_from_connection
from hetero_airflow.engines.kubernetes.renewing_hook import RenewingHook
from hetero_airflow.errors import SettingsError
from tests.engines.kubernetes.fake_api import a_node, kubeconfig, running_api


@pytest.fixture
def connection(monkeypatch):
    def make(name, **extra):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "kubernetes", "extra": extra}))

    return make


def nodes(address):
    return [node.metadata.name for node in client_from_connection(address.read()).list_node().items]


def test_a_connection_has_a_kubeconfig_or_its_path(connection, tmp_path):
    with running_api() as (first_api, one_host), running_api() as (second_api, other_host):
        first_api.put("nodes", a_node("a"))
        second_api.put("nodes", a_node("b"))
        connection("eu", kube_config=json.dumps(kubeconfig(one_host)), namespace="ml")
        (tmp_path / "config").write_text(json.dumps(kubeconfig(other_host)))
        connection("us", kube_config_path=str(tmp_path / "config"))
        eu, us = ClusterAddress("eu", "eu"), ClusterAddress("us", "us")
        assert (nodes(eu), nodes(us), nodes(eu)) == (["a"], ["b"], ["a"])
        assert eu.read()["namespace"] == "ml"


def test_each_client_has_a_configuration_of_its_own(connection, tmp_path):
    first = client_from_connection({"kube_config": kubeconfig("http://one:1")})
    client_from_connection({"kube_config": kubeconfig("http://two:2")})
    assert first.api_client.configuration.host == "http://one:1"


def test_a_connection_without_a_cluster_is_refused(connection):
    connection("empty")
    with pytest.raises(SettingsError, match="Set kube_config_path"):
        ClusterAddress("eu", "empty").read()


def test_a_connection_of_a_scheduler_in_the_cluster_has_its_address_and_token(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name in ("TOKEN", "CERT"):
        (tmp_path / name).write_text(f"the {name}")
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))
    configuration = client_from_connection({"in_cluster": True}).api_client.configuration
    assert (configuration.host, configuration.api_key) == ("https://10.0.0.1:443", {"BearerToken": "bearer the TOKEN"})
    assert (configuration.ssl_ca_cert, configuration.verify_ssl) == (str(tmp_path / "CERT"), True)


def test_a_hook_reads_a_kubeconfig_again_when_its_token_is_refused(tmp_path):
    with running_api() as (api, host):

        def write(token):
            api.token, config = token, kubeconfig(host)
            config["users"][0]["user"] = {"token": token}
            (tmp_path / "config").write_text(json.dumps(config))

        write("first")
        api.put("nodes", a_node("a"))
        hook = RenewingHook(
            conn_id=None,
            client_configuration=Configuration(),  # not the default one of the process, which other tests use
            in_cluster=False,
            config_file=str(tmp_path / "config"),
        )
        cluster = hook.core_v1_client
        for token in ("first", "second"):
            write(token)
            assert [node.metadata.name for node in cluster.list_node().items] == ["a"]
        api.token = "third"
        with pytest.raises(ApiException, match="401"):
            cluster.list_node()
