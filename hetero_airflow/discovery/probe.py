"""The port of a probe: finds the devices of one vendor on this host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hetero_airflow.model.device import Device, Telemetry


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one probe. A vendor without a device on this host gives an empty result, not an error."""

    devices: tuple[Device, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Software versions from the driver: ``{"cuda": "12.4"}``."""
    problems: tuple[str, ...] = ()
    """One line for each thing that could not be read."""
    users: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Device id → the processes that use it; without devices of which the vendor's software can't tell."""


class Probe(Protocol):
    """Reads a vendor's library or tool; parsing is a pure function beside it."""

    def __call__(self) -> ProbeResult:
        """The vendor's devices on this host now. May block: the caller runs it in its own process with a time limit.

        :raises ProbeError: the library or tool gives an unreadable answer
        """
