"""What a probe returns: a function without arguments that finds the devices of one vendor on this host.

It reads the vendor's library or tool. It may block, since the caller runs it in a process with a time limit, and raises
`ProbeError` if the answer can't be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
