"""The ``pod_override`` with which KubernetesExecutor makes a pod for a lease. Pure.

The plan chooses the node and the number of devices. The pod is bound to that node and asks for that number. The node's
device plugin chooses the devices and mounts no others, so the ids in a lease are slots of the node.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import (
    CLAIM_ANNOTATION,
    CLASS_KEY,
    lease_template,
)
from hetero_airflow.engines.kubernetes.names import byte_quantity
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import NO_DEVICES, PodParts
from hetero_airflow.engines.kubernetes.resources import TAINTS
from hetero_airflow.engines.kubernetes.selectors.affinity import ALWAYS
from hetero_airflow.model.device import Device
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import Priority
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import MILLI_PER_DEVICE

LEASE_LABEL = "hetero-airflow/lease"
DEVICES_ANNOTATION = "hetero-airflow/devices"
"""Ids of the leased slots, separated by commas."""
SEAL_ANNOTATION = "hetero-airflow/seal"
"""The signature of this Airflow over a pod's lease, namespace and name. Anybody can copy a label."""
_PURPOSE = "pod/1"

_EMPTY_POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "base"}]}}
_REPLACED_FIELDS = ("affinity", "tolerations", "priorityClassName")
"""For these fields an override replaces the template's value instead of adding to it."""


def lease_parts(lease: Lease, worker: Worker, node_uid: str, priority_class: str | None = None) -> PodParts:
    """What a pod needs to run on the devices of a lease.

    :param node_uid: the cluster's id of the worker's node
    """
    devices = {device.id: device for device in worker.devices}
    amounts: dict[str, str] = {}
    vendors: dict[str, None] = {}
    claimed: list[Device] = []
    for claim in lease.claims:
        if devices[claim.device_id].kind == "cpu":
            cores = {"cpu": str(claim.share_milli // MILLI_PER_DEVICE)} if claim.share_milli >= MILLI_PER_DEVICE else {}
            memory = {"memory": byte_quantity(claim.memory_bytes)} if claim.memory_bytes else {}
            amounts |= cores | memory
            continue
        vendors[devices[claim.device_id].vendor] = None
        if CLASS_KEY in devices[claim.device_id].details:
            claimed.append(devices[claim.device_id])
        else:
            resource = resource_of_slot(claim.device_id)
            amounts[resource] = str(int(amounts.get(resource, 0)) + 1)
    resources = [name for name in amounts if "/" in name]
    slots = [claim.device_id for claim in lease.claims if devices[claim.device_id].kind != "cpu"]
    template = lease_template(claimed, worker.host, node_uid) if claimed else None
    return PodParts(
        amounts=amounts,
        terms=ALWAYS,
        tolerated=tuple(dict.fromkeys([*(key for vendor in vendors for key in TAINTS.get(vendor, ())), *resources])),
        priority_class=priority_class,
        labels={LEASE_LABEL: lease.id},
        annotations={
            DEVICES_ANNOTATION: ",".join(slots),
            **({CLAIM_ANNOTATION: json.dumps(template)} if template is not None else {}),
        },
        environment={} if resources or claimed else NO_DEVICES,
        claim=template,
    )


def seal_pod(metadata: Any, lease_id: str, signer: GrantSigner) -> None:
    """Sign that a pod is that of a lease.

    :param metadata: of a ``V1Pod`` that has its name
    """
    seal = signer.seal(_PURPOSE, lease_id, metadata.namespace, metadata.name)
    metadata.annotations = {**(metadata.annotations or {}), SEAL_ANNOTATION: seal}


def sealed_lease(metadata: Mapping[str, Any], signer: GrantSigner) -> str | None:
    """The lease of a pod; None if it has none, or if this Airflow has not made the pod for it.

    :param metadata: of the pod, as JSON
    """
    lease_id = (metadata.get("labels") or {}).get(LEASE_LABEL)
    seal = (metadata.get("annotations") or {}).get(SEAL_ANNOTATION, "")
    is_ours = lease_id and seal and signer.is_seal(seal, _PURPOSE, lease_id, metadata["namespace"], metadata["name"])
    return lease_id if is_ours else None


def lease_override(
    base: Mapping[str, Any], authored: Mapping[str, Any] | None, parts: PodParts, node: str
) -> dict[str, Any]:
    """The override that makes a pod with the parts on the node.

    :param base: the pod without them: the template with the author's override
    :param authored: the author's override
    """
    name = base["spec"]["containers"][0]["name"]
    completed = on_node(complete_pod(_without_template_amounts(base, authored, parts), parts, name), node)
    override = copy.deepcopy(dict(authored)) if authored else copy.deepcopy(_EMPTY_POD)
    spec = override.setdefault("spec", {})
    containers = spec["containers"] = spec.get("containers") or [{"name": "base"}]
    spec |= {name: completed["spec"][name] for name in _REPLACED_FIELDS if name in completed["spec"]}
    if parts.claim is not None:
        spec["resourceClaims"] = completed["spec"]["resourceClaims"]  # KubernetesExecutor keeps no others
    before, after = base["spec"]["containers"][0], completed["spec"]["containers"][0]
    containers[0] |= {name: after[name] for name in ("resources", "securityContext") if name in after}
    present = {variable["name"] for variable in before.get("env") or ()}
    added = [variable for variable in after.get("env") or () if variable["name"] not in present]
    if added:  # an override's variables are added to the template's
        containers[0]["env"] = [*(containers[0].get("env") or []), *added]
    metadata = override["metadata"] = dict(override.get("metadata") or {})
    # these identify the pod, so the author can't change them
    metadata["labels"] = {**(metadata.get("labels") or {}), **parts.labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **parts.annotations}
    if CLAIM_ANNOTATION not in parts.annotations:  # what it holds is made with the scheduler's rights
        metadata["annotations"].pop(CLAIM_ANNOTATION, None)
    return override


def _without_template_amounts(
    base: Mapping[str, Any], authored: Mapping[str, Any] | None, parts: PodParts
) -> dict[str, Any]:
    """The base without the template's amounts of the lease's resources. The lease's and the author's amounts count."""
    pod = copy.deepcopy(dict(base))
    resources_of_author = ((authored or {}).get("spec", {}).get("containers") or [{}])[0].get("resources") or {}
    given_resources = {*(resources_of_author.get("requests") or {}), *(resources_of_author.get("limits") or {})}
    resources = pod["spec"]["containers"][0].get("resources") or {}
    for kind in ("requests", "limits"):
        for name in (parts.amounts.keys() - given_resources) & (resources.get(kind) or {}).keys():
            del resources[kind][name]
    return pod


def on_node(pod: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The pod bound to a node by name, as DaemonSets do. Its other conditions on nodes stay."""
    bound = copy.deepcopy(dict(pod))
    affinity = bound["spec"].setdefault("affinity", {})
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (nodes.get(key) or {}).get("nodeSelectorTerms") or [{}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    nodes[key] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or []), field]} for term in terms]
    }
    return bound


def resource_of_slot(device_id: str) -> str:
    """The resource of a device slot.

    >>> resource_of_slot("nvidia.com/gpu/3")
    'nvidia.com/gpu'
    """
    return device_id.rpartition("/")[0]


def requested_priority(executor_config: Mapping[str, Any], map_index: int | None) -> str:
    """The priority in the request of a task's ``executor_config``; the default if it has none.

    >>> config = {"hetero": {"requests": [{"request": {"priority": "low"}}, {"request": {}}], "stride": 1}}
    >>> requested_priority(config, 0)
    'low'
    """
    packed = executor_config["hetero"]
    entry = packed["requests"][(max(map_index or 0, 0) // packed["stride"]) % len(packed["requests"])]
    priority = (entry.get("request") or entry.get("template") or {}).get("priority")
    return str(priority) if priority in tuple(Priority) else Priority.MEDIUM.value
