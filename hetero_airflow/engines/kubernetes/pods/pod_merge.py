"""Adds the parts of a request to a pod, as a JSON value, and overwrites nothing that is there.

What a container may do is cut down, too: no privilege escalation, no capabilities, the runtime's own seccomp profile.
That it must not be root is left to the image and to the pod's author, since most images of the frameworks are root's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import CLAIM_NAME
from hetero_airflow.engines.kubernetes.pods.pod_parts import PodParts
from hetero_airflow.engines.kubernetes.selectors.affinity import to_json

_ADMIN = {"SYS_ADMIN", "CAP_SYS_ADMIN"}


def complete_pod(pod: Mapping[str, Any], parts: PodParts, container: str = "base") -> dict[str, Any]:
    """The pod with the parts in it.

    The container of that name, or else the first, gets the devices. Where it asks for any device of the same domain,
    such as ``nvidia.com``, that is left as it is, and so are cores and memory that it asks for. Node conditions of
    the pod hold beside those of the request.

    :param pod: a pod as the API takes it, with at least one container
    """
    made = copy.deepcopy(dict(pod))
    spec = made.setdefault("spec", {})
    one = leased_container(spec["containers"], container)
    _add_amounts(one, parts)
    _add_environment(one, parts.environment)
    _restrict(one, spec.get("securityContext") or {})
    _add_affinity(spec, to_json(parts.terms))
    _add_tolerations(spec, parts)
    if parts.claim is not None:
        _add_claim(spec, one, parts.claim["metadata"]["name"])
    if parts.priority_class and not spec.get("priorityClassName") and spec.get("priority") is None:
        spec["priorityClassName"] = parts.priority_class
    metadata = made.setdefault("metadata", {})
    for name, added in (("labels", parts.labels), ("annotations", parts.annotations)):
        if added:
            metadata[name] = {**added, **(metadata.get(name) or {})}
    return made


def leased_container(containers: list[dict[str, Any]], name: str = "base") -> dict[str, Any]:
    """The container of a pod that has the devices: that of the name, or else the first."""
    return next((one for one in containers if one.get("name") == name), containers[0])


def _add_amounts(container: dict[str, Any], parts: PodParts) -> None:
    resources = container.get("resources") or {}
    own = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    domains = {name.partition("/")[0] for name in own if "/" in name}
    added = {
        name: amount
        for name, amount in parts.amounts.items()
        if name not in own and not ("/" in name and name.partition("/")[0] in domains)
    }
    if added:
        limits = {**(resources.get("limits") or {}), **added}
        requests = {**(resources.get("requests") or {}), **added}
        container["resources"] = {**resources, "limits": limits, "requests": requests}


def _add_environment(container: dict[str, Any], environment: Mapping[str, str]) -> None:
    there = {variable.get("name") for variable in container.get("env") or []}
    added = [{"name": name, "value": value} for name, value in environment.items() if name not in there]
    if added:
        container["env"] = [*(container.get("env") or []), *added]


def _restrict(container: dict[str, Any], of_pod: Mapping[str, Any]) -> None:
    context = dict(container.get("securityContext") or {})
    capabilities = context.setdefault("capabilities", {"drop": ["ALL"]}) or {}
    # the API refuses a container that is privileged and may not escalate
    if not context.get("privileged") and not _ADMIN.intersection(capabilities.get("add") or []):
        context.setdefault("allowPrivilegeEscalation", False)
    if not of_pod.get("seccompProfile"):
        context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    container["securityContext"] = context


def _add_affinity(spec: dict[str, Any], terms: list[dict[str, Any]]) -> None:
    if not terms:
        return
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    own = (nodes.get(key) or {}).get("nodeSelectorTerms") or [{}]
    nodes[key] = {"nodeSelectorTerms": [_joined(left, right) for left in own for right in terms]}


def _joined(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    expressions = [*(left.get("matchExpressions") or []), *right["matchExpressions"]]
    return {**left, "matchExpressions": expressions}


def _add_tolerations(spec: dict[str, Any], parts: PodParts) -> None:
    own = spec.get("tolerations") or []
    added = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in parts.tolerated]
    missing = [one for one in added if one not in own]
    if missing:
        spec["tolerations"] = [*own, *missing]


def _add_claim(spec: dict[str, Any], container: dict[str, Any], template: str) -> None:
    if any(one.get("name") == CLAIM_NAME for one in spec.get("resourceClaims") or []):
        return
    claims = spec.get("resourceClaims") or []
    spec["resourceClaims"] = [*claims, {"name": CLAIM_NAME, "resourceClaimTemplateName": template}]
    resources = container.get("resources") or {}
    container["resources"] = {**resources, "claims": [*(resources.get("claims") or []), {"name": CLAIM_NAME}]}
