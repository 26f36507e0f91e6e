"""Demands of requests and free capacity of workers, as numbers and arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.matching.feasibility import feasibility_of, host_need
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.units import MILLI_PER_DEVICE

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

RequestMix = tuple[tuple[Alternative, float], ...]
"""Alternatives with their parts of all requests; the parts need not sum to 1."""

TOO_SMALL_REASONS = frozenset({ReasonCode.COUNT, ReasonCode.CPUS, ReasonCode.HOST_MEMORY, ReasonCode.TOPOLOGY})
"""Why an alternative can never run on a worker with the right devices."""


class DeviceDemand(NamedTuple):
    """What an alternative takes of a worker: `share_milli` of each of `devices` accelerators, cores and host memory."""

    share_milli: int
    devices: int
    cores_milli: int
    memory_bytes: int


NO_DEMAND = DeviceDemand(0, 0, 0, 0)


def device_demand(alternative: Alternative) -> DeviceDemand:
    """What the alternative takes of a worker.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> device_demand(DeviceRequest.parse("gpu:0.5", quota={"cpus": 4}).alternatives[0])
    DeviceDemand(share_milli=500, devices=1, cores_milli=4000, memory_bytes=0)
    >>> device_demand(DeviceRequest.parse("cpu:2").alternatives[0])
    DeviceDemand(share_milli=0, devices=0, cores_milli=2000, memory_bytes=0)
    """
    if alternative.kind == "cpu":
        return DeviceDemand(0, 0, MILLI_PER_DEVICE * alternative.count, alternative.host_memory or 0)
    return DeviceDemand(alternative.share_milli, alternative.count, *(host_need(alternative) or (0, 0)))


def has_suitable_devices(shape: Shape, alternative: Alternative) -> bool:
    """Whether workers of the shape have the right devices for the alternative, maybe too few or too small."""
    rejection = feasibility_of(alternative, shape).permanent_rejection
    return rejection is None or rejection.reason.code in TOO_SMALL_REASONS


class FreeCapacity(NamedTuple):
    """The free capacity of a worker: thousandths of cores, bytes, and thousandths of each accelerator."""

    cores_milli: int
    memory_bytes: int
    parts: tuple[int, ...]
    """Ascending; 1000 is an idle accelerator."""


def free_capacity(shape: Shape, held: Sequence[Allocation]) -> FreeCapacity:
    """What is free beside what is held; 0 if more is held than there is."""
    cores_milli = memory_bytes = 0
    if shape.cpu is not None:
        cores_milli = shape.capacity[shape.cpu][0] - held[shape.cpu].share_milli
        memory_bytes = shape.capacity[shape.cpu][1] - held[shape.cpu].memory_bytes
    parts = tuple(sorted(free_share_milli(held, p) for p in accelerator_positions(shape)))
    return FreeCapacity(max(cores_milli, 0), max(memory_bytes, 0), parts)


def accelerator_positions(shape: Shape) -> tuple[int, ...]:
    """Positions of the leasable accelerators."""
    return tuple(p for p, device in enumerate(shape.devices) if device.kind != "cpu" and device.leasable)


def free_share_milli(held: Sequence[Allocation], position: int) -> int:
    """Free thousandths of one accelerator."""
    return max(MILLI_PER_DEVICE - held[position].share_milli, 0)


@dataclass(frozen=True, eq=False)
class DeviceDemands:
    """Many demands as arrays. The last one is an empty demand, which gives the value of the worker as it is."""

    all: tuple[DeviceDemand, ...]

    @classmethod
    def of(cls, demands: Iterable[DeviceDemand]) -> "DeviceDemands":
        """These demands, and the empty one."""
        return cls((*demands, NO_DEMAND))

    @cached_property
    def variants(self) -> tuple[tuple[int, int], ...]:
        """The different (share_milli, devices) pairs, ascending: the part of a demand that concerns accelerators."""
        return tuple(sorted({(demand.share_milli, demand.devices) for demand in self.all}))

    @cached_property
    def variant(self) -> Numbers:
        """The number of each demand's variant."""
        number = {variant: index for index, variant in enumerate(self.variants)}
        return np.array([number[demand.share_milli, demand.devices] for demand in self.all])

    @cached_property
    def cores_milli(self) -> Numbers:
        """The cores of each demand."""
        return np.array([demand.cores_milli for demand in self.all])

    @cached_property
    def memory_bytes(self) -> Numbers:
        """The host memory of each demand."""
        return np.array([demand.memory_bytes for demand in self.all])


class VariantOptions(NamedTuple):
    """The different options to place variants on the accelerators of a worker, as arrays with one entry per option."""

    variant: Numbers
    """Ascending; a variant that does not fit is absent."""
    part: Numbers
    """The free part that is used, ascending within a variant; 1000 for whole devices, 0 for none."""
    left: Numbers
    """What is left of that part."""
    times: Numbers
    """The number of devices."""

    @property
    def first(self) -> Numbers:
        """Where the entries of each variant begin."""
        return np.flatnonzero(np.diff(self.variant, prepend=-1))


def variant_options(parts: tuple[int, ...], variants: Sequence[tuple[int, int]]) -> VariantOptions:
    """All options to place each of the variants (share_milli, devices) on accelerators with these free parts.

    >>> [column.tolist() for column in variant_options((300, 300, 1000), [(0, 0), (300, 1), (1000, 1), (1000, 2)])]
    [[0, 1, 1, 2], [0, 300, 1000, 1000], [0, 0, 700, 0], [0, 1, 1, 1]]
    """
    different, idle = sorted(set(parts)), parts.count(MILLI_PER_DEVICE)
    options = []
    for number, (share_milli, devices) in enumerate(variants):
        if not share_milli:
            options.append((number, 0, 0, 0))
        elif share_milli == MILLI_PER_DEVICE:
            options += [(number, share_milli, 0, devices)] * (devices <= idle)
        else:
            options += [(number, part, part - share_milli, 1) for part in different if part >= share_milli]
    return VariantOptions(*np.array(options).T)
