"""Adds the parts of a request to a pod, as a JSON value, and overwrites nothing.

It also restricts the container: no privilege escalation, no capabilities, the runtime's default seccomp profile.
`restrict_pod` forbids root too.
"""

import copy
from collections.abc import Mapping
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import POD_CLAIM_NAME, template_for
from hetero_airflow.engines.kubernetes.pods.pod_parts import PodParts
from hetero_airflow.engines.kubernetes.selectors.affinity import to_json

USER = 1000
"""Many images of the frameworks name no user, and would run as root."""

_GROUPS = {"supplementalGroups", "supplementalGroupsPolicy"}
_ADMIN = {"SYS_ADMIN", "CAP_SYS_ADMIN"}


def complete_pod(pod: Mapping[str, Any], parts: PodParts, container: str = "base") -> dict[str, Any]:
    """The pod with the parts added.

    The container of that name, or else the first, gets the devices. If it already asks for a device of the same
    domain, such as ``nvidia.com``, or for cores or memory, that amount stays. Node conditions of the pod and of the
    request both apply.

    :param pod: a pod as the API takes it, with at least one container; a name, if the parts have a claim
    """
    completed = copy.deepcopy(dict(pod))
    spec = completed.setdefault("spec", {})
    leased = leased_container(spec["containers"], container)
    _add_amounts(leased, parts)
    _add_environment(leased, parts.environment)
    _restrict(leased, spec.get("securityContext") or {})
    _add_affinity(spec, to_json(parts.terms))
    _add_tolerations(spec, parts)
    if parts.claim is not None:
        _add_claim(spec, leased, template_for(parts.claim, completed)["metadata"]["name"])
    if parts.priority_class and not spec.get("priorityClassName") and spec.get("priority") is None:
        spec["priorityClassName"] = parts.priority_class
    metadata = completed.setdefault("metadata", {})
    for name, added in (("labels", parts.labels), ("annotations", parts.annotations)):
        if added:
            metadata[name] = {**added, **(metadata.get(name) or {})}
    return completed


def restrict_pod(pod: Mapping[str, Any], container: str = "base") -> dict[str, Any]:
    """The pod as Pod Security's profile "restricted" demands, with a user who is not root.

    A pod with a security context of its author stays as it is. One that only adds groups, which may open device files,
    gets the rest. The user of a container stays too.
    """
    restricted = copy.deepcopy(dict(pod))
    spec = restricted["spec"]
    context = {name: value for name, value in (spec.get("securityContext") or {}).items() if value is not None}
    if context.keys() <= _GROUPS:
        of_container = leased_container(spec["containers"], container).get("securityContext") or {}
        user = {} if {"runAsUser", "runAsNonRoot"} & of_container.keys() else {"runAsNonRoot": True, "runAsUser": USER}
        spec["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}, **user, **context}
    return restricted


def leased_container(containers: list[dict[str, Any]], name: str = "base") -> dict[str, Any]:
    """The container of a pod that gets the devices: the one of that name, or else the first."""
    return next((c for c in containers if c.get("name") == name), containers[0])


def _add_amounts(container: dict[str, Any], parts: PodParts) -> None:
    resources = container.get("resources") or {}
    present = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    domains = {name.partition("/")[0] for name in present if "/" in name}
    added = {
        name: amount
        for name, amount in parts.amounts.items()
        if name not in present and not ("/" in name and name.partition("/")[0] in domains)
    }
    if added:
        limits = {**(resources.get("limits") or {}), **added}
        requests = {**(resources.get("requests") or {}), **added}
        container["resources"] = {**resources, "limits": limits, "requests": requests}


def _add_environment(container: dict[str, Any], environment: Mapping[str, str]) -> None:
    present = {variable.get("name") for variable in container.get("env") or []}
    added = [{"name": name, "value": value} for name, value in environment.items() if name not in present]
    if added:
        container["env"] = [*(container.get("env") or []), *added]


def _restrict(container: dict[str, Any], of_pod: Mapping[str, Any]) -> None:
    context = dict(container.get("securityContext") or {})
    capabilities = context.setdefault("capabilities", {"drop": ["ALL"]}) or {}
    # the API refuses a privileged container that may not escalate
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
    authored = (nodes.get(key) or {}).get("nodeSelectorTerms") or [{}]
    nodes[key] = {"nodeSelectorTerms": [_joined(left, right) for left in authored for right in terms]}


def _joined(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    expressions = [*(left.get("matchExpressions") or []), *right["matchExpressions"]]
    return {**left, "matchExpressions": expressions}


def _add_tolerations(spec: dict[str, Any], parts: PodParts) -> None:
    present = spec.get("tolerations") or []
    added = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in parts.tolerated]
    missing = [toleration for toleration in added if toleration not in present]
    if missing:
        spec["tolerations"] = [*present, *missing]


def _add_claim(spec: dict[str, Any], container: dict[str, Any], template: str) -> None:
    if any(claim.get("name") == POD_CLAIM_NAME for claim in spec.get("resourceClaims") or []):
        return
    claims = spec.get("resourceClaims") or []
    spec["resourceClaims"] = [*claims, {"name": POD_CLAIM_NAME, "resourceClaimTemplateName": template}]
    resources = container.get("resources") or {}
    container["resources"] = {**resources, "claims": [*(resources.get("claims") or []), {"name": POD_CLAIM_NAME}]}
