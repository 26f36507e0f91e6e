"""Which workers and devices a reader asks for, as tiles, rows and the facts of one worker. Pure.

FastAPI reads the fields of `FleetFilter` from the query, so their annotations are objects, not texts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from hetero_airflow.executor.explanation.device_state import DeviceState, device_state
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.memory import is_integrated
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import RACK_LABEL, SITE_LABEL
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.web.page.task_rows import LeaseRow, TaskLink, lease_row

Text = Annotated[str, Query(max_length=256)]


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Empty fields filter nothing. Texts are compared as they are; none is a pattern."""

    search: Text = ""
    """A part of the worker's id or host, or of the device's id or model; upper and lower case are equal."""
    kind: Text = ""
    vendor: Text = ""
    model: Text = ""
    site: Text = ""
    rack: Text = ""
    label: Text = ""
    """``name`` or ``name=value`` of a worker's label."""
    state: DeviceState | None = None

    def admits_worker(self, worker: Worker) -> bool:
        """Whether the worker's own facts match; the search is left to the devices."""
        name, equals, value = self.label.partition("=")
        return (
            (not self.site or worker.labels.get(SITE_LABEL) == self.site)
            and (not self.rack or worker.labels.get(RACK_LABEL) == self.rack)
            and (not name or (name in worker.labels and (not equals or worker.labels[name] == value)))
        )

    def admits_device(self, worker: Worker, device: Device, state: DeviceState) -> bool:
        """Whether a device of an admitted worker matches."""
        return (
            (not self.kind or device.kind == self.kind)
            and (not self.vendor or device.vendor == self.vendor)
            and (not self.model or device.model == self.model)
            and (self.state is None or state is self.state)
            and (not self.search or self._finds(worker.id, worker.host, device.id, f"{device.vendor}/{device.model}"))
        )

    def _finds(self, *texts: str) -> bool:
        needle = self.search.casefold()
        return any(needle in text.casefold() for text in texts)


def filtered_fleet(
    snapshot: Snapshot, readings: Mapping[tuple[str, str], Telemetry], wanted: FleetFilter
) -> Iterator[tuple[Worker, list[tuple[Device, DeviceState]]]]:
    """The matching workers in the order of their ids, each with its matching devices.

    A worker without devices matches if only its own facts are asked for.
    """
    holds = {hold.worker_id for hold in snapshot.holds}
    for worker in snapshot.workers:
        if not wanted.admits_worker(worker):
            continue
        holds_of_worker = snapshot.holds_of(worker.id) if worker.id in holds else ()
        states = (
            (device, device_state(worker, device, snapshot.used(*key), readings.get(key), holds_of_worker))
            for device in worker.devices
            for key in ((worker.id, device.id),)
        )
        devices = [(device, state) for device, state in states if wanted.admits_device(worker, device, state)]
        if devices or (not worker.devices and wanted == FleetFilter()):
            yield worker, devices


MAX_TILES = 2000
"""Workers of a map. A larger fleet is filtered."""

MAX_CHOICES = 200
"""Values that a filter offers."""

Readings = Mapping[tuple[str, str], Telemetry]


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

    model_config = ConfigDict(from_attributes=True)

    device: str = Field(validation_alias="device_id")
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


def fleet_summary(snapshot: Snapshot, readings: Readings) -> FleetSummary:
    """All workers and devices in figures."""
    fleet = filtered_fleet(snapshot, readings, FleetFilter())
    states = Counter(state.value for _, devices in fleet for _, state in devices)
    return FleetSummary(
        workers=len(snapshot.workers), devices=states.total(), states=states, choices=_choices(snapshot.workers)
    )


def fleet_map(snapshot: Snapshot, readings: Readings, wanted: FleetFilter) -> FleetMap:
    """The map of the matching workers and devices."""
    states: Counter[str] = Counter()
    tiles: list[WorkerTile] = []
    workers = 0
    for worker, devices in filtered_fleet(snapshot, readings, wanted):
        workers += 1
        states.update(state.value for _, state in devices)
        if len(tiles) < MAX_TILES:
            tiles.append(_tile(worker, devices))
    return FleetMap(workers=workers, devices=states.total(), states=states, tiles=tiles)


def fleet_table(
    snapshot: Snapshot, readings: Readings, wanted: FleetFilter, readable: Collection[str], offset: int, limit: int
) -> FleetTable:
    """A page of the matching devices, in the order of workers and their inventories."""
    matching = [
        (worker, device, state)
        for worker, devices in filtered_fleet(snapshot, readings, wanted)
        for device, state in devices
    ]
    page = matching[offset : offset + limit]
    leases = _leases_by_device(snapshot.leases, {worker.id for worker, _, _ in page})
    rows = [_device_row(*found, snapshot, readings, leases, readable) for found in page]
    return FleetTable(total=len(matching), devices=rows)


