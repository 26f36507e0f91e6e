"""Requests: what a task asks for. Decorators, operators, configuration and command line share one grammar.

A request is a list of alternatives. Each is a whole request: which device, how many, how much of it, and what must be
present beside it. `DeviceRequest.parse` reads what a user wrote; `devices.names.parse_device` has the grammar of a
single text.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import DeviceWord
from hetero_airflow.model.devices.names import MAX_COUNT, check_device, parse_device
from hetero_airflow.model.request_fields import (
    LABELS_DESCRIPTION,
    ArchitectureField,
    ByteRangeField,
    DataField,
    HostMemoryField,
    LabelsField,
    PatienceField,
    RuntimeField,
    SpecifierField,
    SpotField,
    TopologyField,
    check_sizes,
    merge_fields,
    read_quota,
    unknown_field,
    validated,
)
from hetero_airflow.model.worker import SPOT_LABEL, is_spot_worker
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes_exact, parse_duration_s, share_to_milli
from hetero_airflow.validation import did_you_mean

MAX_ALTERNATIVES = 16


class Priority(StrEnum):
    """How urgent a request is. The policy `priority` serves a higher class first."""

    URGENT = "urgent"
    """Before everything else."""
    HIGH = "high"
    """Before ordinary work."""
    MEDIUM = "medium"
    """Ordinary work; the default."""
    LOW = "low"
    """Work that waits until nothing else needs the device."""

    @cached_property
    def rank(self) -> int:
        """0 for urgent, 3 for low."""
        return tuple(Priority).index(self)


class Alternative(BaseModel):
    """One option to serve a request: `count` devices of one worker, and what must be present beside them.

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
    """A cooperative part of one device; None: the whole device."""
    memory: ByteRangeField = None
    """Memory of each device, or of the share of a device."""
    cpus: int | None = Field(default=None, ge=1, le=MAX_COUNT, strict=True)
    """CPU cores beside the devices, for this task only."""
    host_memory: HostMemoryField = None
    runtime: RuntimeField = Field(default_factory=dict)
    driver: SpecifierField = None
    labels: LabelsField = Field(default_factory=dict, description=LABELS_DESCRIPTION)
    architecture: ArchitectureField = None
    """The worker's CPU architecture, which binary packages are built for: ``x86-64``, ``aarch64``."""
    spot: SpotField = True
    """Whether it may run on spot workers, see `is_spot_worker`."""
    topology: TopologyField = None
    """How close its devices, or the members of its gang, must be; None: as close as possible without waiting."""

    @model_validator(mode="after")
    def _check_contradictions(self) -> Self:
        if self.kind == "cpu":
            self._check_cpu()
        if self.share is not None and self.count != 1:
            remedy = "Leave the count out: a share is a part of one device"
            raise RequestError("share", self.share, found=f"count={self.count} beside it", remedy=remedy)
        wanted = self.labels.get(SPOT_LABEL, "!")
        if not self.spot and not wanted.startswith("!") and is_spot_worker(self.labels):
            found = f'labels={{"{SPOT_LABEL}": "{wanted}"}} beside it'
            raise RequestError("spot", False, found=found, remedy="Leave one of the two out")
        return self

    def _check_cpu(self) -> None:
        found = 'the device "cpu", which has cores and host memory only'
        if self.memory is not None:
            remedy = (
                "Use host_memory for the memory of the host, or put memory into the alternative that is an "
                'accelerator, as in [{"device": "gpu", ...}, "cpu:8"]'
            )
            raise RequestError("memory", str(self.memory), found=found, remedy=remedy)
        for field in ("share", "cpus", "partition", "driver"):
            value = getattr(self, field)
            if value is not None:
                remedy = f'Write the number of cores as "cpu:8" and leave {field} out'
                raise RequestError(field, str(value), found=found, remedy=remedy)
        if self.topology is not None and self.topology.level.is_within_worker:
            raise RequestError(
                "topology",
                str(self.topology),
                found='the device "cpu", whose cores have no links',
                remedy='Put topology into the alternative that is an accelerator, as in [{"device": "gpu:2", '
                '"topology": "nvlink"}, "cpu:8"]',
            )

    def with_fields(self, **fields: Any) -> "Alternative":
        """The alternative with other values for these fields. A copy by pydantic would keep its cached key."""
        return Alternative(**{name: getattr(self, name) for name in Alternative.model_fields} | fields)

    @property
    def share_milli(self) -> int:
        """Thousandths of each device; 1000 for whole devices."""
        return MILLI_PER_DEVICE if self.share is None else share_to_milli(self.share)

    @property
    def devices(self) -> float:
        """How many devices it takes; a share counts as its fraction, a CPU core as one.

        >>> [DeviceRequest.parse(text).alternatives[0].devices for text in ("gpu:4", "gpu:0.25", "cpu:8")]
        [4.0, 0.25, 8.0]
        """
        return self.count * self.share_milli / MILLI_PER_DEVICE

    @property
    def accelerators(self) -> float:
        """How many accelerators it takes; CPU cores are none."""
        return 0.0 if self.kind == "cpu" else self.devices

    @cached_property
    def key(self) -> str:
        """A cache key; equal alternatives have equal keys."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def device_text(self) -> str:
        """The device in the grammar, without its quantity: ``nvidia/a100``, ``mig-1g.10gb``, ``gpu``."""
        if self.partition and self.vendor in (None, "nvidia"):
            return f"mig-{self.partition}"
        name = self.model or self.partition or self.kind or "device"
        text = f"{self.vendor}/{name}" if self.vendor else name
        return f"{text} {self.partition}" if self.partition and self.model else text

    def __str__(self) -> str:
        amount = f"{self.share:g} of a" if self.share is not None else f"{self.count} ×"
        extras = [f"memory={self.memory}"] if self.memory else []
        extras += [f"cpus={self.cpus}"] if self.cpus else []
        extras += [f"host_memory={format_bytes_exact(self.host_memory)}"] if self.host_memory else []
        extras += [f"{name}{spec}" for name, spec in self.runtime.items()]
        extras += [f"driver{self.driver}"] if self.driver else []
        extras += [f"{name}={value}" for name, value in self.labels.items()]
        extras += [f"architecture={self.architecture}"] if self.architecture else []
        extras += ["spot=False"] if not self.spot else []
        extras += [f"topology={self.topology}"] if self.topology else []
        return f"{amount} {self.device_text}" + (f" ({', '.join(extras)})" if extras else "")


class DeviceRequest(BaseModel):
    """A task's whole request. Frozen, hashable, printable as JSON; equal requests are equal values.

    >>> request = DeviceRequest.parse(["h100:2", "a100:4"], quota={"memory": "40GiB.."}, priority="high")
    >>> [str(a) for a in request.alternatives]
    ['2 × nvidia/h100 (memory=40GiB..)', '4 × nvidia/a100 (memory=40GiB..)']
    >>> DeviceRequest.model_validate_json(request.model_dump_json()) == request
    True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alternatives: tuple[Alternative, ...] = Field(min_length=1, max_length=MAX_ALTERNATIVES)
    is_ordered: bool = True
    """True: the first alternative that fits now is used. False: the policy chooses among all."""
    priority: Priority = Priority.MEDIUM
    wait_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The task fails if it waits longer; None: no limit."""
    patience: PatienceField = True
    """Whether it may wait for better devices while others are free."""
    data: DataField = ()
    """URLs of what it reads. Of equally good workers it gets one that has them cached; it never waits for that."""

    def with_fields(self, **fields: Any) -> "DeviceRequest":
        """The request with other values for these fields. A copy by pydantic would keep its cached fingerprint."""
        return DeviceRequest(**{name: getattr(self, name) for name in DeviceRequest.model_fields} | fields)

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
        spot: object = None,
        priority: object = None,
        wait_timeout: object = None,
        patience: object = None,
        data: object = None,
    ) -> "DeviceRequest":
        """The request from the arguments of a decorator, an operator or a configuration.

        :param device: a text (``gpu:2``); a list of alternatives in order of preference; a set of alternatives from
            which the policy chooses; a mapping of `Alternative`'s fields, which may have ``device`` as a text; or a
            `DeviceRequest`, without other arguments
        :param quota: mapping with any of count, share, memory, cpus, host_memory. It applies to each alternative
            without that field, and so do the following five arguments
        :param runtime: software name → version specifier
        :param driver: version specifier of the devices' driver
        :param labels: label → value that the worker must have; ``!7`` any other or none, ``!7,8`` neither
        :param topology: nvlink or numa for the devices of one request; host, rack or site for the members of a gang.
            With ``@10m`` the request waits at most that long for it
        :param spot: False: never on a worker with the label hetero/spot
        :param priority: urgent, high, medium or low
        :param wait_timeout: seconds, a timedelta, or a text such as ``2h``
        :param patience: False: it never waits for better devices while others are free
        :param data: the URL of what it reads, or a list; one that ends with ``/`` is a folder
        :raises RequestError: an argument is not valid, or two contradict each other
        """
        conditions = {"runtime": runtime, "driver": driver, "labels": labels, "topology": topology, "spot": spot}
        fields = {**conditions, **read_quota(quota)}
        check_sizes(fields)
        shared = {field: value for field, value in fields.items() if value is not None}
        other_fields = {"priority": priority, "wait_timeout": wait_timeout, "patience": patience, "data": data}
        if isinstance(device, DeviceRequest):
            extra = shared | {name: value for name, value in other_fields.items() if value is not None}
            for name, value in sorted(extra.items()):
                remedy = f"Put {name} into the DeviceRequest itself"
                raise RequestError(name, value, found="a DeviceRequest as device", remedy=remedy)
            return device
        is_ordered = not isinstance(device, (set, frozenset))
        if isinstance(device, (list, tuple)):
            options: list[object] = list(device)
        else:
            options = sorted(device, key=str) if isinstance(device, (set, frozenset)) else [device]
        if not options:
            raise RequestError("device", device, found="no alternative", remedy='Name one, such as "gpu:2"')
        if len(options) > MAX_ALTERNATIVES:
            found = f"{len(options)} alternatives, above the limit of {MAX_ALTERNATIVES}"
            raise RequestError("device", device, found=found, remedy="Name fewer, the best first")
        return validated(
            cls,
            {
                "alternatives": tuple(_parse_alternative(option, shared) for option in options),
                "is_ordered": is_ordered,
                "priority": _read_priority(priority),
                "wait_timeout_s": None if wait_timeout is None else parse_duration_s(wait_timeout),
                "patience": True if patience is None else patience,
                "data": () if data is None else data,
            },
        )

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; the same for equal requests, on every machine and version of Python.

        >>> DeviceRequest.parse("gpu:2").fingerprint == DeviceRequest.parse({"device": "gpu", "count": 2}).fingerprint
        True
        """
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __str__(self) -> str:
        return (" or " if self.is_ordered else " | ").join(str(a) for a in self.alternatives)


