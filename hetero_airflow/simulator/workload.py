"""What is simulated: jobs with their true speeds, and the workers they run on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker

ANY_DEVICE = "*"
"""In `Job.speeds`: every device class that has no row of its own."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work, as the world knows it; a policy sees the request and what the estimates say.

    Times are seconds since the start of the workload.
    """

    id: str
    arrival_s: float
    request: DeviceRequest
    """Of each rank."""
    work: float
    """In the job's own unit: steps, or seconds where a trace records only a duration."""
    speeds: Mapping[str, float] = field(default_factory=lambda: {ANY_DEVICE: 1.0})
    """Device class (``nvidia/v100``, see `model.device.device_class`) → units a second of the whole job."""
    task: str = "job"
    """What it is a run of: jobs of one group and task are alike, and estimates are learned over them."""
    group: str = "trace"
    """The DAG, team or virtual cluster that it belongs to."""
    weight: int = 1
    after: tuple[str, ...] = ()
    """Ids of the jobs that must have ended before this one is submitted."""
    ranks: int = 1
    """Workers that it runs on at the same time, as a gang, each asked for `request`; 0 for a job that needs no device
    and only takes its time."""
    gang: str = ""
    """Jobs of one gang, with one rank each, are placed all together or not at all, and end when the last is done; empty
    for a job of its own."""
    gang_size: int = 1
    spread: float = 1.0
    """Factor of the speed where the ranks are on several hosts, 0 to 1."""
    patience_s: float = math.inf
    """Goes away if it has not started within this time; 0 is "now or never"."""
    run: str = ""
    """The DAG run that it belongs to; empty for one of its own."""

    def speed(self, device_class: str) -> float:
        """Units a second on devices of that class; 0 where it can't run."""
        return self.speeds.get(device_class, self.speeds.get(ANY_DEVICE, 0.0))


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their arrival, and the workers that the trace was recorded on, where it says."""

    name: str
    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for job in self.jobs:
            if job.id in seen:
                raise TraceError(
                    f"job {job.id} of {self.name}", found="the id twice", remedy="Give each job its own id"
                )
            seen.add(job.id)
        for job in self.jobs:
            for before in job.after:
                if before not in seen:
                    raise TraceError(
                        f"job {job.id} of {self.name}, which starts after {before}",
                        found=f"no job {before}",
                        remedy="Name jobs of the same workload",
                    )

    def part(self, first: int, last: int) -> Workload:
        """The jobs from number `first` up to, and without, `last`; the others that they come after are forgotten."""
        jobs = self.jobs[first:last]
        ids = {job.id for job in jobs}
        kept = tuple(replace(job, after=tuple(before for before in job.after if before in ids)) for job in jobs)
        return replace(self, jobs=kept)
