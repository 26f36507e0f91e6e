"""The protocol between agents and the API server: paths, bodies, limits. Pure; both sides use this file."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.host_data import HostData
from hetero_airflow.model.worker import MAX_DEVICES, Worker
from hetero_airflow.units import MAX_BYTES
from hetero_airflow.validation import first_problem

PREFIX = "/hetero"
"""Prefix of this project's routes in Airflow's API server."""

ENROLMENT_PATH = "/agent/enrolment"
INVENTORY_PATH = "/agent/inventory"
HEARTBEAT_PATH = "/agent/heartbeat"

HEARTBEAT_S = 5.0
"""Two heartbeats may get lost within the default of [hetero] worker_timeout_s."""

ENROLMENT_VARIABLE = "HETERO_AIRFLOW_ENROLMENT"
"""Environment variable with the one-time secret for the agent's enrolment."""

ENROLMENT_S = 3600.0
"""How long that secret is valid."""

MAX_SMALL_BYTES = 4096
MAX_HEARTBEAT_BYTES = 2 << 20
"""4096 readings with all fields need 1.0 MB."""
MAX_INVENTORY_BYTES = 4 << 20
"""4096 devices with all fields need 3.3 MB."""

MAX_LEASES = 4096
"""Leases with processes on one host."""
MAX_LEASE_CHARACTERS = 320
MAX_ERRORS = 256
"""Device errors in one heartbeat; the next heartbeat carries the rest."""

SCHEDULER_ENGINE = "local"
"""The engine of the worker that a scheduler reports for its own host; no agent may speak for it."""

MAX_FIELDS = 256
"""Fields of one object in a body."""

_MARKUP = frozenset("<>")

M = TypeVar("M", bound=BaseModel)


POD_AUDIENCE = "hetero-airflow"
"""The audience of the service account's token with which an agent in a pod enrols."""

POD_TOKEN_PATH = "/var/run/secrets/hetero-airflow/token"  # noqa: S105  a path
"""Where that token is mounted."""


class RefusalCode(StrEnum):
    """Why the server refused a request. The agent's reaction depends only on this code."""

    UNAUTHENTICATED = "unauthenticated"
    """There is no token, or it can't be read."""
    EXPIRED = "expired"
    """The token is too old, not valid yet, or valid for too long: the clocks differ."""
    UNKNOWN_KEY = "unknown_key"
    """The worker has no key, its key was revoked, or another key signed the token."""
    FOREIGN = "foreign"
    """The token belongs to another worker or another request."""
    REPLAYED = "replayed"
    """This request or a later one was accepted before."""
    SUPERSEDED = "superseded"
    """Another agent with the same key has started since."""
    INVALID = "invalid"
    """The body can't be read, or contains an impossible value."""
    TOO_LARGE = "too_large"
    """The body is larger than its limit."""
    FLOODING = "flooding"
    """The worker sent too many invalid bodies."""
    ENROLMENT = "enrolment"
    """The secret does not enrol this worker."""
    UNAVAILABLE = "unavailable"
    """The database does not answer at present."""


def _check_printable(name: str) -> str:
    """Refuse names that a terminal, a log or a page could read as markup or control characters."""
    if not name.isprintable():
        raise ValueError("a name with characters that can't be printed")
    if not _MARKUP.isdisjoint(name):
        raise ValueError("a name with one of the characters < and >, which pages read as markup")
    return name


Name = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_check_printable)]


_LIMITS: dict[str, tuple[float, float]] = {
    "memory_free_bytes": (0, MAX_BYTES),
    "utilization": (0, 1),
    "temperature_c": (-300, 10_000),
    "power_w": (0, 1e6),
    "pcie_sent_bytes_per_s": (0, MAX_BYTES),
    "pcie_received_bytes_per_s": (0, MAX_BYTES),
    "ecc_errors": (0, 2**53),
    "xid": (0, 10_000),
}
"""Number of a reading → its possible range; NaN is in none."""


def _is_possible(reading: Telemetry) -> bool:
    values = ((getattr(reading, name), limits) for name, limits in _LIMITS.items())
    return all(value is None or low <= value <= high for value, (low, high) in values)


def valid_readings(readings: Iterable[Telemetry]) -> tuple[Telemetry, ...]:
    """The readings that a server accepts.

    >>> sent = Telemetry(device_id="GPU-0", power_w=70.5), Telemetry(device_id="GPU-1", memory_free_bytes=-1)
    >>> [reading.device_id for reading in valid_readings(sent)]
    ['GPU-0']
    """
    return tuple(reading for reading in readings if _is_possible(reading))


def _check_readings(readings: tuple[Telemetry, ...]) -> tuple[Telemetry, ...]:
    for reading in readings:
        _check_printable(reading.device_id)
        if not _is_possible(reading):
            raise ValueError("a number is negative, not finite, or larger than any hardware has")
    return readings


Readings = Annotated[tuple[Telemetry, ...], FailFast(), Field(max_length=MAX_DEVICES), AfterValidator(_check_readings)]


