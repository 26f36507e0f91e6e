"""The port of a probe: finds the devices of one vendor on this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hetero_airflow.model.device import Device, Telemetry


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe found. A vendor that is simply not there is an empty result, not an error."""

    devices: tuple[Device, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Versions that the driver tells: ``{"cuda": "12.4"}``."""
    problems: tuple[str, ...] = ()
    """One clear line each for what could not be read."""


class Probe(Protocol):
    """Reads a vendor's library or tool; parsing is a pure function beside it."""

    def __call__(self) -> ProbeResult:
        """What is on this host now. May block; the caller runs it in a process of its own with a time limit.

        :raises ProbeError: the library or tool answered with something that can't be read
        """
        ...
