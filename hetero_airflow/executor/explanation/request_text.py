"""A request as arguments to write in a DAG file. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.names import parse_device
from hetero_airflow.model.request import Alternative, DeviceRequest, Priority
from hetero_airflow.units import format_bytes_exact

_QUOTA = ("memory", "cpus", "host_memory")
_CONDITIONS = ("runtime", "driver", "labels", "topology", "spot")


def request_text(request: DeviceRequest) -> str:
    """Arguments of ``@task.device`` and the operators; `DeviceRequest.parse` makes an equal request from them.

    >>> request = DeviceRequest.parse(["a100:2", "t4"], quota={"cpus": 4}, priority="high")
    >>> request_text(request)
    'device=["nvidia/a100:2", "nvidia/t4"], quota={"cpus": 4}, priority="high"'
    >>> request_text(DeviceRequest.parse([{"device": "gpu", "memory": "24GiB"}, "cpu:8"]))
    'device=[{"device": "gpu", "memory": "24GiB.."}, "cpu:8"]'
    >>> request_text(DeviceRequest.parse("gpu", spot=False))
    'device="gpu", spot=False'
    """
    options: dict[str, object] = {}
    if request.priority is not Priority.MEDIUM:
        options["priority"] = str(request.priority)
    if request.wait_timeout_s is not None:
        options["wait_timeout"] = request.wait_timeout_s
    if not request.patience:
        options["patience"] = False
    if request.data:
        options["data"] = request.data[0] if len(request.data) == 1 else list(request.data)
    for arguments in (_common_arguments(request), _separate_arguments(request)):
        if _is_equal(request, arguments | options):
            return ", ".join(f"{name}={_literal(value)}" for name, value in (arguments | options).items())
    return f"device=DeviceRequest.model_validate({_literal(request.model_dump(mode='json', exclude_defaults=True))})"


def _is_equal(request: DeviceRequest, arguments: Mapping[str, Any]) -> bool:
    try:
        return DeviceRequest.parse(**arguments) == request
    except RequestError:
        return False


def _common_arguments(request: DeviceRequest) -> dict[str, object]:
    """The arguments if all alternatives differ only in the device."""
    devices = [_device(alternative) for alternative in request.alternatives]
    extras = _extras(request.alternatives[0])
    quota = {name: extras[name] for name in _QUOTA if name in extras}
    conditions = {name: extras[name] for name in _CONDITIONS if name in extras}
    return {"device": _joined(devices, request.is_ordered)} | ({"quota": quota} if quota else {}) | conditions


def _separate_arguments(request: DeviceRequest) -> dict[str, object]:
    """The arguments with all fields of each alternative."""
    alternatives: list[object] = []
    for alternative in request.alternatives:
        device, extras = _device(alternative), _extras(alternative)
        fields = device if isinstance(device, dict) else {"device": device}
        alternatives.append({**fields, **extras} if extras else device)
    return {"device": _joined(alternatives, request.is_ordered)}


def _joined(alternatives: list[object], is_ordered: bool) -> object:
    """One alternative, a list in order of preference, or a set; None if a set can't contain them."""
    if is_ordered:
        return alternatives if len(alternatives) > 1 else alternatives[0]
    return frozenset(alternatives) if all(isinstance(item, str) for item in alternatives) else None


def _device(alternative: Alternative) -> object:
    """The device text if it is complete; else the fields."""
    fields = alternative.model_dump(exclude_defaults=True, exclude={*_QUOTA, *_CONDITIONS})
    quantity = f":{alternative.share!r}" if alternative.share is not None else f":{alternative.count}"
    text = alternative.device_text + ("" if quantity == ":1" else quantity)
    try:
        return text if Alternative(**parse_device(text)) == Alternative(**fields) else fields  # type: ignore[arg-type]
    except RequestError:
        return fields


def _extras(alternative: Alternative) -> dict[str, object]:
    extras = alternative.model_dump(exclude_defaults=True, include={*_QUOTA, *_CONDITIONS})
    if alternative.host_memory is not None:
        extras["host_memory"] = format_bytes_exact(alternative.host_memory)
    return extras


def _literal(value: object) -> str:
    """Python source of a value, with strings in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(_literal, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
