"""A host process that offers devices, and what discovery says of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from hetero_airflow.model.device import Device, ShortText, Telemetry

MAX_DEVICES = 4096


class WorkerState(StrEnum):
    """Whether a worker takes tasks."""

    ONLINE = "online"
    """Seen within its time limit; takes tasks."""
    LOST = "lost"
    """Not seen for longer than that. Gets no task before its agent says that no process is left of leases that are
    over; so what was leased there is given up at once, and runs elsewhere."""


class Worker(BaseModel):
    """A worker and its devices, as the last discovery found them.

    `runtime` maps a software's name to its installed version (``{"cuda": "12.4", "torch": "2.13.0"}``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ShortText
    host: ShortText
    engine: str = "local"
    devices: Annotated[tuple[Device, ...], FailFast()] = Field(max_length=MAX_DEVICES)
    runtime: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    problems: tuple[str, ...] = Field(default=(), max_length=32)
    """A line for each probe that failed in the last discovery: devices of its vendor may be missing here."""
    state: WorkerState = WorkerState.ONLINE

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Worker:
        seen: set[str] = set()
        for device in self.devices:
            if device.id in seen:
                raise ValueError(f"two devices of worker {self.id!r} have the id {device.id!r}")
            seen.add(device.id)
        return self

    @property
    def node_assigns_devices(self) -> bool:
        """Whether its devices are slots: how many a task gets is decided here, and which ones by the node itself.

        What software there is, the image says, and a slot can't be shared.
        """
        return self.engine == "kubernetes"

    @property
    def is_scheduler_host(self) -> bool:
        """Whether it is a scheduler's own host, which that scheduler reports, watches and tries."""
        return self.engine == "local"

    @property
    def cpu(self) -> Device | None:
        """The host's CPU device, from which `cpus` and `host_memory` are leased."""
        return next((device for device in self.devices if device.kind == "cpu"), None)


class Inventory(BaseModel):
    """What one discovery found: a worker, its readings, and a line for each probe that failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: Worker
    telemetry: tuple[Telemetry, ...] = ()
    problems: tuple[str, ...] = ()
