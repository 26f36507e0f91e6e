"""A request as a ResourceClaimTemplate (``resource.k8s.io/v1``), for clusters with dynamic resource allocation (DRA).

The limits are those of Kubernetes' validation (pkg/apis/resource/types.go): 8 alternatives and 32 devices in a claim.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_airflow.engines.kubernetes.claims import cel
from hetero_airflow.engines.kubernetes.names import byte_quantity
from hetero_airflow.engines.kubernetes.resources import CPU, DRA_DRIVERS, MIG_CLASS, DraDriver, vendor_of
from hetero_airflow.engines.kubernetes.selectors import node_conditions, products
from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import VENDORS
from hetero_airflow.model.request import Alternative

CLASS_KEY, PIN_KEY, PIN_VALUE_KEY = "device_class", "pin", "pin_value"
"""Keys in the `details` of a slice's device: its DeviceClass, and the attribute and value that a claim names it by."""

UNREAD_KEY = "is_unread"
"""Key in the `details` of a slice's device: true if what its driver says about it is not understood."""

CLAIM_ANNOTATION = "hetero-airflow/claim-template"
"""Holds the template of a lease's pod, from the hand-over until both are sent."""

CLAIM_NAME = "devices"
"""The request's name in the claim, and the end of the template's name."""

POD_CLAIM_NAME = "hetero-devices"
"""The claim's name in the pod, beside the claims of its author."""

_PRODUCT_LABELS = {"nvidia": node_conditions.PRODUCT, "amd": node_conditions.AMD_PRODUCT}

MAX_ALTERNATIVES = 8
MAX_DEVICES = 32
_MAX_EXPRESSION = 10 * 1024

MANAGED_BY = {"app.kubernetes.io/managed-by": "hetero-airflow"}
"""The label of all templates that this package makes."""

_SHARED = {"cel": {"expression": "device.allowMultipleAllocations"}}
_NOT_SHARED = {"cel": {"expression": "!device.allowMultipleAllocations"}}
"""Without this condition, a claim for a whole device may get one that other claims share (KEP-5075)."""


def claim_template(alternatives: Sequence[Alternative]) -> dict[str, Any]:
    """The template for alternatives of accelerators, in order of preference. `template_for` gives it to a pod.

    >>> template = claim_template([Alternative(vendor="nvidia", kind="gpu", count=2)])
    >>> request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    >>> request["deviceClassName"], request["count"]
    ('gpu.nvidia.com', 2)

    :raises RequestError: the vendor's DRA driver does not show a condition, or too many alternatives or devices
    """
    if len(alternatives) > MAX_ALTERNATIVES:
        raise RequestError(
            "device",
            f"{len(alternatives)} alternatives",
            found=f"a limit of {MAX_ALTERNATIVES} in a claim",
            remedy="Name fewer, the best first",
        )
    requests = [device_request(alternative) for alternative in alternatives]
    if len(requests) == 1:
        choice: dict[str, Any] = {"exactly": requests[0]}
    else:
        choice = {"firstAvailable": [{"name": f"choice-{number}", **r} for number, r in enumerate(requests)]}
    return template_of([{"name": CLAIM_NAME, **choice}])


def template_of(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The template for device requests of ``resource.k8s.io/v1``."""
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {}, "spec": spec}


def lease_template(devices: Sequence[Device], node: str, node_uid: str) -> dict[str, Any]:
    """The template for exactly these devices of a node's slices. Leases of the same devices share it.

    The cluster removes it with the node, which owns it.

    :raises RequestError: they are more than a claim can have
    """
    if len(devices) > MAX_DEVICES:
        raise _unsupported("count", len(devices), f"{MAX_DEVICES} devices at most in a claim", "Ask for fewer")
    groups: dict[tuple[str, str], list[Device]] = {}
    for device in devices:
        groups.setdefault((str(device.details[CLASS_KEY]), str(device.details[PIN_KEY])), []).append(device)
    requests = []
    for number, ((device_class, pin), members) in enumerate(groups.items()):
        domain, _, name = pin.rpartition("/")
        driver = members[0].id.partition("/")[0]
        text = cel.is_one_of(driver, domain or driver, name, [member.details[PIN_VALUE_KEY] for member in members])
        exactly = {
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": text}}],
            "allocationMode": "ExactCount",
            "count": len(members),
        }
        requests.append({"name": f"{CLAIM_NAME}-{number}", "exactly": exactly})
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    spec = {"metadata": {"labels": MANAGED_BY}, **template_of(requests)["spec"]}
    digest = hashlib.sha256(json.dumps([owner, spec]).encode()).hexdigest()[:32]
    metadata = {"name": f"hetero-{digest}", "labels": MANAGED_BY, "ownerReferences": [owner]}
    return template_of([]) | {"metadata": metadata, "spec": spec}


def template_for(template: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the name, the namespace and the labels for one pod. The claim has the labels, too.

    >>> made = template_for(template_of([]), {"metadata": {"name": "train-x1", "namespace": "ml"}})
    >>> made["metadata"]["name"], made["metadata"]["namespace"]
    ('train-x1-devices', 'ml')
    """
    metadata = pod.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **MANAGED_BY}
    name = template["metadata"].get("name") or f"{metadata['name']}-{CLAIM_NAME}"
    own_metadata = {"name": name, "namespace": metadata.get("namespace") or "default"}
    return {
        **template,
        "metadata": {**own_metadata, "labels": labels},
        "spec": {**template["spec"], "metadata": {"labels": labels}},
    }


