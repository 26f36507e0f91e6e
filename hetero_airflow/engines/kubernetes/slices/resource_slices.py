"""ResourceSlices as values: the parts that inventory needs. Pure.

A slice comes from a driver, which may be wrong or hostile. What is not of the API's form is left out, and only the
attributes in `READ_NAMES` are kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.slices.drivers import READ_NAMES, driver_kind
from hetero_airflow.units import MAX_BYTES

MAX_DEVICES = 128
"""The API's limit for the devices of a slice."""

_MAX_TEXT = 64
"""The API's limit for the text of an attribute."""

_BLOCKING = ("NoSchedule", "NoExecute")

AttributeValue = str | int | bool
Counters = Mapping[tuple[str, str], Decimal]
"""(counter set, counter) → amount."""


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device of a slice."""

    name: str
    node: str | None
    """The only node that reaches it; None if several do, or that is unknown."""
    attributes: Mapping[str, AttributeValue]
    memory_bytes: int | None = None
    taints: tuple[str, ...] = ()
    """The taints that keep claims away, as text."""
    is_shared: bool = False
    """Several claims may have it at once."""
    counters: Counters = field(default_factory=dict)
    """What it takes of the counters of its pool."""


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A part of a driver's pool of devices."""

    driver: str
    pool: str
    generation: int
    slice_count: int
    """Slices of the pool in this generation."""
    devices: tuple[SliceDevice, ...]
    counters: Counters = field(default_factory=dict)
    """What the devices of the pool can take together."""


def read_slice(item: Mapping[str, Any], _: ResourceSlice | None = None) -> ResourceSlice | None:
    """The slice in a JSON value of ``resource.k8s.io/v1``; None if its devices are no accelerators."""
    spec = item["spec"]
    if driver_kind(spec["driver"]) is None:
        return None
    pool, node = spec["pool"], _node_of(spec)
    devices = (spec.get("devices") or ())[:MAX_DEVICES]
    return ResourceSlice(
        spec["driver"],
        pool["name"],
        int(pool["generation"]),
        int(pool["resourceSliceCount"]),
        tuple(_device(device, node, per_device=bool(spec.get("perDeviceNodeSelection"))) for device in devices),
        dict(_counters(spec.get("sharedCounters") or (), "name")),
    )


def _device(device: Mapping[str, Any], node: str | None, *, per_device: bool) -> SliceDevice:
    return SliceDevice(
        name=device["name"],
        node=_node_of(device) if per_device else node,
        attributes=dict(_attributes(device.get("attributes") or {})),
        memory_bytes=_memory(device.get("capacity") or {}),
        taints=tuple(
            f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            for taint in device.get("taints") or ()
            if taint.get("effect") in _BLOCKING
        ),
        is_shared=device.get("allowMultipleAllocations") is True,
        counters=dict(_counters(device.get("consumesCounters") or (), "counterSet")),
    )


def _node_of(spec: Mapping[str, Any]) -> str | None:
    """The only node that reaches the devices: by its name, or by a selector for one name."""
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    terms: Sequence[Any] = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    if spec.get("allNodes") or len(terms) != 1:
        return None
    for requirement in (*(terms[0].get("matchFields") or ()), *(terms[0].get("matchExpressions") or ())):
        names = list(requirement.get("values") or ())
        is_name = requirement.get("key") in ("metadata.name", "kubernetes.io/hostname")
        if is_name and requirement.get("operator") == "In" and len(names) == 1:
            return str(names[0])
    return None


def _attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[str, AttributeValue]]:
    for name in READ_NAMES & attributes.keys():
        value = next(iter(attributes[name].values()), None)
        if isinstance(value, int) or (isinstance(value, str) and len(value) <= _MAX_TEXT):
            yield name, value


def _memory(capacity: Mapping[str, Any]) -> int | None:
    """Bytes; None if the driver gives no size that can be read."""
    try:
        size = int(parse_quantity(capacity["memory"]["value"]))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return min(size, MAX_BYTES) if size > 0 else None


def _counters(sets: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[tuple[str, str], Decimal]]:
    for counter_set in sets:
        for name, counter in (counter_set.get("counters") or {}).items():
            yield (counter_set[key], name), parse_quantity(counter["value"])
