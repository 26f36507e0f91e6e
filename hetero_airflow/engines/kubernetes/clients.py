"""Addresses of clusters, and clients for them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
from kubernetes.client import (  # type: ignore[import-untyped]
    ApiClient,
    ApiException,
    Configuration,
    CoreV1Api,
)
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.silence import Silence
from hetero_airflow.errors import SettingsError

CALL_LIMIT_S = (2.0, 3.0)
"""Most time to connect to a cluster, and to wait for each part of its answer, in the scheduler's loop."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster that an Airflow connection names, or the one of ``[kubernetes_executor]``."""

    site: str | None = None
    conn_id: str | None = None

    def connect(self) -> CoreV1Api:
        """A client with the current credentials."""
        return get_kube_client() if self.conn_id is None else client_from_connection(self.read())

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
    return KubernetesHook(
        conn_id=None,
        kubernetes_conn_id=None,
        client_configuration=Configuration(),  # the default one is shared by all clients of the process
        cluster_context=connection.get("cluster_context") or None,
        config_file=connection.get("kube_config_path") or None,
        config_dict=json.loads(config) if isinstance(config, str) and config else config or None,
        in_cluster=bool(connection.get("in_cluster")) or None,
        disable_verify_ssl=bool(connection.get("disable_verify_ssl")) or None,
    ).core_v1_client


class OneTryClient(ApiClient):  # type: ignore[misc]
    """Calls a cluster once and with a time limit, and not at all just after it did not answer.

    KubernetesExecutor's own client has no time limit, and tries ten times more.
    """

    def __init__(self, configuration: Configuration, silence: Silence) -> None:
        configuration = copy.copy(configuration)
        configuration.retries = False
        super().__init__(configuration)
        self._silence = silence

    def call_api(self, *arguments: Any, **options: Any) -> Any:
        """Call the cluster.

        :raises HTTPError: it does not answer
        """
        if self._silence.is_on:
            raise HTTPError("The cluster has not answered the last call; it is not called for some seconds")
        try:
            answer = super().call_api(*arguments, **(options | {"_request_timeout": CALL_LIMIT_S}))
        except ApiException:  # an answer, too
            self._silence.note_answer()
            raise
        except (HTTPError, OSError) as error:
            self._silence.note_failure(error)
            raise
        self._silence.note_answer()
        return answer
