"""What a device request adds to a pod."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import claim_template, device_class_of, is_claimable
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
"""Alternatives of the request which the pod does not ask for."""
SHARING_ANNOTATION = "hetero-airflow/sharing"
"""That the pod shares its device, and how."""

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
    """The ResourceClaimTemplate for the devices, without a name; `template_for` gives it to the pod, which needs it."""


def pod_parts(request: DeviceRequest, options: ClusterOptions, queue: str | None = None) -> PodParts:
    """The parts for the first alternative of the request. A pod can ask for the resources of only one.

    :param queue: Kueue's LocalQueue
    :raises RequestError: a pod can't ask for it

    >>> parts = pod_parts(DeviceRequest.parse("nvidia:2", quota={"cpus": 4}), ClusterOptions())
    >>> dict(parts.amounts)
    {'nvidia.com/gpu': '2', 'cpu': '4'}
    """
    alternative = request.alternatives[0]
    labels = node_conditions.worker_terms(alternative)
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
        annotations=_annotations(request, [alternative], map(str, request.alternatives[1:])),
        environment=environment,
    )


def claim_parts(
    request: DeviceRequest,
    options: ClusterOptions,
    queue: str | None = None,
    device_classes: Collection[str] | None = None,
) -> PodParts:
    """The parts for a cluster with dynamic resource allocation, where a claim may name alternatives.

    The claim ends before the first alternative that can't be claimed, such as a CPU. A request that begins with a CPU
    needs no claim.

    :param device_classes: the classes that the cluster has; None if that is unknown. An alternative of another class is
        left out, because it would keep the cluster from allocating any of them.
    :raises RequestError: a claim can't ask for it, or the cluster has no class for it
    """
    first = request.alternatives[0]
    if first.kind == CPU:
        return pod_parts(request, options, queue)
    claimable = [first, *takewhile(is_claimable, request.alternatives[1:])]
    claimed = claimable if device_classes is None else _with_class(claimable, device_classes)
    for name in ("labels", "architecture", "spot"):
        if any(getattr(alternative, name) != getattr(claimed[0], name) for alternative in claimed):
            raise RequestError(
                name,
                f"other values of {name} in each alternative",
                found="one pod for all alternatives of a claim",
                remedy=f"Give {name} once, for the whole request",
            )
    keys = tuple(dict.fromkeys(key for alternative in claimed for key in TAINTS.get(vendor_of(alternative), ())))
    return PodParts(
        amounts=_host_amounts(claimed),
        terms=node_conditions.worker_terms(claimed[0]),
        tolerated=keys,
        priority_class=options.priority_classes.get(request.priority),
        labels=_queue_label(queue),
        annotations=_annotations(request, claimed, _left_out(request, claimable, claimed)),
        claim=claim_template(claimed),
    )


def _with_class(claimable: Sequence[Alternative], device_classes: Collection[str]) -> list[Alternative]:
    claimed = [a for a in claimable if not is_claimable(a) or device_class_of(a) in device_classes]
    if not claimed:
        missing = " or ".join(dict.fromkeys(map(device_class_of, claimable)))
        raise RequestError(
            "device",
            " or ".join(map(str, claimable)),
            found=f"no DeviceClass {missing} in the cluster, which has {', '.join(sorted(device_classes)) or 'none'}",
            remedy="Install the DRA driver of the device, or leave out dra",
        )
    return claimed


def _left_out(
    request: DeviceRequest, claimable: Sequence[Alternative], claimed: Sequence[Alternative]
) -> Iterator[str]:
    for alternative in claimable:
        if alternative not in claimed:
            yield f"{alternative} (the cluster has no DeviceClass {device_class_of(alternative)})"
    yield from map(str, request.alternatives[len(claimable) :])


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


def _annotations(
    request: DeviceRequest, alternatives: Sequence[Alternative], left_out: Iterable[str]
) -> dict[str, str]:
    annotations = {REQUEST_ANNOTATION: str(request)}
    texts = dict.fromkeys(
        text
        for a in alternatives
        for text in node_conditions.unchecked_conditions(a, CPU if a.kind == CPU else a.vendor or "nvidia")
    )
    optional = {
        UNCHECKED_ANNOTATION: ", ".join(texts),
        LEFT_OUT_ANNOTATION: " or ".join(left_out),
        SHARING_ANNOTATION: "cooperative" if any(a.share is not None for a in alternatives) else "",
    }
    return annotations | {name: text for name, text in optional.items() if text}