def _check_lease_ids(leases: frozenset[str]) -> frozenset[str]:
    for lease_id in leases:
        if not 0 < len(lease_id) <= MAX_LEASE_CHARACTERS:
            raise ValueError(f"the id of a lease has {len(lease_id)} characters, not 1 to {MAX_LEASE_CHARACTERS}")
        _check_printable(lease_id)
    return leases


LeaseIds = Annotated[frozenset[str], Field(max_length=MAX_LEASES), AfterValidator(_check_lease_ids)]


def _names(worker: Worker) -> Iterator[str]:
    """All texts of a worker that are shown or compared as names."""
    yield worker.host
    yield worker.boot_id
    for pairs in (worker.labels, worker.runtime):
        yield from pairs
        yield from pairs.values()
    for device in worker.devices:
        yield device.id
        yield from device.peers
        yield from device.details
        yield from (text for text in (device.parent, device.driver, device.capability, device.pci) if text)


def _check_worker(worker: Worker) -> Worker:
    if worker.engine == SCHEDULER_ENGINE:
        raise ValueError(f"the engine {SCHEDULER_ENGINE} is only for the scheduler's own host")
    for name in _names(worker):
        if len(name) > 256:
            raise ValueError("a name, a label or a version has more than 256 characters")
        _check_printable(name)
    if not all(isinstance(core, int) and 0 <= core < 2**16 for device in worker.devices for core in device.cores):
        raise ValueError("a CPU core has a number that no host has")
    return worker


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Enrolment(_Body):
    """The public key for a worker's agent; the secret is the request's bearer token."""

    worker: Name
    public_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Ed25519, in hexadecimal digits."""


class InventoryReport(_Body):
    """The worker's inventory; sent when it has changed."""

    worker: Annotated[Worker, AfterValidator(_check_worker)]
    telemetry: Readings = ()
    leases: LeaseIds = frozenset()


class DeviceError(_Body):
    """An error of a device that its driver reported. The server decides what it means."""

    device_id: Name
    """A GPU in MIG mode stands for its instances too."""
    at: AwareDatetime
    xid: int | None = Field(default=None, ge=0, le=10_000)
    ecc_errors: int | None = Field(default=None, gt=0, le=2**53)
    """Number of new uncorrected errors."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> "DeviceError":
        if (self.xid is None) == (self.ecc_errors is None):
            raise ValueError("an error of a device has either an xid or ecc_errors")
        return self


class Heartbeat(_Body):
    """A sign of life of the worker."""

    worker: Name
    inventory: str = Field(default="", max_length=64)
    """Name of the inventory that the server should have, from its reply to the last `InventoryReport`."""
    telemetry: Readings = ()
    leases: LeaseIds = frozenset()
    """Ids of the leases with processes on the host."""
    errors: Annotated[tuple[DeviceError, ...], FailFast(), Field(max_length=MAX_ERRORS)] = ()
    """Errors since the last answered heartbeat. Repeated errors count once."""
    is_leaving: bool = False
    """The agent was told to stop: the worker gets no new task."""
    data: HostData | None = None
    """What the host's data cache holds; None: as before."""
    reclaimed: Annotated[str, Field(max_length=MAX_LEASE_CHARACTERS), AfterValidator(_check_printable)] = ""
    """Why the machine is taken back: the worker gets no new task, and its tasks save and move. Empty if it is not."""


class ServerReply(BaseModel):
    """The server's reply to an `InventoryReport` or a `Heartbeat`."""

    model_config = ConfigDict(frozen=True)

    inventory: str = ""
    """Name of the inventory that the server has; empty for none."""
    leases: int | None = None
    """How many leases a leaving worker still has. At 0 it has left."""
    end: tuple[str, ...] = ()
    """Ids of reported leases that are over: the agent ends their processes. While such processes run, a worker that was
    lost gets no task."""
    unknown: tuple[str, ...] = ()
    """Ids of reported leases that the server has never granted to this worker: those of another Airflow, or made up."""
    contested: tuple[str, ...] = ()
    """Ids of devices that another worker reports too: only one worker at a time gets tasks for them."""


def read_body(model: type[M], body: bytes) -> M:
    """The body as a value of the model.

    Lists that are too long are refused before validation: pydantic collects every error, so a body of 3 MB with a
    million invalid devices needs 6 GB of memory.

    :raises ValueError: the body is invalid; the text says where and why in one line
    """
    try:
        value = from_json(body)
    except ValueError as error:
        raise ValueError(f"no JSON: {str(error)[:200]}") from error
    _check_lengths(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ValueError(f"{where or 'the body'}: {problem}") from error


def _check_lengths(value: Any) -> None:
    if isinstance(value, list):
        if len(value) > MAX_DEVICES:
            raise ValueError(f"a list of {len(value)}; none may have more than {MAX_DEVICES}")
        for item in value:
            _check_lengths(item)
    elif isinstance(value, dict):
        if len(value) > MAX_FIELDS:
            raise ValueError(f"an object with {len(value)} fields; none may have more than {MAX_FIELDS}")
        for item in value.values():
            _check_lengths(item)
