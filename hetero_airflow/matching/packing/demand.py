"""What is asked for, as arrays: how the placements that look ahead see requests and what is left of a worker."""

from __future__ import annotations

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
"""What is asked for, and how often; the parts need not sum to 1."""

TOO_SMALL_REASONS = frozenset({ReasonCode.COUNT, ReasonCode.CPUS, ReasonCode.HOST_MEMORY, ReasonCode.TOPOLOGY})
"""Why an alternative may never run on a worker that has the right devices."""


class DeviceDemand(NamedTuple):
    """What an alternative takes of a worker: `milli` of each of so many accelerators, cores and host memory."""

    share_milli: int
    devices: int
    cores_milli: int
    memory_bytes: int


NO_DEMAND = DeviceDemand(0, 0, 0, 0)


def device_demand(alternative: Alternative) -> DeviceDemand:
    """What the alternative takes.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> device_demand(DeviceRequest.parse("gpu:0.5", quota={"cpus": 4}).alternatives[0])
    DeviceDemand(share_milli=500, devices=1, cores_milli=4000, memory_bytes=0)
    >>> device_demand(DeviceRequest.parse("cpu:2").alternatives[0])
    DeviceDemand(share_milli=0, devices=0, cores_milli=2000, memory_bytes=0)
    """
    if alternative.kind == "cpu":
        return DeviceDemand(0, 0, MILLI_PER_DEVICE * alternative.count, alternative.host_memory or 0)
    beside = host_need(alternative)
    return DeviceDemand(alternative.share_milli, alternative.count, *(beside or (0, 0)))


def has_suitable_devices(shape: Shape, alternative: Alternative) -> bool:
    """Whether workers of the shape have the devices that the alternative is about, if perhaps too few or too small."""
    rejection = feasibility_of(alternative, shape).permanent_rejection
    return rejection is None or rejection.reason.code in TOO_SMALL_REASONS


class FreeCapacity(NamedTuple):
    """What is left of a worker: free thousandths of its cores, bytes, and free thousandths of its accelerators."""

    cores_milli: int
    memory_bytes: int
    parts: tuple[int, ...]
    """Ascending; 1000 is an idle accelerator."""


def free_capacity(shape: Shape, held: Sequence[Allocation]) -> FreeCapacity:
    """What is left where so much is held; nothing, not less, where more is held than there is."""
    cores_milli = memory_bytes = 0
    if shape.cpu is not None:
        cores_milli = shape.capacity[shape.cpu][0] - held[shape.cpu].share_milli
        memory_bytes = shape.capacity[shape.cpu][1] - held[shape.cpu].memory_bytes
    parts = tuple(sorted(free_share_milli(held, p) for p in accelerator_positions(shape)))
    return FreeCapacity(max(cores_milli, 0), max(memory_bytes, 0), parts)


def accelerator_positions(shape: Shape) -> tuple[int, ...]:
    """Positions of the accelerators that may be leased."""
    return tuple(p for p, device in enumerate(shape.devices) if device.kind != "cpu" and device.leasable)


def free_share_milli(held: Sequence[Allocation], position: int) -> int:
    """Free thousandths of one accelerator."""
    return max(MILLI_PER_DEVICE - held[position].share_milli, 0)


@dataclass(frozen=True, eq=False)
class DeviceDemands:
    """Many asks as arrays, the last of them nothing: what a worker is worth as it is stands beside what it would be."""

    all: tuple[DeviceDemand, ...]

    @classmethod
    def of(cls, asks: Iterable[DeviceDemand]) -> DeviceDemands:
        """These asks, and nothing."""
        return cls((*asks, NO_DEMAND))

    @cached_property
    def variants(self) -> tuple[tuple[int, int], ...]:
        """The different (milli, devices), ascending: all that accelerators see of an ask."""
        return tuple(sorted({(ask.share_milli, ask.devices) for ask in self.all}))

    @cached_property
    def variant(self) -> Numbers:
        """The number of each ask's variant."""
        number = {variant: index for index, variant in enumerate(self.variants)}
        return np.array([number[ask.share_milli, ask.devices] for ask in self.all])

    @cached_property
    def cores_milli(self) -> Numbers:
        """Of each ask."""
        return np.array([ask.cores_milli for ask in self.all])

    @cached_property
    def memory_bytes(self) -> Numbers:
        """Of each ask."""
        return np.array([ask.memory_bytes for ask in self.all])


class VariantOptions(NamedTuple):
    """The different ways to place variants on the accelerators of a worker, as arrays: one entry a way."""

    variant: Numbers
    """Ascending; a variant that does not fit is absent."""
    part: Numbers
    """The free part that is taken, ascending within a variant; 1000 for whole devices, 0 for nothing."""
    left: Numbers
    """What is left of that part."""
    times: Numbers
    """Of how many devices."""

    @property
    def first(self) -> Numbers:
        """Where each variant's entries begin."""
        return np.flatnonzero(np.diff(self.variant, prepend=-1))


def variant_options(parts: tuple[int, ...], variants: Sequence[tuple[int, int]]) -> VariantOptions:
    """All ways to place each of the variants (milli, devices) beside what is there.

    >>> [column.tolist() for column in variant_options((300, 300, 1000), [(0, 0), (300, 1), (1000, 1), (1000, 2)])]
    [[0, 1, 1, 2], [0, 300, 1000, 1000], [0, 0, 700, 0], [0, 1, 1, 1]]
    """
    different, idle = sorted(set(parts)), parts.count(MILLI_PER_DEVICE)
    ways = []
    for number, (milli, devices) in enumerate(variants):
        if not milli:
            ways.append((number, 0, 0, 0))
        elif milli == MILLI_PER_DEVICE:
            ways += [(number, milli, 0, devices)] * (devices <= idle)
        else:
            ways += [(number, part, part - milli, 1) for part in different if part >= milli]
    return VariantOptions(*np.array(ways).T)
