"""How a request travels to the executor, and a lease to the worker.

The request is plain data in the task's ``executor_config`` under `ENVELOPE_KEY`. It has one entry for each different
instance of the task, and a stride, since each instance of a mapped task may request another device. An entry is a
finished request, or the arguments of `DeviceRequest.parse` if one of them is a Jinja template. The lease travels in the
workload's ``context_carrier``, a field that every engine passes on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from pydantic import ValidationError

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.errors import RequestError
from hetero_airflow.model.arguments import RequestConditions
from hetero_airflow.model.gang import GangSize, parse_gang
from hetero_airflow.model.request import DeviceRequest

ENVELOPE_KEY = "hetero"

ARGUMENTS = ("device", *RequestConditions.__annotations__)
"""The arguments of a device operator that `DeviceRequest.parse` reads."""

_NO_GANG = GangSize()

RequestOrTemplate = DeviceRequest | Mapping[str, Any]
"""A finished request, or arguments with templates in them."""


def pack_request(instances: Iterable[Mapping[str, Any]], stride: int = 1, gang: GangSize = _NO_GANG) -> dict[str, Any]:
    """The value of ``executor_config[ENVELOPE_KEY]`` for the arguments of a task's instances.

    Instance `map_index` takes entry ``(map_index // stride) % len(entries)`` and is in gang
    ``map_index // gang.max_members``.

    >>> packed = pack_request([{"device": "gpu:2"}])
    >>> str(unpack_request({"hetero": packed}, map_index=-1))
    '2 × gpu'

    :raises RequestError: arguments without templates that make no request
    """
    packed = {"requests": [_entry(arguments) for arguments in instances], "stride": stride}
    return packed | ({"gang": gang.text} if gang.max_members > 1 else {})


def is_device_task(executor_config: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a task requests a device."""
    return isinstance(executor_config, Mapping) and ENVELOPE_KEY in executor_config


def unpack_request(executor_config: object, map_index: int) -> RequestOrTemplate | None:
    """The request of a task instance; None if it requests no device.

    :raises RequestError: the value under the key is not from `pack_request`
    """
    if not is_device_task(executor_config):
        return None
    packed = executor_config[ENVELOPE_KEY]
    try:
        parse_gang(packed.get("gang"))
        entries: Sequence[Mapping[str, Any]] = packed["requests"]
        entry = entries[(max(map_index, 0) // packed["stride"]) % len(entries)]
        if "template" in entry:
            return {name: value for name, value in entry["template"].items() if name in ARGUMENTS}
        return DeviceRequest.model_validate(entry["request"])
    except (AttributeError, TypeError, KeyError, IndexError, ZeroDivisionError, ValidationError) as error:
        raise RequestError(
            f"executor_config[{ENVELOPE_KEY!r}]",
            packed,
            found="no device request",
            remedy="Leave that key to the device operators",
        ) from error


def unpack_gang(executor_config: Mapping[str, Any] | None) -> GangSize:
    """How many instances of the task are placed together; 1: each by itself. `unpack_request` must have accepted it."""
    return parse_gang((executor_config or {}).get(ENVELOPE_KEY, {}).get("gang"))


def is_template(value: object) -> bool:
    """Whether a value contains a Jinja expression."""
    return any("{{" in text or "{%" in text for text in texts_in(value))


def texts_in(value: object) -> Iterator[str]:
    """The texts in a value of an argument, in its order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def _entry(arguments: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in arguments.items() if name in ARGUMENTS and value is not None}
    if is_template(list(fields.values())):
        if "device" not in fields:
            raise RequestError("device", None, found="nothing", remedy='Give one, such as "gpu:2"')
        from hetero_airflow.contract.rendering import check_templates  # Jinja only where there are templates

        check_templates(fields)
        return {"template": fields}
    request = DeviceRequest.parse(fields.pop("device", None), **fields)
    return {"request": request.model_dump(mode="json", exclude_defaults=True)}


def add_lease(context_carrier: Mapping[str, Any] | None, lease: TaskLease) -> dict[str, Any]:
    """The context carrier with the lease in it, as short as possible: EdgeExecutor's table limits its length."""
    return {**(context_carrier or {}), ENVELOPE_KEY: lease.model_dump_json(exclude_defaults=True)}


def read_lease(context_carrier: Mapping[str, Any] | None) -> TaskLease | None:
    """The lease in a workload's context carrier; None if ``HeteroExecutor`` did not place the task."""
    text = (context_carrier or {}).get(ENVELOPE_KEY)
    return TaskLease.model_validate_json(text) if text else None
