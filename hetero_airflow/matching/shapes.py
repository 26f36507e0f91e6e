"""Shapes of workers: two workers of one shape differ only in ids and leases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.memory import is_integrated
from hetero_airflow.model.worker import Worker

MAX_SHAPES = 20_000
"""Shapes kept. Beyond that all are forgotten and made again; 10,000 workers of different kinds still fit twice."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A class of equal workers. A device is known by its position: ordered by index, then id.

    Two shapes of one `Shapes` are equal only if they are the same object.
    """

    devices: tuple[Device, ...]
    """The devices of the first worker that had this shape."""
    runtime: Mapping[str, str]
    """Names in lower case."""
    labels: Mapping[str, str]
    cpu: int | None
    """Position of the CPU device."""
    capacity: tuple[tuple[int, int], ...]
    """(thousandths, bytes) of each device; 0 bytes if its memory is unknown, of which requests take 0."""
    links: tuple[frozenset[int], ...]
    """For each device, the positions of its peers."""
    accelerators: int
    integrated: frozenset[int] = frozenset()
    """Positions of the integrated GPUs (`is_integrated`); empty on a worker without another GPU."""
    node_assigns_devices: bool = False
    """See `Worker.node_assigns_devices`."""

    @property
    def cpu_device(self) -> Device | None:
        """The CPU device."""
        return None if self.cpu is None else self.devices[self.cpu]


@dataclass(frozen=True, slots=True, eq=False)
class WorkerEntry:
    """A worker with its shape, and the position of each of its devices in the shape."""

    worker: Worker
    shape: Shape
    device_ids: tuple[str, ...]
    position: Mapping[str, int] = field(default_factory=dict)


class Shapes:
    """Finds the shape of a worker, and remembers it as long as the worker is the same object."""

    def __init__(self) -> None:
        self._shapes: dict[object, Shape] = {}
        self._entries: dict[str, WorkerEntry] = {}

    def entry(self, worker: Worker) -> WorkerEntry:
        """The worker's shape and the positions of its devices.

        >>> from hetero_airflow.testing import a_worker
        >>> shapes = Shapes()
        >>> shapes.entry(a_worker("a")).shape is shapes.entry(a_worker("b")).shape
        True
        """
        stored = self._entries.get(worker.id)
        if stored is not None and stored.worker is worker:
            return stored
        if len(self._shapes) > MAX_SHAPES or len(self._entries) > 2 * MAX_SHAPES:
            self._shapes.clear()
            self._entries.clear()
        entry = self._entries[worker.id] = self._make_entry(worker)
        return entry

    def _make_entry(self, worker: Worker) -> WorkerEntry:
        devices = tuple(sorted(worker.devices, key=lambda device: (device.index, device.id)))
        position = {device.id: place for place, device in enumerate(devices)}
        links = tuple(frozenset(position[peer] for peer in device.peers if peer in position) for device in devices)
        cpu = None if worker.cpu is None else position[worker.cpu.id]
        runtime = {name.lower(): version for name, version in sorted(worker.runtime.items())}
        key = (
            tuple((_device_key(device), linked) for device, linked in zip(devices, links, strict=True)),
            cpu,
            tuple(runtime.items()),
            tuple(sorted(worker.labels.items())),
            worker.node_assigns_devices,
        )
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(
                devices=devices,
                runtime=runtime,
                labels=dict(worker.labels),
                cpu=cpu,
                capacity=tuple((device.capacity_milli, device.memory_bytes or 0) for device in devices),
                links=links,
                accelerators=sum(device.kind != "cpu" for device in devices),
                integrated=_integrated_beside_cards(devices),
                node_assigns_devices=worker.node_assigns_devices,
            )
        return WorkerEntry(worker, shape, tuple(device.id for device in devices), position)


def _integrated_beside_cards(devices: Sequence[Device]) -> frozenset[int]:
    integrated = frozenset(position for position, device in enumerate(devices) if is_integrated(device))
    gpus = sum(device.kind == "gpu" and not device.simulated for device in devices)
    return integrated if gpus > len(integrated) else frozenset()


def _device_key(device: Device) -> tuple[object, ...]:
    return (
        device.vendor, device.kind, device.model, device.partition, device.memory_bytes, len(device.cores),
        device.driver, device.capability, device.leasable, device.problem, device.numa_node, device.simulated,
        is_integrated(device),
    )  # fmt: skip
