"""How much of the accelerators any placement of given requests can fill."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.core.linear_program import minimise
from hetero_airflow.simulator.workload import Workload
from hetero_airflow.units import MILLI_PER_DEVICE

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class _JobShape:
    """What a job takes of a worker: a share of one device, or whole devices. No models means any model."""

    share_milli: int
    cores: int
    host_memory_bytes: int
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class _WorkerShape:
    """The capacity of equal workers."""

    model: str
    devices: int
    cores: int
    host_memory_bytes: int


@dataclass(slots=True)
class _Program:
    """A linear program that grows by variables. A row has any key, and the limit 0 until `limit` is set."""

    limits: dict[object, float] = field(default_factory=dict)
    cost: list[float] = field(default_factory=list)
    entries: list[tuple[object, int, float]] = field(default_factory=list)

    def add(self, cost: float, entries: Iterable[tuple[object, float]]) -> None:
        """Add a variable with its coefficients by row."""
        self.entries += ((row, len(self.cost), value) for row, value in entries if value)
        self.cost.append(cost)

    def least(self) -> float | None:
        """The least cost."""
        number = {row: index for index, row in enumerate(self.limits)}
        for row, _, _ in self.entries:
            number.setdefault(row, len(number))
        limits = np.array([self.limits.get(row, 0.0) for row in number])
        rows = np.array([number[row] for row, _, _ in self.entries])
        columns, values = np.array([e[1] for e in self.entries]), np.array([e[2] for e in self.entries])
        solution = minimise(np.array(self.cost), (rows, columns, values), limits)
        return solution.value if solution else None


def allocation_bound(workload: Workload, workers: Sequence[Worker] = ()) -> float:
    """The largest share of the accelerators, 0 to 1, that jobs of the workload can hold at the same time.

    A linear program over classes of equal jobs × classes of equal workers. A job goes only where its model is and
    where it fits on one empty worker; no class of jobs has more than the workload; no class of workers gives more
    cores, host memory and devices than it has in all; and shares fill whole devices in the ways that their sizes
    allow, as a flow along sums of sizes (the arc-flow formulation of bin packing, Valério de Carvalho 1999). It is a
    bound since jobs and devices may be cut into parts. All accelerators of a worker must be of one model.

    :param workers: the cluster; empty is the workload's own
    """
    asks = Counter(_job_shape(job.request) for job in workload.jobs if job.ranks)
    offers = Counter(_worker_shape(worker) for worker in workers or workload.workers)
    there = sum(offer.devices * count for offer, count in offers.items())
    program = _Program()
    for ask, count in asks.items():
        program.limits["jobs", ask] = count
    for offer, count in offers.items():
        program.limits["cores", offer] = offer.cores * count
        program.limits["memory", offer] = offer.host_memory_bytes * count / _GIB
        program.limits["sum", offer, 0] = offer.devices * count
        here = [ask for ask in asks if ask.share_milli and _fits(ask, offer)]
        for ask in here:
            is_share = ask.share_milli < MILLI_PER_DEVICE
            devices = ("size", offer, ask.share_milli) if is_share else ("sum", offer, 0)
            program.add(
                -ask.share_milli / MILLI_PER_DEVICE,
                [
                    (("jobs", ask), 1.0),
                    (("cores", offer), float(ask.cores)),
                    (("memory", offer), ask.host_memory_bytes / _GIB),
                    (devices, 1.0 if is_share else ask.share_milli / MILLI_PER_DEVICE),
                ],
            )
        for start, size in _arcs({ask.share_milli for ask in here if ask.share_milli < MILLI_PER_DEVICE}):
            flow = [(("sum", offer, start), 1.0), (("size", offer, size), -1.0)]
            program.add(0.0, [*flow, (("sum", offer, start + size), -1.0)])
    best = program.least() if program.cost else None
    return min(1.0, -best / there) if best is not None and there else 0.0


def _arcs(sizes: set[int]) -> list[tuple[int, int]]:
    """(sum before, size) of each step that fills a device, larger sizes first, so that each content has one way."""
    sums, arcs = {0}, set[tuple[int, int]]()
    for size in sorted(sizes, reverse=True):
        steps = {(before, size) for start in sums for before in range(start, MILLI_PER_DEVICE - size + 1, size)}
        sums |= {before + size for before, _ in steps}
        arcs |= steps
    return sorted(arcs)


def _job_shape(request: DeviceRequest) -> _JobShape:
    first = request.alternatives[0]
    models = frozenset(alternative.model for alternative in request.alternatives if alternative.model)
    share_milli = 0 if first.kind == "cpu" else first.count * first.share_milli
    return _JobShape(share_milli, first.cpus or 0, first.host_memory or 0, models)


def _worker_shape(worker: Worker) -> _WorkerShape:
    devices = [device for device in worker.devices if device.kind != "cpu"]
    cpus = [device for device in worker.devices if device.kind == "cpu"]
    cores, host_memory_bytes = sum(len(cpu.cores) for cpu in cpus), sum(cpu.memory_bytes for cpu in cpus)
    return _WorkerShape(devices[0].model if devices else "", len(devices), cores, host_memory_bytes)


def _fits(ask: _JobShape, offer: _WorkerShape) -> bool:
    return (
        ask.share_milli <= offer.devices * MILLI_PER_DEVICE
        and ask.cores <= offer.cores
        and ask.host_memory_bytes <= offer.host_memory_bytes
        and (not ask.models or offer.model in ask.models)
    )
