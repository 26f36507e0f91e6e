"""What a device request adds to a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import claim_template, is_claimable
from hetero_airflow.engines.kubernetes.names import byte_quantity, is_label_value
from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.resources import CPU, TAINTS, resource_of, vendor_of
from hetero_airflow.engines.kubernetes.selectors import node_conditions
from hetero_airflow.engines.kubernetes.selectors.affinity import Terms, all_of
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import Alternative, DeviceRequest

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REQUEST_ANNOTATION = "hetero-airflow/request"
UNCHECKED_ANNOTATION = "hetero-airflow/unchecked"
"""Conditions of the request that don't concern nodes, such as the software of the image."""
LEFT_OUT_ANNOTATION = "hetero-airflow/left-out"
"""Later alternatives of the request, which the pod does not ask for."""

NO_DEVICES = MappingProxyType({"NVIDIA_VISIBLE_DEVICES": "void"})
"""If NVIDIA's runtime is a node's default, an image that sets ``all`` would see every GPU of the node
(container-toolkit, "Environment Variables")."""


@dataclass(frozen=True, slots=True)
class PodParts:
    """What a pod needs to run on the requested devices and on nothing else."""

    amounts: Mapping[str, str]
    """Resource → quantity, both as request and as limit of the container."""
    terms: Terms
    tolerated: tuple[str, ...] = ()
    """Keys of tolerated taints."""
    priority_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    claim: dict[str, Any] | None = None
    """The ResourceClaimTemplate for the devices; it must exist before the pod."""


def pod_parts(request: DeviceRequest, options: ClusterOptions, queue: str | None = None) -> PodParts:
    """The parts for the first alternative of the request. A pod can ask for the resources of only one.

    :param queue: Kueue's LocalQueue
    :raises RequestError: a pod can't ask for it

    >>> parts = pod_parts(DeviceRequest.parse("nvidia:2", quota={"cpus": 4}), ClusterOptions())
    >>> dict(parts.amounts)
    {'nvidia.com/gpu': '2', 'cpu': '4'}
    """
    alternative = request.alternatives[0]
    labels = node_conditions.label_terms(alternative.labels)
    amounts: dict[str, str]
    tolerated: tuple[str, ...]
    environment: Mapping[str, str]
    if alternative.kind == CPU:
        device = node_conditions.cpu_terms(alternative)
        amounts, tolerated, environment = {}, (), NO_DEVICES
    else:
        resource = resource_of(alternative, options.resources)
        is_specific = resource.is_model_specific
        device = node_conditions.device_terms(alternative, resource.vendor, is_model_specific=is_specific)
        amounts, environment = {resource.name: str(alternative.count)}, {}
        tolerated = tuple(dict.fromkeys((*TAINTS.get(resource.vendor, ()), resource.name)))
    return PodParts(
        amounts={**amounts, **_host_amounts([alternative])},
        terms=all_of(labels, device),
        tolerated=tolerated,
        priority_class=options.priority_classes.get(request.priority),
        labels=_queue_label(queue),
        annotations=_annotations(request, [alternative]),
        environment=environment,
    )


def claim_parts(
    request: DeviceRequest, options: ClusterOptions, queue: str | None = None, namespace: str | None = None
) -> PodParts:
    """The parts for a cluster with dynamic resource allocation, where a claim may name alternatives.

    The claim ends before the first alternative that can't be claimed, such as a CPU. A request that begins with a CPU
    needs no claim.

    :raises RequestError: a claim can't ask for it
    """
    first = request.alternatives[0]
    if first.kind == CPU:
        return pod_parts(request, options, queue)
    claimed = [first, *takewhile(is_claimable, request.alternatives[1:])]
    if any(alternative.labels != claimed[0].labels for alternative in claimed):
        raise RequestError(
            "labels",
            "other labels in each alternative",
            found="one pod for all alternatives of a claim",
            remedy="Give the labels once, for the whole request",
        )
    keys = tuple(dict.fromkeys(key for alternative in claimed for key in TAINTS.get(vendor_of(alternative), ())))
    return PodParts(
        amounts=_host_amounts(claimed),
        terms=node_conditions.label_terms(claimed[0].labels),
        tolerated=keys,
        priority_class=options.priority_classes.get(request.priority),
        labels=_queue_label(queue),
        annotations=_annotations(request, claimed),
        claim=claim_template(claimed, namespace),
    )


def _host_amounts(alternatives: Sequence[Alternative]) -> dict[str, str]:
    """Cores and host memory that suffice for each of the alternatives."""
    cores = max((a.count if a.kind == CPU else a.cpus or 0 for a in alternatives), default=0)
    memory = max((a.host_memory or 0 for a in alternatives), default=0)
    return {**({"cpu": str(cores)} if cores else {}), **({"memory": byte_quantity(memory)} if memory else {})}


def _queue_label(queue: str | None) -> dict[str, str]:
    if queue is None:
        return {}
    if not queue or not is_label_value(queue):
        raise RequestError(
            "kueue_queue", queue, found="no valid name of a LocalQueue", remedy="Give its name, at most 63 characters"
        )
    return {QUEUE_LABEL: queue}


def _annotations(request: DeviceRequest, alternatives: Sequence[Alternative]) -> dict[str, str]:
    annotations = {REQUEST_ANNOTATION: str(request)}
    texts = dict.fromkeys(
        text
        for a in alternatives
        for text in node_conditions.unchecked_conditions(a, CPU if a.kind == CPU else a.vendor or "nvidia")
    )
    left_out = " or ".join(map(str, request.alternatives[len(alternatives) :]))
    optional = {UNCHECKED_ANNOTATION: ", ".join(texts), LEFT_OUT_ANNOTATION: left_out}
    return annotations | {name: text for name, text in optional.items() if text}
