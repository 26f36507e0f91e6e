"""How each job of a simulation went: the source of figures, reports and charts.

Times are seconds since the start of the workload.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class JobOutcome(StrEnum):
    """The state of a job when the simulation ended."""

    FINISHED = "finished"
    """All its work was done."""
    RUNNING = "running"
    """It held devices."""
    WAITING = "waiting"
    """It held no devices, whether it had run before or not."""
    LEFT = "left"
    """Its patience ended before it started."""


class RunInterval(NamedTuple):
    """A time during which a job held devices of one worker; a gang has one for each rank."""

    start_s: float
    end_s: float
    """When the job gave the devices back, or when the simulation ended."""
    worker_id: str
    device_class: str
    devices: float
    """Devices held at the same time; a share counts as its fraction."""
    overhead_s: float = 0.0
    """Time without progress: starting, restoring, and work that a failure or a preemption undid."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """How one job went."""

    id: str
    group: str
    task: str
    submitted_s: float
    """When it could start: at its arrival, or at the end of the last job that it comes after."""
    started_s: float | None
    """None if it never held devices."""
    finished_s: float | None
    outcome: JobOutcome
    devices: float
    """Devices that it holds while it runs, over all ranks; a share counts as its fraction."""
    intervals: tuple[RunInterval, ...] = ()
    best_device_s: float = 0.0
    """Device-seconds of all its work on the fastest device class of the cluster, without overhead."""
    preemptions: int = 0
    """How often it lost its devices before its work was done."""
    migrations: int = 0
    """How often it went on with other devices after a preemption."""


@dataclass(frozen=True, slots=True)
class SimulationRecord:
    """One workload under one policy on one cluster."""

    workload: str
    policy: str
    devices: Mapping[str, int]
    """Device class → how many there are, without CPUs."""
    jobs: tuple[JobRecord, ...]
    """In the order of the workload."""
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    """What else the outcome depends on: restart time, seed, cycle."""
    decision_s: tuple[float, ...] = ()
    """Wall-clock seconds of the decision of each cycle; these differ from run to run."""
    placements: int = 0
    """How many placements all cycles made."""
