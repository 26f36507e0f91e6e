"""What a task asks for. One grammar for decorators, operators, configuration and command line.

A request is a list of alternatives, each a whole request of its own: which device, how many, how
much of it, and what must be there beside it. `DeviceRequest.parse` reads what a user wrote;
`device_words.parse_device` holds the grammar of a single text.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hetero_airflow.errors import RequestError, shorten
from hetero_airflow.model.device import DeviceWord
from hetero_airflow.model.device_names import parse_device
from hetero_airflow.model.request_fields import (
    LABELS_DESCRIPTION,
    ByteRangeField,
    HostMemoryField,
    LabelsField,
    RuntimeField,
    SpecifierField,
    TopologyField,
)
from hetero_airflow.units import format_bytes_exact, parse_duration_s, share_to_milli

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_COUNT = 4096
MAX_ALTERNATIVES = 16


class Priority(StrEnum):
    """How urgent a request is; the policy `priority` serves a higher class first, whatever else is true."""

    URGENT = "urgent"
    """Before everything else."""
    HIGH = "high"
    """Before the ordinary work."""
    MEDIUM = "medium"
    """The ordinary work, and the default."""
    LOW = "low"
    """What may wait until nothing else needs the device."""

    @property
    def rank(self) -> int:
        """0 for urgent, 3 for low."""
        return tuple(Priority).index(self)


class Alternative(BaseModel):
    """One way to satisfy a request: `count` devices of one worker, and what must be there beside them.

    >>> str(DeviceRequest.parse("nvidia/a100-80gb:2", quota={"cpus": 8}).alternatives[0])
    '2 × nvidia/a100-80gb (cpus=8)'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendor: DeviceWord | None = None
    kind: DeviceWord | None = None
    model: DeviceWord | None = None
    partition: DeviceWord | None = None
    """A MIG profile, ``1g.10gb``."""
    count: int = Field(default=1, ge=1, le=MAX_COUNT, strict=True)
    """Devices, or cores of a CPU."""
    share: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False)
    """A cooperative part of one device; None is the whole device."""
    memory: ByteRangeField = None
    """Of each device; of a share, what the share comes to."""
    cpus: int | None = Field(default=None, ge=1, le=MAX_COUNT, strict=True)
    """CPU cores beside the devices, for this task alone."""
    host_memory: HostMemoryField = None
    runtime: RuntimeField = Field(default_factory=dict)
    driver: SpecifierField = None
    labels: LabelsField = Field(default_factory=dict, description=LABELS_DESCRIPTION)
    topology: TopologyField = None
    """How near together its devices are, or the members of its gang; None: as near as can be had without waiting."""

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> Self:
        if self.kind == "cpu":
            for field, instead in (
                ("memory", "host_memory"),
                ("share", None),
                ("cpus", None),
                ("partition", None),
                ("driver", None),
            ):
                value = getattr(self, field)
                if value is not None:
                    raise RequestError(
                        field,
                        str(value),
                        found='the device "cpu", which has cores and host memory only',
                        remedy=f"Use {instead} for the memory of the host, or put {field} into the alternative that "
                        'is an accelerator, as in [{"device": "gpu", ...}, "cpu:8"]'
                        if instead
                        else f'Write the number of cores as "cpu:8" and leave {field} out',
                    )
            if self.topology is not None and self.topology.level.is_within_worker:
                raise RequestError(
                    "topology",
                    str(self.topology),
                    found='the device "cpu", whose cores have no links',
                    remedy='Put topology into the alternative that is an accelerator, as in [{"device": "gpu:2", '
                    '"topology": "nvlink"}, "cpu:8"]',
                )
        if self.share is not None and self.count != 1:
            raise RequestError(
                "share", self.share, found=f"count={self.count}", remedy="A share is of one device: leave the count out"
            )
        return self

    @property
    def share_milli(self) -> int:
        """Thousandths of each device: 1000 for whole ones."""
        return 1000 if self.share is None else share_to_milli(self.share)

    @cached_property
    def key(self) -> str:
        """Equal for alternatives that ask for the same; what decisions are cached by."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def device_text(self) -> str:
        """The device alone, in the grammar: ``nvidia/a100``, ``mig-1g.10gb``, ``gpu``."""
        if self.partition:
            return f"mig-{self.partition}"
        what = self.model or self.kind or "device"
        return f"{self.vendor}/{what}" if self.vendor else what

    def __str__(self) -> str:
        amount = f"{self.share:g} of a" if self.share is not None else f"{self.count} ×"
        extras = [f"memory={self.memory}"] if self.memory else []
        extras += [f"cpus={self.cpus}"] if self.cpus else []
        extras += [f"host_memory={format_bytes_exact(self.host_memory)}"] if self.host_memory else []
        extras += [f"{name}{spec}" for name, spec in self.runtime.items()]
        extras += [f"driver{self.driver}"] if self.driver else []
        extras += [f"{name}={value}" for name, value in self.labels.items()]
        extras += [f"topology={self.topology}"] if self.topology else []
        return f"{amount} {self.device_text}" + (f" ({', '.join(extras)})" if extras else "")


class DeviceRequest(BaseModel):
    """All that a task asks for. Frozen, hashable, printable as JSON; equal requests are equal values.

    >>> request = DeviceRequest.parse(["h100:2", "a100:4"], quota={"memory": "40GiB.."}, priority="high")
    >>> [str(a) for a in request.alternatives]
    ['2 × nvidia/h100 (memory=40GiB..)', '4 × nvidia/a100 (memory=40GiB..)']
    >>> DeviceRequest.model_validate_json(request.model_dump_json()) == request
    True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alternatives: tuple[Alternative, ...] = Field(min_length=1, max_length=MAX_ALTERNATIVES)
    is_ordered: bool = True
    """True: the first alternative that fits now is taken. False: the policy chooses among all."""
    priority: Priority = Priority.MEDIUM
    wait_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Fail the task if it has waited for longer; None waits for ever."""

    @classmethod
    def parse(
        cls,
        device: object,
        *,
        quota: object = None,
        runtime: object = None,
        driver: object = None,
        labels: object = None,
        topology: object = None,
        priority: object = None,
        wait_timeout: object = None,
    ) -> DeviceRequest:
        """The request that these arguments of a decorator, an operator or a configuration make.

        :param device: a text (``gpu:2``), a list of alternatives in order of preference, a set of
            alternatives among which the policy chooses, a mapping of `Alternative`'s fields (with
            ``device`` as a text among them), or a `DeviceRequest`, which takes no other argument
        :param quota: mapping with any of count, share, memory, cpus, host_memory; applies to each
            alternative that does not say the same field itself, and so do the following four
        :param runtime: software name → version specifier
        :param driver: version specifier of the devices' driver
        :param labels: label → value that the worker must carry; ``!7`` any other or none, ``!7,8`` neither
        :param topology: nvlink or numa: what joins the devices; host, rack or site: what the members of a gang
            share; with ``@10m``, for how long to wait for it before taking what is there
        :param priority: urgent, high, medium or low
        :param wait_timeout: seconds, a timedelta, or a text such as ``2h``
        :raises RequestError: anything that can't be read or contradicts itself
        """
        conditions = {"runtime": runtime, "driver": driver, "labels": labels, "topology": topology}
        shared = {**conditions, **_read_quota(quota)}
        shared = {field: value for field, value in shared.items() if value is not None}
        rest = {"priority": priority, "wait_timeout": wait_timeout}
        if isinstance(device, DeviceRequest):
            extra = sorted([*shared, *(name for name, value in rest.items() if value is not None)])
            if extra:
                raise RequestError(
                    extra[0], "given", found="a DeviceRequest as device", remedy="Say it in the DeviceRequest itself"
                )
            return device
        if isinstance(device, (list, tuple)):
            words: list[object] = list(device)
        elif isinstance(device, (set, frozenset)):
            words = sorted(device, key=str)
        else:
            words = [device]
        if not 0 < len(words) <= MAX_ALTERNATIVES:
            raise RequestError(
                "device", f"{len(words)} alternatives", found=f"{len(words)}", remedy=f"Give 1 to {MAX_ALTERNATIVES}"
            )
        fields = {
            "alternatives": tuple(_parse_alternative(word, shared) for word in words),
            "is_ordered": not isinstance(device, (set, frozenset)),
            "priority": _read_priority(priority),
            "wait_timeout_s": None if wait_timeout is None else parse_duration_s(wait_timeout),
        }
        return _validated(cls, fields)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that are the same for equal requests, on every machine and version of Python.

        >>> DeviceRequest.parse("gpu:2").fingerprint == DeviceRequest.parse({"device": "gpu", "count": 2}).fingerprint
        True
        """
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __str__(self) -> str:
        return (" or " if self.is_ordered else " | ").join(str(a) for a in self.alternatives)


