"""Where the clusters are, and clients for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
from kubernetes.client import Configuration, CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster among several by an Airflow connection, or the one of ``[kubernetes_executor]``."""

    site: str | None = None
    conn_id: str | None = None

    def connect(self) -> CoreV1Api:
        """A client with the credentials as they are now."""
        return get_kube_client() if self.conn_id is None else client_from_connection(self.read())

    def read(self) -> Mapping[str, Any]:
        """What the connection says, by the names of its fields.

        :raises SettingsError: it says of no cluster
        """
        assert self.conn_id is not None
        extras = KubernetesHook.get_connection(self.conn_id).extra_dejson
        told = {name.removeprefix("extra__kubernetes__"): value for name, value in extras.items()}
        if not any(told.get(name) for name in ("in_cluster", "kube_config_path", "kube_config")):
            raise SettingsError(
                f"the cluster {self.site} by the connection {self.conn_id}",
                found="no cluster in it",
                remedy="Give it kube_config_path, kube_config or in_cluster",
            )
        return told


def client_from_connection(told: Mapping[str, Any]) -> CoreV1Api:
    """A client for what a connection says. Reads no connection itself, so that a forked process may make one."""
    config = told.get("kube_config")
    return KubernetesHook(
        conn_id=None,
        kubernetes_conn_id=None,
        client_configuration=Configuration(),  # of its own: the default is shared by all clients of the process
        cluster_context=told.get("cluster_context") or None,
        config_file=told.get("kube_config_path") or None,
        config_dict=json.loads(config) if isinstance(config, str) and config else config or None,
        in_cluster=bool(told.get("in_cluster")) or None,
        disable_verify_ssl=bool(told.get("disable_verify_ssl")) or None,
    ).core_v1_client
