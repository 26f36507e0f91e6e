"""What the page shows of workers and devices."""

from datetime import datetime

from pydantic import BaseModel

from hetero_airflow.executor.explanation.device_state import DeviceState
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.web.page.task_rows import LeaseRow, TaskLink


class DeviceGroup(BaseModel):
    """Neighbouring devices of one worker that look the same."""

    name: str
    """Vendor and model."""
    state: DeviceState
    simulated: bool
    devices: int


class WorkerTile(BaseModel):
    """A worker of the map."""

    worker: str
    engine: str
    state: str
    site: str
    rack: str
    groups: list[DeviceGroup]
    """In the order of the worker's inventory."""


class FleetSummary(BaseModel):
    """All workers and devices in figures, and the values that filters offer."""

    workers: int
    devices: int
    states: dict[str, int]
    """`DeviceState` → number of devices."""
    choices: dict[str, list[str]]
    """Field of the filter → values that exist, sorted."""


class FleetMap(BaseModel):
    """The map of the matching workers."""

    workers: int
    """Matching workers; `tiles` has the first `MAX_TILES` of them."""
    devices: int
    states: dict[str, int]
    """`DeviceState` → number of matching devices."""
    tiles: list[WorkerTile]


class FleetDevice(BaseModel):
    """A device with its newest reading."""

    worker: str
    device: str
    index: int
    kind: str
    name: str
    memory_bytes: int | None
    """None where the vendor gives no figure."""
    is_host_memory: bool
    """Whether it is the memory of the host, which an integrated GPU uses."""
    simulated: bool
    state: DeviceState
    problem: str | None
    leased: float
    """The leased part of it, 0 to 1."""
    utilization: float | None
    """0 to 1; None where it was not measured."""
    memory_free_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    holders: list[TaskLink | None]
    """The tasks that hold it; None for each that the reader may not see."""


class FleetTable(BaseModel):
    """A page of devices."""

    total: int
    devices: list[FleetDevice]


class HoldRow(BaseModel):
    """Why a worker, or a device of it, gets no new task."""

    device: str
    """Empty for the whole worker."""
    kind: HoldKind
    cause: str
    since: datetime
    returns: str
    moves: bool


class WorkerFacts(BaseModel):
    """All that is known of one worker."""

    worker: str
    host: str
    engine: str
    state: str
    last_seen: datetime | None
    labels: dict[str, str]
    runtime: dict[str, str]
    problems: list[str]
    holds: list[HoldRow]
    devices: list[FleetDevice]
    links: list[tuple[str, str]]
    """Pairs of devices with a direct link, such as NVLink; each pair once."""
    leases: list[LeaseRow]
    may_drain: bool
    """Whether the reader may drain and undrain it."""