_QUOTA_FIELDS = ("count", "share", "memory", "cpus", "host_memory")


def _read_quota(quota: object) -> dict[str, object]:
    if quota is None:
        return {}
    if not isinstance(quota, Mapping):
        raise RequestError(
            "quota", quota, found=type(quota).__name__, remedy=f"Give a mapping of {', '.join(_QUOTA_FIELDS)}"
        )
    for field in quota:
        if field not in _QUOTA_FIELDS:
            raise RequestError("quota", field, found="an unknown field", remedy=f"Use {', '.join(_QUOTA_FIELDS)}")
    return dict(quota)


def _read_priority(priority: object) -> Priority:
    if priority is None:
        return Priority.MEDIUM
    if isinstance(priority, str) and priority in tuple(Priority):
        return Priority(priority)
    raise RequestError("priority", priority, found="an unknown class", remedy=f"Use {', '.join(Priority)}")


def _parse_alternative(word: object, shared: Mapping[str, object]) -> Alternative:
    if isinstance(word, str):
        own: dict[str, object] = parse_device(word)
    elif isinstance(word, Alternative):
        own = word.model_dump(exclude_defaults=True)
    elif isinstance(word, Mapping):
        own = {str(field): value for field, value in word.items() if value is not None}
        if "device" in own:
            own = _merge(parse_device(own.pop("device")), own)
        _check_fields(own)
    else:
        raise RequestError(
            "device", word, found=type(word).__name__, remedy='Give a text such as "gpu:2", a list, a set or a mapping'
        )
    if not own.keys() & {"vendor", "kind", "model", "partition"}:
        raise RequestError("device", word, found="no device", remedy='Say one, as in {"device": "gpu", "count": 2}')
    missing = {field: value for field, value in shared.items() if field not in own or field in _EXCLUSIVE}
    return _validated(Alternative, _merge(own, missing))