def _read_priority(priority: object) -> Priority:
    if priority is None:
        return Priority.MEDIUM
    if isinstance(priority, str) and priority in tuple(Priority):
        return Priority(priority)
    remedy = f"{did_you_mean(priority, Priority) if isinstance(priority, str) else ''}Use {', '.join(Priority)}"
    raise RequestError("priority", priority, found="an unknown class", remedy=remedy)


def _parse_alternative(option: object, shared: Mapping[str, object]) -> Alternative:
    fields = _read_alternative(option)
    check_sizes(fields)
    if not fields.keys() & {"vendor", "kind", "model", "partition"}:
        raise RequestError("device", option, found="no device", remedy='Name one, as in {"device": "gpu", "count": 2}')
    missing = {field: value for field, value in shared.items() if field not in fields or field in _EXCLUSIVE}
    return validated(Alternative, merge_fields(fields, missing))


_EXCLUSIVE = frozenset({"count", "share"})
"""Quantities. To give one twice is a contradiction, unless both are equal."""


def _read_alternative(option: object) -> dict[str, object]:
    if isinstance(option, str):
        return parse_device(option)
    if isinstance(option, Alternative):
        return option.model_dump(exclude_defaults=True)
    if not isinstance(option, Mapping):
        found = f"a value of the type {type(option).__name__}"
        remedy = 'Give a text such as "gpu:2", a list, a set or a mapping'
        raise RequestError("device", option, found=found, remedy=remedy)
    fields = {str(field): value for field, value in option.items() if value is not None}
    if "device" in fields:
        fields = merge_fields(parse_device(fields.pop("device")), fields)
    for field, value in fields.items():
        if field not in Alternative.model_fields:
            raise unknown_field("device", field, value, ["device", *Alternative.model_fields])
    check_device(fields)
    return fields
