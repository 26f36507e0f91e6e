"""Addresses of clusters, and clients for them."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.client import ApiClient, Configuration, CoreV1Api, VersionApi  # type: ignore[import-untyped]
from kubernetes.config import load_incluster_config  # type: ignore[import-untyped]

from hetero_airflow.errors import SettingsError

CALL_LIMIT_S = (2.0, 3.0)
"""Most time to connect to a cluster, and to wait for each part of its answer: far below the lease time."""

THREAD_CALL_LIMIT_S = (2.0, 15.0)
"""The same for calls for which nothing waits. An admission webhook alone may take 10 s, its default limit."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster that an Airflow connection names, or the one of ``[kubernetes_executor]``."""

    site: str | None = None
    conn_id: str | None = None

    def read(self) -> Mapping[str, Any]:
        """The fields of the connection.

        :raises SettingsError: it names no cluster
        """
        assert self.conn_id is not None
        extras = KubernetesHook.get_connection(self.conn_id).extra_dejson
        fields = {name.removeprefix("extra__kubernetes__"): value for name, value in extras.items()}
        if not any(fields.get(name) for name in ("in_cluster", "kube_config_path", "kube_config")):
            raise SettingsError(
                f"the cluster {self.site} from the connection {self.conn_id}",
                found="no cluster in the connection",
                remedy="Set kube_config_path, kube_config or in_cluster in the connection",
            )
        return fields


def client_from_connection(connection: Mapping[str, Any]) -> CoreV1Api:
    """A client from the fields of a connection. Reads no connection itself, so a forked process may call it."""
    config = connection.get("kube_config")
    if connection.get("in_cluster"):
        configuration = Configuration()  # the hook would load the default one, and use this one
        load_incluster_config(configuration)
        configuration.verify_ssl = not connection.get("disable_verify_ssl")
        return CoreV1Api(ApiClient(configuration))
    return KubernetesHook(
        conn_id=None,
        kubernetes_conn_id=None,
        client_configuration=Configuration(),  # the default one is shared by all clients of the process
        cluster_context=connection.get("cluster_context") or None,
        config_file=connection.get("kube_config_path") or None,
        config_dict=json.loads(config) if isinstance(config, str) and config else config or None,
        disable_verify_ssl=bool(connection.get("disable_verify_ssl")) or None,
    ).core_v1_client


def probe(client: CoreV1Api) -> None:
    """Ask a cluster for its version: any user may do that.

    :raises HTTPError: it does not answer
    :raises ApiException: it refuses the credentials
    """
    VersionApi(client.api_client).get_code(_preload_content=False, _request_timeout=CALL_LIMIT_S)


def one_try_client(client: CoreV1Api, limit_s: tuple[float, float] | None = None) -> CoreV1Api:
    """The client without further tries, and with a time limit for each call if one is given."""
    return CoreV1Api(OneTryClient(client.api_client.configuration, limit_s))


def close(client: CoreV1Api) -> None:
    """Close the connections of a client."""
    client.api_client.rest_client.pool_manager.clear()


class OneTryClient(ApiClient):  # type: ignore[misc]
    """Calls a cluster once. The official client tries three times more, with a warning for each.

    :param limit_s: most time to connect, and to wait for each part of an answer; None for that of each call
    """

    def __init__(self, configuration: Configuration, limit_s: tuple[float, float] | None = None) -> None:
        configuration = copy.copy(configuration)
        configuration.retries = False
        super().__init__(configuration)
        self._limit_s = limit_s

    def call_api(self, *arguments: Any, **options: Any) -> Any:
        """Call the cluster."""
        limit = {} if self._limit_s is None else {"_request_timeout": self._limit_s}
        return super().call_api(*arguments, **(options | limit))
