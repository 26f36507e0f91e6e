"""Demands of requests and free capacity of workers, as numbers."""

from collections.abc import Sequence
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