def worker_facts(
    snapshot: Snapshot,
    readings: Readings,
    worker: Worker,
    last_seen: datetime | None,
    readable: Collection[str],
    now: datetime,
    may_drain: bool,
) -> WorkerFacts:
    """One worker of the snapshot."""
    alone = Snapshot(snapshot.sequence, (worker,), snapshot.usage, holds=snapshot.holds_of(worker.id))
    leases = _leases_by_device(snapshot.leases, {worker.id})
    live = [lease for lease in snapshot.leases if lease.worker_id == worker.id]
    rows = [
        _device_row(worker, device, state, snapshot, readings, leases, readable)
        for _, devices in filtered_fleet(alone, readings, FleetFilter())
        for device, state in devices
    ]
    present = {device.id for device in worker.devices}
    links = {
        (min(device.id, peer), max(device.id, peer))
        for device in worker.devices
        for peer in device.peers
        if peer in present
    }
    return WorkerFacts(
        worker=worker.id,
        host=worker.host,
        engine=worker.engine,
        state=worker.state,
        last_seen=last_seen,
        labels=worker.labels,
        runtime=worker.runtime,
        problems=list(worker.problems),
        holds=[HoldRow.model_validate(hold) for hold in snapshot.holds_of(worker.id)],
        devices=rows,
        links=sorted(links),
        leases=[
            lease_row(lease, snapshot.holders, {worker.id: worker}, snapshot.estimates, readable, now) for lease in live
        ],
        may_drain=may_drain,
    )


def _tile(worker: Worker, devices: Iterable[tuple[Device, DeviceState]]) -> WorkerTile:
    facts = ((f"{device.vendor}/{device.model}", state, device.simulated) for device, state in devices)
    groups = [
        DeviceGroup(name=name, state=state, simulated=simulated, devices=sum(1 for _ in same))
        for (name, state, simulated), same in groupby(facts)
    ]
    labels = worker.labels
    return WorkerTile(
        worker=worker.id,
        engine=worker.engine,
        state=worker.state,
        site=labels.get(SITE_LABEL, ""),
        rack=labels.get(RACK_LABEL, ""),
        groups=groups,
    )


def _choices(workers: Iterable[Worker]) -> dict[str, list[str]]:
    choices: dict[str, set[str]] = defaultdict(set)
    for worker in workers:
        choices["site"].add(worker.labels.get(SITE_LABEL, ""))
        choices["rack"].add(worker.labels.get(RACK_LABEL, ""))
        choices["label"].update(f"{name}={value}" for name, value in worker.labels.items())
        for device in worker.devices:
            choices["kind"].add(device.kind)
            choices["vendor"].add(device.vendor)
            choices["model"].add(device.model)
    return {name: sorted(values - {""})[:MAX_CHOICES] for name, values in sorted(choices.items())}


def _leases_by_device(leases: Iterable[Lease], worker_ids: Collection[str]) -> dict[tuple[str, str], list[Lease]]:
    by_device: dict[tuple[str, str], list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.worker_id in worker_ids:
            for claim in lease.claims:
                by_device[lease.worker_id, claim.device_id].append(lease)
    return by_device


def _device_row(
    worker: Worker,
    device: Device,
    state: DeviceState,
    snapshot: Snapshot,
    readings: Readings,
    leases: Mapping[tuple[str, str], list[Lease]],
    readable: Collection[str],
) -> FleetDevice:
    key = (worker.id, device.id)
    reading = readings.get(key) or Telemetry(device_id=device.id)
    return FleetDevice(
        worker=worker.id,
        device=device.id,
        index=device.index,
        kind=device.kind,
        name=device.name,
        memory_bytes=device.memory_bytes,
        is_host_memory=is_integrated(device),
        simulated=device.simulated,
        state=state,
        problem=_problem(worker, device, snapshot.holds_of(worker.id) if not device.leasable else ()),
        leased=snapshot.used(*key).share_milli / max(device.capacity_milli, 1),
        utilization=reading.utilization,
        memory_free_bytes=reading.memory_free_bytes,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        holders=[TaskLink.of(snapshot.holders.get(lease.request_id), readable) for lease in leases.get(key, ())],
    )


def _problem(worker: Worker, device: Device, holds: tuple[Hold, ...]) -> str | None:
    """What a reader sees as the cause: that its worker is lost, the holds on it, or its own problem."""
    if worker.state is WorkerState.LOST:
        return "the heartbeat of its worker stopped"
    texts = [f"{hold.kind}: {hold.cause}" for hold in holds_on(device, holds)]
    return "; ".join(texts) or device.problem
