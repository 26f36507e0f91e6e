"""A request as a ResourceClaimTemplate (``resource.k8s.io/v1``), for clusters with dynamic resource allocation (DRA).

The limits are those of Kubernetes' validation (pkg/apis/resource/types.go): 8 alternatives and 32 devices in a claim.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from hetero_airflow.engines.kubernetes.claims import cel
from hetero_airflow.engines.kubernetes.resources import CPU, DRA_DRIVERS, MIG_CLASS, DraDriver, vendor_of
from hetero_airflow.engines.kubernetes.selectors import node_conditions, products
from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.names import VENDORS
from hetero_airflow.model.request import Alternative

CLAIM_NAME = "devices"
"""The claim's name in the pod, and the request's name in the claim."""

_PRODUCT_LABELS = {"nvidia": node_conditions.PRODUCT, "amd": node_conditions.AMD_PRODUCT}

MAX_ALTERNATIVES = 8
MAX_DEVICES = 32


def claim_template(alternatives: Sequence[Alternative], namespace: str | None = None) -> dict[str, Any]:
    """The template for alternatives of accelerators, in order of preference.

    Its name is a digest of its content, so equal requests share one template, and a template never changes.

    >>> template = claim_template([Alternative(vendor="nvidia", kind="gpu", count=2)])
    >>> template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    {'deviceClassName': 'gpu.nvidia.com', 'allocationMode': 'ExactCount', 'count': 2}

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
    spec = {"spec": {"devices": {"requests": [{"name": CLAIM_NAME, **choice}]}}}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {"name": f"hetero-{digest}", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


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
    if alternative.share is not None:
        raise _unsupported("share", alternative.share, "whole devices and MIG instances only", "Ask for one of these")
    if alternative.topology is not None and alternative.topology.level.is_within_worker:
        raise _unsupported("topology", alternative.topology, "no attribute that all devices have", "Leave it out")
    vendor = vendor_of(alternative)
    driver = DRA_DRIVERS[vendor]
    expressions = [
        *_device_expressions(alternative, driver, vendor),
        *_software_expressions(alternative, driver, vendor),
    ]
    selectors = {"selectors": [{"cel": {"expression": text}} for text in expressions]} if expressions else {}
    device_class = MIG_CLASS if alternative.partition else driver.device_class
    return {"deviceClassName": device_class, **selectors, "allocationMode": "ExactCount", "count": alternative.count}


def _device_expressions(alternative: Alternative, driver: DraDriver, vendor: str) -> list[str]:
    expressions = [driver.extra] if driver.extra else []
    if alternative.partition:
        if vendor != "nvidia":
            raise _unsupported("partition", alternative.partition, "MIG profiles only", "Leave it out")
        expressions.append(cel.equals(driver.domain, "profile", alternative.partition))
    if alternative.model:
        expressions.append(_model(alternative.model, driver, vendor))
    if alternative.memory:
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