_EXCLUSIVE = frozenset({"count", "share"})
"""Quantities: to say one twice is a contradiction unless both are equal."""


def _merge(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    for field in first.keys() & second.keys():
        if first[field] != second[field]:
            raise RequestError(
                field, second[field], found=f"{shorten(first[field])} in the device text", remedy="Say it once"
            )
    return {**first, **second}


def _check_fields(fields: Iterable[str]) -> None:
    for field in fields:
        if field not in Alternative.model_fields:
            known = ", ".join(["device", *Alternative.model_fields])
            raise RequestError("device", field, found="an unknown field", remedy=f"Use {known}")


def _validated(model: type[ModelT], fields: Mapping[str, Any]) -> ModelT:
    """The model, with pydantic's error turned into ours: field, value, and what would be valid."""
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):
            raise cause from None
        field = ".".join(str(part) for part in first["loc"]) or model.__name__
        value = first["input"]
        if isinstance(value, float) and not math.isfinite(value):
            value = repr(value)
        raise RequestError(field, value, found=first["msg"], remedy=_VALID.get(str(first["loc"][0]), _ANY)) from None


_ANY = "See `airflow hetero schema` for the valid forms"
_VALID = {
    "count": f"Give a whole number from 1 to {MAX_COUNT}",
    "cpus": f"Give a whole number of cores from 1 to {MAX_COUNT}",
    "share": "Give a number above 0 and below 1, such as 0.5; whole devices are asked for by count",
    "vendor": 'Use lower-case words such as "nvidia"',
    "model": 'Use lower-case words joined by dashes, such as "a100-80gb"',
}
