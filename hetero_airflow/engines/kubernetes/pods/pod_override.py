"""The ``pod_override`` by which KubernetesExecutor makes a pod for a lease. Pure.

The decision has chosen the node and how many of its devices; the pod is bound to that node and asks for as many. Which
of them it gets, the node's device plugin chooses, and mounts no others: the ids in a lease are slots of the node.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hetero_airflow.engines.kubernetes.names import byte_quantity
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import NO_DEVICES, PodParts
from hetero_airflow.engines.kubernetes.resources import TAINTS
from hetero_airflow.engines.kubernetes.selectors.affinity import ALWAYS
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import Priority
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import MILLI_PER_DEVICE

LEASE_LABEL = "hetero-airflow/lease"
DEVICES_ANNOTATION = "hetero-airflow/devices"
"""Ids of the leased slots, separated by commas."""

_EMPTY_POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "base"}]}}
_REPLACED_FIELDS = ("affinity", "tolerations", "priorityClassName")
"""What an override says of these replaces what the template says, instead of adding to it."""


def lease_parts(lease: Lease, worker: Worker, priority_class: str | None = None) -> PodParts:
    """What a pod needs so that it runs on what a lease holds."""
    devices = {device.id: device for device in worker.devices}
    amounts: dict[str, str] = {}
    vendors: dict[str, None] = {}
    for claim in lease.claims:
        if devices[claim.device_id].kind == "cpu":
            cores = {"cpu": str(claim.share_milli // MILLI_PER_DEVICE)} if claim.share_milli >= MILLI_PER_DEVICE else {}
            memory = {"memory": byte_quantity(claim.memory_bytes)} if claim.memory_bytes else {}
            amounts |= cores | memory
        else:
            resource = resource_of_slot(claim.device_id)
            amounts[resource] = str(int(amounts.get(resource, 0)) + 1)
            vendors[devices[claim.device_id].vendor] = None
    resources = [name for name in amounts if "/" in name]
    slots = [claim.device_id for claim in lease.claims if devices[claim.device_id].kind != "cpu"]
    return PodParts(
        amounts=amounts,
        terms=ALWAYS,
        tolerated=tuple(dict.fromkeys([*(key for one in vendors for key in TAINTS.get(one, ())), *resources])),
        priority_class=priority_class,
        labels={LEASE_LABEL: lease.id},
        annotations={DEVICES_ANNOTATION: ",".join(slots)},
        environment={} if resources else NO_DEVICES,
    )


def lease_override(
    base: Mapping[str, Any], own: Mapping[str, Any] | None, parts: PodParts, node: str
) -> dict[str, Any]:
    """The override that makes a pod with the parts, on the node.

    :param base: the pod as it would be without this: the template, with the author's override in it
    :param own: the author's override
    """
    name = base["spec"]["containers"][0]["name"]
    done = on_node(complete_pod(_without_template_amounts(base, own, parts), parts, name), node)
    made = copy.deepcopy(dict(own)) if own else copy.deepcopy(_EMPTY_POD)
    spec = made.setdefault("spec", {})
    containers = spec["containers"] = spec.get("containers") or [{"name": "base"}]
    spec |= {name: done["spec"][name] for name in _REPLACED_FIELDS if name in done["spec"]}
    before, after = base["spec"]["containers"][0], done["spec"]["containers"][0]
    containers[0] |= {name: after[name] for name in ("resources", "securityContext") if name in after}
    there = {variable["name"] for variable in before.get("env") or ()}
    added = [variable for variable in after.get("env") or () if variable["name"] not in there]
    if added:  # an override's variables are added to the template's
        containers[0]["env"] = [*(containers[0].get("env") or []), *added]
    metadata = made["metadata"] = dict(made.get("metadata") or {})
    # by these the pod is known: nothing else may be said there
    metadata["labels"] = {**(metadata.get("labels") or {}), **parts.labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **parts.annotations}
    return made


def _without_template_amounts(
    base: Mapping[str, Any], own: Mapping[str, Any] | None, parts: PodParts
) -> dict[str, Any]:
    """The base without the amounts of its template that the lease has too: the lease's count, and the author's."""
    made = copy.deepcopy(dict(base))
    of_author = ((own or {}).get("spec", {}).get("containers") or [{}])[0].get("resources") or {}
    said = {*(of_author.get("requests") or {}), *(of_author.get("limits") or {})}
    resources = made["spec"]["containers"][0].get("resources") or {}
    for kind in ("requests", "limits"):
        for name in (parts.amounts.keys() - said) & (resources.get(kind) or {}).keys():
            del resources[kind][name]
    return made


def on_node(pod: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The pod bound to a node by its name, as DaemonSets do; what else it asks of nodes stays."""
    made = copy.deepcopy(dict(pod))
    affinity = made["spec"].setdefault("affinity", {})
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (nodes.get(key) or {}).get("nodeSelectorTerms") or [{}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    nodes[key] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or []), field]} for term in terms]
    }
    return made


def resource_of_slot(device_id: str) -> str:
    """The resource that a slot is one of.

    >>> resource_of_slot("nvidia.com/gpu/3")
    'nvidia.com/gpu'
    """
    return device_id.rpartition("/")[0]


def requested_priority(executor_config: Mapping[str, Any], map_index: int | None) -> str:
    """The priority in the request that a task's ``executor_config`` has; the usual one where it says none.

    >>> config = {"hetero": {"requests": [{"request": {"priority": "low"}}, {"request": {}}], "stride": 1}}
    >>> requested_priority(config, 0)
    'low'
    """
    packed = executor_config["hetero"]
    entry = packed["requests"][(max(map_index or 0, 0) // packed["stride"]) % len(packed["requests"])]
    said = (entry.get("request") or entry.get("template") or {}).get("priority")
    return str(said) if said in tuple(Priority) else Priority.MEDIUM.value
