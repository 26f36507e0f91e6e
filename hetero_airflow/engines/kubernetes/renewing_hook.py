"""Airflow's hook for a cluster, with credentials that may be replaced while a task runs."""

from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.client import ApiClient, ApiException  # type: ignore[import-untyped]


class RenewingHook(KubernetesHook):
    """Reads the credentials again when the cluster refuses them, and makes the refused call again, once."""

    def get_conn(self) -> ApiClient:
        """A client of the cluster."""
        api_client = super().get_conn()
        make_call = api_client.call_api

        def call_api(*arguments: Any, **options: Any) -> Any:
            try:
                return make_call(*arguments, **options)
            except ApiException as error:
                if error.status != 401:
                    raise
                self.log.info("The cluster refuses the credentials; reading them again.")
                renewed = super(RenewingHook, self).get_conn()
                api_client.configuration, api_client.rest_client = renewed.configuration, renewed.rest_client
                return make_call(*arguments, **options)

        api_client.call_api = call_api
        return api_client


def renewing_hook(operator: Any) -> RenewingHook:
    """The hook of a KubernetesPodOperator."""
    return RenewingHook(
        conn_id=operator.kubernetes_conn_id,
        in_cluster=operator.in_cluster,
        config_file=operator.config_file,
        cluster_context=operator.cluster_context,
    )
