"""What became of each job, and of the whole simulation: what figures, reports and charts are made from.

Times are seconds since the start of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class JobOutcome(StrEnum):
    """How a job stood when the simulation ended."""

    FINISHED = "finished"
    """All its work was done."""
    RUNNING = "running"
    """It held devices when the simulation ended."""
    WAITING = "waiting"
    """It held none when the simulation ended, whether it had run before or not."""
    LEFT = "left"
    """Its patience ended before it started."""


class RunInterval(NamedTuple):
    """One stay of a job on devices of one worker; a gang has one for each rank."""

    start_s: float
    end_s: float
    """Where the devices were given back, or where the simulation ended."""
    worker_id: str
    device_class: str
    devices: float
    """Held at the same time; a share counts as its fraction."""
    overhead_s: float = 0.0
    """Of the stay: starting, restoring, and work that a failure or a preemption undid."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What became of one job."""

    id: str
    group: str
    task: str
    submitted_s: float
    """When it could start: its arrival, or the end of the last job that it comes after."""
    started_s: float | None
    """None if it never held devices."""
    finished_s: float | None
    outcome: JobOutcome
    devices: float
    """That it holds while it runs, over all ranks; a share counts as its fraction."""
    intervals: tuple[RunInterval, ...] = ()
    best_device_s: float = 0.0
    """Device-seconds that all its work takes on the fastest device class of the cluster, without overhead."""
    preemptions: int = 0
    """Times that it lost its devices before its work was done, whatever it got next."""
    migrations: int = 0
    """Preemptions after which it went on with other devices."""


@dataclass(frozen=True, slots=True)
class SimulationRecord:
    """One workload under one policy on one cluster."""

    workload: str
    policy: str
    devices: Mapping[str, int]
    """Device class → how many there are; CPUs are not counted."""
    jobs: tuple[JobRecord, ...]
    """In the order of the workload."""
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    """What else the outcome depends on: restart cost, seed, round."""
    decision_s: tuple[float, ...] = ()
    """Wall-clock seconds of each cycle's decision; differs from run to run."""
    placements: int = 0
    """Of all cycles."""
