"""A request as a ResourceClaimTemplate (``resource.k8s.io/v1``), for clusters with dynamic resource allocation.

Limits are those of Kubernetes' validation (pkg/apis/resource/types.go): 8 alternatives, 32 devices of a claim.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from hetero_airflow.engines.kubernetes.claims import cel
from hetero_airflow.engines.kubernetes.resources import CPU, DRA_DRIVERS, MIG_CLASS, DraDriver, vendor_of
from hetero_airflow.engines.kubernetes.selectors.products import GOOGLE, unknown_model
from hetero_airflow.errors import RequestError
from hetero_airflow.model.catalogue import VENDORS
from hetero_airflow.model.request import Alternative

CLAIM_NAME = "devices"
"""What the pod calls its claim, and the claim its request."""

MAX_ALTERNATIVES = 8
MAX_DEVICES = 32


def claim_template(alternatives: Sequence[Alternative], namespace: str | None = None) -> dict[str, Any]:
    """The template for alternatives of accelerators, in order of preference.

    Its name is made of its content, so that equal requests share one template, and it never changes.

    >>> template = claim_template([Alternative(vendor="nvidia", kind="gpu", count=2)])
    >>> template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    {'deviceClassName': 'gpu.nvidia.com', 'allocationMode': 'ExactCount', 'count': 2}

    :raises RequestError: a condition that the vendor's DRA driver does not tell, or too many alternatives or devices
    """
    if len(alternatives) > MAX_ALTERNATIVES:
        raise RequestError(
            "device",
            f"{len(alternatives)} alternatives",
            found=f"a limit of {MAX_ALTERNATIVES} in a claim",
            remedy="Name fewer, the best first",
        )
    asked = [device_request(alternative) for alternative in alternatives]
    if len(asked) == 1:
        request: dict[str, Any] = {"name": CLAIM_NAME, "exactly": asked[0]}
    else:
        request = {
            "name": CLAIM_NAME,
            "firstAvailable": [{"name": f"choice-{number}", **one} for number, one in enumerate(asked)],
        }
    spec = {"spec": {"devices": {"requests": [request]}}}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {"name": f"hetero-{digest}", **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": spec,
    }


def is_claimable(alternative: Alternative) -> bool:
    """Whether a DRA driver for devices of that vendor and kind is known; none is of CPUs.

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

    :raises RequestError: a condition that the vendor's DRA driver does not tell
    """
    if not is_claimable(alternative):
        raise _unsupported_by_dra(
            alternative, "device", alternative.device_text, "no DRA driver that is known", "Leave out DRA"
        )
    if alternative.count > MAX_DEVICES:
        raise _unsupported_by_dra(
            alternative, "count", alternative.count, f"{MAX_DEVICES} devices at most in a claim", "Ask less"
        )
    if alternative.share is not None:
        raise _unsupported_by_dra(
            alternative, "share", alternative.share, "whole devices and MIG instances only", "Ask for these"
        )
    if alternative.topology is not None and alternative.topology.level.is_within_worker:
        raise _unsupported_by_dra(
            alternative, "topology", alternative.topology, "no attribute that all devices have", "Leave it out"
        )
    vendor = vendor_of(alternative)
    driver = DRA_DRIVERS[vendor]
    expressions = _expressions(alternative, driver, vendor)
    selectors = {"selectors": [{"cel": {"expression": one}} for one in expressions]} if expressions else {}
    device_class = MIG_CLASS if alternative.partition else driver.device_class
    return {"deviceClassName": device_class, **selectors, "allocationMode": "ExactCount", "count": alternative.count}


def _expressions(alternative: Alternative, driver: DraDriver, vendor: str) -> list[str]:
    found = [driver.extra] if driver.extra else []
    if alternative.partition:
        if vendor != "nvidia":
            raise _unsupported_by_dra(
                alternative, "partition", alternative.partition, "MIG profiles only", "Leave it out"
            )
        found.append(cel.equals(driver.domain, "profile", alternative.partition))
    if alternative.model:
        found.append(_model(alternative.model, driver, vendor))
    if alternative.memory:
        if vendor == "google":
            raise _unsupported_by_dra(alternative, "memory", alternative.memory, "no memory of TPUs", "Name a model")
        found.append(cel.memory_is(driver.domain, alternative.memory))
    if alternative.driver:
        if driver.driver is None:
            raise _unsupported_by_dra(
                alternative, "driver", alternative.driver, f"no version of {vendor}'s driver", "Leave it out"
            )
        found.append(cel.version_is(driver.domain, driver.driver, "driver", alternative.driver))
    for name, specifier in alternative.runtime.items():
        if name in driver.runtime:
            found.append(cel.version_is(driver.domain, driver.runtime[name], f"runtime[{name!r}]", specifier))
    return found


def _model(model: str, driver: DraDriver, vendor: str) -> str:
    if vendor != "google":
        return cel.model_is(driver.domain, driver.model, model)
    if model not in GOOGLE:
        raise unknown_model(vendor, model, "cloud.google.com/gke-tpu-accelerator")
    return cel.equals(driver.domain, driver.model, GOOGLE[model])


def _unsupported_by_dra(alternative: Alternative, field: str, value: object, found: str, remedy: str) -> RequestError:
    return RequestError(field, str(value), found=f"{found}, as dynamic resource allocation has it", remedy=remedy)