def asks_for_share(template: Mapping[str, Any]) -> bool:
    """Whether it asks for a device that other claims may share."""
    return any(_SHARED in request.get("selectors", ()) for request in _exact_requests(template))


def without_sharing(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template without the condition that a device is not shared, for clusters that know no shared devices."""
    plain = copy.deepcopy(dict(template))
    for request in _exact_requests(plain):
        request["selectors"] = [selector for selector in request.get("selectors", ()) if selector != _NOT_SHARED]
        if not request["selectors"]:
            del request["selectors"]
    return plain


def _exact_requests(template: Mapping[str, Any]) -> list[dict[str, Any]]:
    requests = template["spec"]["spec"]["devices"]["requests"]
    return [exact for request in requests for exact in request.get("firstAvailable") or [request["exactly"]]]


def device_class_of(alternative: Alternative) -> str:
    """The DeviceClass that a claim for a claimable alternative names.

    >>> device_class_of(Alternative(vendor="nvidia", kind="gpu", partition="1g.10gb"))
    'mig.nvidia.com'
    """
    vendor = vendor_of(alternative)
    return MIG_CLASS if alternative.partition and vendor == "nvidia" else DRA_DRIVERS[vendor].device_class


def is_claimable(alternative: Alternative) -> bool:
    """Whether a DRA driver for devices of that vendor and kind is known. CPUs have none.

    >>> [is_claimable(Alternative(kind=kind)) for kind in ("gpu", "npu", "cpu")]
    [True, False, False]
    """
    if alternative.kind == CPU:
        return False
    vendor = vendor_of(alternative)
    driver = DRA_DRIVERS.get(vendor)
    return driver is not None and (alternative.kind or VENDORS.get(vendor)) in driver.kinds


def device_request(alternative: Alternative) -> dict[str, Any]:
    """Class, count and selectors of one alternative.

    :raises RequestError: the vendor's DRA driver does not show a condition
    """
    if not is_claimable(alternative):
        raise _unsupported("device", alternative.device_text, "no known DRA driver", "Leave out DRA")
    if alternative.count > MAX_DEVICES:
        raise _unsupported("count", alternative.count, f"{MAX_DEVICES} devices at most in a claim", "Ask for fewer")
    if alternative.topology is not None and alternative.topology.level.is_within_worker:
        raise _unsupported("topology", alternative.topology, "no attribute that all devices have", "Leave it out")
    vendor = vendor_of(alternative)
    driver = DRA_DRIVERS[vendor]
    expressions = [
        *_device_expressions(alternative, driver, vendor),
        *_software_expressions(alternative, driver, vendor),
    ]
    if any(len(text) > _MAX_EXPRESSION for text in expressions):
        raise _unsupported("device", alternative.device_text, "expressions of 10 KiB at most", "Shorten the request")
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {
        "deviceClassName": device_class_of(alternative),
        "selectors": [*selectors, _NOT_SHARED if alternative.share is None else _SHARED],
        "allocationMode": "ExactCount",
        "count": alternative.count,
        **_capacity_of_share(alternative),
    }


def _capacity_of_share(alternative: Alternative) -> dict[str, Any]:
    """The part of a shared device's memory that a share takes. Without one, the driver's default amount counts."""
    if alternative.share is None or alternative.memory is None or alternative.memory.minimum is None:
        return {}
    return {"capacity": {"requests": {"memory": byte_quantity(alternative.memory.minimum)}}}


def _device_expressions(alternative: Alternative, driver: DraDriver, vendor: str) -> list[str]:
    expressions = [driver.extra] if driver.extra and not alternative.partition else []
    if alternative.partition and vendor == "amd":
        mode = alternative.partition.replace("-", "_")
        expressions.append(cel.equals(driver.domain, "partitionProfile", mode))
    elif alternative.partition:
        if vendor != "nvidia":
            raise _unsupported("partition", alternative.partition, f"no partitions of {vendor}", "Leave it out")
        expressions.append(cel.equals(driver.domain, "profile", alternative.partition))
    if alternative.model:
        expressions.append(_model(alternative.model, driver, vendor))
    if alternative.memory and alternative.share is None:
        if vendor == "google":
            raise _unsupported("memory", alternative.memory, "no memory of TPUs", "Name a model")
        expressions.append(cel.memory_is(driver.domain, alternative.memory))
    return expressions


def _software_expressions(alternative: Alternative, driver: DraDriver, vendor: str) -> list[str]:
    expressions = []
    if alternative.driver:
        if driver.driver is None:
            raise _unsupported("driver", alternative.driver, f"no version of {vendor}'s driver", "Leave it out")
        expressions.append(cel.version_is(driver.domain, driver.driver, "driver", alternative.driver))
    for name, specifier in alternative.runtime.items():
        if name in driver.runtime:
            expressions.append(cel.version_is(driver.domain, driver.runtime[name], f"runtime[{name!r}]", specifier))
    return expressions


def _model(model: str, driver: DraDriver, vendor: str) -> str:
    if vendor != "google":
        if products.is_unknown_variant(model, vendor):
            raise products.unknown_model(vendor, model, _PRODUCT_LABELS[vendor])
        return cel.model_is(driver.domain, driver.model, model)
    if model not in products.GOOGLE:
        raise products.unknown_model(vendor, model, node_conditions.ACCELERATOR)
    return cel.equals(driver.domain, driver.model, products.GOOGLE[model])


def _unsupported(field: str, value: object, found: str, remedy: str) -> RequestError:
    return RequestError(field, str(value), found=f"{found} in dynamic resource allocation", remedy=remedy)
