"""Checks a body as an API server would: by the official client's models, and by Kubernetes' own schemas."""

import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
from kubernetes import client

VERSION = "1.34"
"""The first with ``resource.k8s.io/v1``."""

_LIST, _DICT = re.compile(r"list\[(.+)\]"), re.compile(r"dict\[\w+, (.+)\]")
_PLAIN = {"str": str, "int": int, "bool": bool, "float": float, "object": object}
_QUANTITY = re.compile(r"([0-9]+)(Ki|Mi|Gi|Ti)?")


def check_body(body: dict[str, Any], model: str) -> None:
    """Fail for a body that is not of the model: an unknown field, a wrong type, or one lost on the way."""
    assert json.loads(json.dumps(body)) == body
    _check_value(body, model, model)
    api = client.ApiClient()
    assert api.sanitize_for_serialization(api._ApiClient__deserialize(body, model)) == body
    kubernetes_validate.validate(body, VERSION, strict=True)


def _check_value(value: Any, kind: str, path: str) -> None:
    if match := _LIST.fullmatch(kind):
        assert isinstance(value, list), path
        for number, item in enumerate(value):
            _check_value(item, match[1], f"{path}[{number}]")
    elif match := _DICT.fullmatch(kind):
        assert isinstance(value, dict), path
        for key, item in value.items():
            assert isinstance(key, str), path
            _check_value(item, match[1], f"{path}.{key}")
    elif kind in _PLAIN:
        assert isinstance(value, _PLAIN[kind]), f"{path} is {value!r}"
        assert not (kind == "int" and isinstance(value, bool)), path
    else:
        model = getattr(client, kind)
        names = {wire: name for name, wire in model.attribute_map.items()}
        assert isinstance(value, dict), path
        for wire, item in value.items():
            assert wire in names, f"{path} has no field {wire}"
            _check_value(item, model.openapi_types[names[wire]], f"{path}.{wire}")


def check_pod(pod: dict[str, Any]) -> None:
    """Fail for a pod that an API server would refuse, also by those rules that no schema has."""
    check_body(pod, "V1Pod")
    for container in pod["spec"]["containers"]:
        _check_resources(container.get("resources", {}))
        context = container.get("securityContext", {})
        assert not (context.get("privileged") and context.get("allowPrivilegeEscalation") is False)
    for term in _terms(pod):
        assert term.get("matchExpressions") or term.get("matchFields"), "an empty term matches no node"
        for requirement in term.get("matchExpressions", []):
            _check_requirement(requirement)
    for kind in ("labels", "annotations"):
        for key, value in pod["metadata"].get(kind, {}).items():
            assert _is_qualified(key), key
            assert kind == "annotations" or _is_label_value(value), value
    names = {claim["name"] for claim in pod["spec"].get("resourceClaims", [])}
    used = {
        c["name"] for container in pod["spec"]["containers"] for c in container.get("resources", {}).get("claims", [])
    }
    assert used == names
    for toleration in pod["spec"].get("tolerations", []):
        assert _is_qualified(toleration["key"])
        assert not (toleration["operator"] == "Exists" and toleration.get("value"))


def _check_resources(resources: dict[str, Any]) -> None:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for name, amount in {**limits, **requests}.items():
        assert isinstance(amount, str), f"{name}: {amount!r} is no quantity"
        if "/" in name:
            assert _is_qualified(name)
            assert re.fullmatch("[1-9][0-9]*", amount), "a device is whole"
            assert limits[name] == requests[name], "limit and request of a device must be equal"
    for name in limits.keys() & requests.keys():
        low, high = (_QUANTITY.fullmatch(limits_of_both[name]) for limits_of_both in (requests, limits))
        if low and high and low[2] == high[2]:
            assert int(low[1]) <= int(high[1])


def _check_requirement(requirement: dict[str, Any]) -> None:
    assert _is_qualified(requirement["key"]), requirement
    values = requirement.get("values", [])
    if requirement["operator"] in ("Exists", "DoesNotExist"):
        assert not values
    elif requirement["operator"] in ("Gt", "Lt"):
        assert len(values) == 1
        assert -(2**63) <= int(values[0]) < 2**63
    else:
        assert requirement["operator"] in ("In", "NotIn")
        assert values
    assert all(isinstance(value, str) and _is_label_value(value) for value in values), requirement


def _terms(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    nodes = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        assert required["nodeSelectorTerms"], "no terms match no node"
        yield from required["nodeSelectorTerms"]


def _is_label_value(text: str) -> bool:
    return re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", text) is not None and len(text) <= 63


def _is_qualified(text: str) -> bool:
    """``IsQualifiedName`` of apimachinery's validation."""
    *prefix, name = text.split("/")
    dns = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    return (
        len(prefix) <= 1
        and all(re.fullmatch(dns, part) and len(part) <= 253 for part in prefix)
        and re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", name) is not None
        and len(name) <= 63
    )
