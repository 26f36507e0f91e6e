"""Quotas that refuse the claims of pods. The pod is made, and waits for its claim; only an event of it tells why."""

import re
from functools import partial
from typing import Any

from kubernetes.client import CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.calls import ClusterCalls
from hetero_airflow.engines.kubernetes.states.pod_state import MAX_MESSAGE
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod

_REASON = "FailedResourceClaimCreation"
"""kubernetes/kubernetes, pkg/controller/resourceclaim/controller.go, `syncPod`: the event is the pod's. Its message is
``PodResourceClaim hetero-devices: create ResourceClaim …: resourceclaims.resource.k8s.io "…" is forbidden: …``."""

_QUOTA = re.compile(r"exceeded quota: .*", re.DOTALL)
"""staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go, `CheckRequest`: ``exceeded quota:
gpus, requested: count/resourceclaims.resource.k8s.io=1, used: …=1, limited: …=1``."""

_MAX_REFUSALS = 10_000
"""Number of refusals that are remembered."""


class ClaimRefusals:
    """Only the scheduler's loop may use it.

    :param calls: to the cluster
    """

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls
        self._texts: dict[str, str] = {}

    def look(self, pod: LeasedPod) -> None:
        """Read once what refuses the claim of a pod."""
        query = {"field_selector": f"involvedObject.uid={pod.uid},reason={_REASON}"}

        def read(api: CoreV1Api) -> list[Any]:
            return list(api.list_namespaced_event(pod.namespace, **query).items)

        self._calls.put(("refusals", pod.uid), read, partial(self._note, pod.lease_id), again_after_s=float("inf"))

    def text(self, lease_id: str) -> str:
        """The quota that refuses the claim of a lease, with its figures; empty if none is known to."""
        return self._texts.get(lease_id, "")

    def _note(self, lease_id: str, answer: Any) -> None:
        messages = [] if isinstance(answer, Exception) else [event.message or "" for event in answer]
        quotas = [match.group()[:MAX_MESSAGE] for match in map(_QUOTA.search, messages) if match]
        if quotas:
            self._texts[lease_id] = quotas[-1]
            if len(self._texts) > _MAX_REFUSALS:
                del self._texts[next(iter(self._texts))]
