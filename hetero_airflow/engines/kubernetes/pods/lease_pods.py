"""What `LeasingKubernetesExecutor` asks about the pods of leases."""

from typing import Any, Protocol

from hetero_airflow.engines.kubernetes.claims.claim_client import KnownTemplates
from hetero_airflow.engines.kubernetes.unseen_pods import UnseenPods


class LeasePods(Protocol):
    """What is known about the pods of leases in a cluster."""

    unseen: UnseenPods
    templates: KnownTemplates

    def is_current(self, lease_id: str) -> bool:
        """Whether a lease was handed over and was not withdrawn."""

    def has_pod(self, lease_id: str) -> bool:
        """Whether a lease has a pod that has not ended."""

    def ended_pod_id(self, lease_id: str) -> str:
        """The id of the last pod of a lease that has ended; empty if there is none."""

    def is_of_earlier_lease(self, key: Any, namespace: str, name: str) -> bool:
        """Whether a pod, given by task key, namespace and name, belongs to an earlier lease of the task."""
