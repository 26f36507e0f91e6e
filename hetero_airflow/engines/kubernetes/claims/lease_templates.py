"""The claim templates that were sent to a cluster and that no pod owns, as far as is known."""

from __future__ import annotations

from kubernetes.client import ResourceV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.calls import ClusterCalls
from hetero_airflow.engines.kubernetes.claims.claim_template import lease_template_name


class LeaseTemplates:
    """The cluster removes a template with the pod that owns it. Any other one is deleted at the end of its lease.

    :param calls: to the cluster
    """

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls
        self._sent: dict[str, str] = {}
        """Lease → namespace of its template."""

    def note_sent(self, lease_id: str, namespace: str) -> None:
        """From now on, the cluster may have the template of the lease."""
        self._sent[lease_id] = namespace

    def note_settled(self, lease_id: str) -> None:
        """A pod owns the template, or it is deleted. The thread of calls may use this."""
        self._sent.pop(lease_id, None)

    def delete(self, lease_id: str) -> None:
        """Delete the template of a lease that is over, if no pod owns it. Repeated until the cluster answers."""
        namespace = self._sent.pop(lease_id, None)
        if namespace is None:
            return
        name = lease_template_name(lease_id)
        self._calls.put(
            ("delete template", namespace, name),
            lambda api: ResourceV1Api(api.api_client).delete_namespaced_resource_claim_template(name, namespace),
            is_repeated=True,
        )
