"""The state of a device as one word, for the page in Airflow's UI and `airflow hetero top`. Pure."""

from enum import StrEnum

from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.hold import Hold, holds_on
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState

IDLE_UTILIZATION = 0.05
"""A leased device below this utilisation counts as idle."""


class DeviceState(StrEnum):
    """What a device does, in one word."""

    FREE = "free"
    """It takes a task now."""
    LEASED = "leased"
    """A task holds all of it."""
    PARTLY = "partly"
    """Tasks hold a part of it."""
    IDLE = "idle"
    """A task holds it, but it computes nothing at present."""
    HELD = "held"
    """It gets no new task: a person drained it, its machine leaves, or it is tested after errors."""
    FAULTY = "faulty"
    """It reports a problem, or its worker is lost."""
    DIVIDED = "divided"
    """It is not leased itself: its parts are."""


def device_state(
    worker: Worker, device: Device, usage: DeviceUsage, reading: Telemetry | None, holds: tuple[Hold, ...]
) -> DeviceState:
    """The state of a device of a worker.

    A fault is shown before a hold, and both before what the device does.

    :param holds: those of the worker

    >>> from hetero_airflow.testing import a_worker
    >>> worker = a_worker()
    >>> device_state(worker, worker.devices[1], DeviceUsage(500), None, ()).value
    'partly'
    """
    if worker.state is WorkerState.LOST:
        return DeviceState.FAULTY
    if holds_on(device, holds):
        return DeviceState.HELD
    if not device.leasable:
        has_parts = any(other.parent == device.id for other in worker.devices)
        return DeviceState.DIVIDED if has_parts else DeviceState.FAULTY
    if usage.share_milli == 0:
        return DeviceState.FREE
    if reading is not None and reading.utilization is not None and reading.utilization < IDLE_UTILIZATION:
        return DeviceState.IDLE
    return DeviceState.LEASED if usage.share_milli >= device.capacity_milli else DeviceState.PARTLY
