"""Templates of claims in a cluster, made before the pods that need them.

That of a `DevicePodOperator` is removed with its pod. Those of leases name devices of a node, serve all leases of these
devices, and are removed with the node.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kubernetes.client import (  # type: ignore[import-untyped]
    ApiClient,
    ApiException,
    CoreV1Api,
    ResourceV1Api,
)

from hetero_airflow.engines.kubernetes.calls import ClusterCalls
from hetero_airflow.engines.kubernetes.claims.claim_template import CLAIM_ANNOTATION, asks_for_share, without_sharing
from hetero_airflow.engines.kubernetes.states.pod_state import MAX_MESSAGE
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.errors import RequestError

log = logging.getLogger(__name__)

KNOWN_S = 600.0
"""After this time, a template is made again in case it is gone. The cluster refuses it if it is there."""

_REMEDIES = {
    403: "Let Airflow's service account create, patch and delete resourceclaimtemplates in {}",
    404: "Leave out dra, or use Kubernetes 1.34 or later with a DRA driver",
}


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


def make_claimed(
    client: ApiClient,
    body: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], Any],
    known: "KnownTemplates",
) -> Any:
    """Make the pod of a lease, and before it the template of its claim, if it has one that the cluster may lack.

    Calling it again after no answer makes nothing twice.

    :param body: a pod with the template in its `CLAIM_ANNOTATION`
    :param make: makes the pod and returns it
    :raises ApiException: the cluster refuses the template or the pod
    """
    metadata = body["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    text = annotations.pop(CLAIM_ANNOTATION, None)
    if text is not None:
        template = json.loads(text)
        template["metadata"]["namespace"] = metadata["namespace"]
        try:
            known.create(ClaimClient(client), template)
        except RequestError as error:
            raise (error.__cause__ or error) from None  # the executor knows what to do with the cluster's own answer
    return make({**body, "metadata": {**metadata, "annotations": annotations}})


class KnownTemplates:
    """The templates of leases that a cluster has had a moment ago, so that a task costs no call for one.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen_at: dict[tuple[str, str], float] = {}
        """Namespace and name → when the cluster had it."""

    def create(self, claims: "ClaimClient", template: Mapping[str, Any]) -> None:
        """Create a template that is not known to exist; see `ClaimClient.create`."""
        key, now = (template["metadata"]["namespace"], template["metadata"]["name"]), self._clock()
        if now - self._seen_at.get(key, float("-inf")) < KNOWN_S:
            return
        claims.create(template)
        self._seen_at = {k: at for k, at in self._seen_at.items() if now - at < KNOWN_S} | {key: now}

    def forget(self) -> None:
        """A pod waits in vain for its devices: maybe somebody has deleted its template."""
        self._seen_at = {}


class ClaimClient:
    """Calls a cluster for claims. Each method blocks until the cluster answers."""

    def __init__(self, client: ApiClient) -> None:
        self._api = ResourceV1Api(client)

    def device_classes(self) -> frozenset[str] | None:
        """The names of the cluster's device classes; None if they can't be read."""
        try:
            return frozenset(item.metadata.name for item in self._api.list_device_class().items)
        except ApiException as error:
            if error.status == 404:
                return None  # a cluster without claims, which `create` reports
            log.warning(
                "The cluster's device classes can't be read (%s %s): if one of the request is missing, the pod waits "
                "for ever. Let Airflow's service account list deviceclasses of resource.k8s.io.",
                error.status,
                error.reason,
            )
            return None

    def create(self, template: Mapping[str, Any]) -> None:
        """Create the template of a pod's claim, unless it exists.

        A cluster that knows no shared devices refuses the condition on them. Then it has none, and the condition is
        left out.

        :raises RequestError: the cluster has no claims, or the account may not make them
        :raises ApiException: any other refusal
        """
        try:
            self._create(template)
        except ApiException as error:
            if error.status != 422 or "allowMultipleAllocations" not in str(error.body):
                raise
            if asks_for_share(template):
                raise RequestError(
                    "share",
                    "a share of a device by a claim",
                    found="a cluster without shared devices",
                    remedy="Ask for a whole device, or use Kubernetes 1.36 (1.34 with DRAConsumableCapacity)",
                ) from error
            self._create(without_sharing(template))

    def _create(self, template: Mapping[str, Any]) -> None:
        namespace = template["metadata"]["namespace"]
        try:
            self._api.create_namespaced_resource_claim_template(namespace, template)
        except ApiException as error:
            if error.status == 409:
                return
            if error.status not in _REMEDIES:
                raise
            found = f"the answer {error.status} ({error.reason})"
            raise RequestError("dra", True, found=found, remedy=_REMEDIES[error.status].format(namespace)) from error

    def set_owner(self, template: Mapping[str, Any], pod: Any) -> bool:
        """Let the cluster remove a template together with a pod. Returns whether it will.

        :param pod: a ``V1Pod`` that the cluster made
        """
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        return self._try(
            self._api.patch_namespaced_resource_claim_template, template, {"metadata": {"ownerReferences": [owner]}}
        )

    def delete(self, template: Mapping[str, Any]) -> bool:
        """Delete a template; a missing one is no error. Returns whether it is gone."""
        return self._try(self._api.delete_namespaced_resource_claim_template, template)

    def _try(self, call: Any, template: Mapping[str, Any], *body: Any) -> bool:
        metadata = template["metadata"]
        try:
            call(metadata["name"], metadata["namespace"], *body)
        except ApiException as error:
            if error.status == 404:
                return True
            log.warning(
                "The claim template %s/%s stays (%s %s). Delete it when its pod has ended.",
                metadata["namespace"],
                metadata["name"],
                error.status,
                error.reason,
            )
            return False
        return True
