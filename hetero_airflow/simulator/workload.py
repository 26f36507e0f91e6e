"""A workload: jobs with their true speeds, and the workers on which they run."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hetero_airflow.errors import TraceError
from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker

ANY_DEVICE = "*"
"""In `Job.speeds`: every device class without an entry."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work with its true speeds; a policy sees only the request and the estimates.

    Times are seconds since the start of the workload.
    """

    id: str
    arrival_s: float
    request: DeviceRequest
    """The request of each rank."""
    work: float
    """In a unit of the job: steps, or seconds if a trace records only a duration."""
    speeds: Mapping[str, float] = field(default_factory=lambda: {ANY_DEVICE: 1.0})
    """Device class (``nvidia/v100``, see `model.device.device_class`) → units of work a second of the whole job."""
    task: str = "job"
    """The task of which it is a run: jobs of one group and task are alike, and estimates are learned from them."""
    group: str = "trace"
    """Its DAG, team or virtual cluster."""
    weight: int = 1
    after: tuple[str, ...] = ()
    """Ids of the jobs that must have ended before this one is submitted."""
    ranks: int = 1
    """How many ranks run at the same time, as a gang, each with the request; 0 for a job that needs no device and only
    takes time."""
    gang: str = ""
    """Jobs of one gang, with one rank each, are placed all together or not at all, and end when the last one is done;
    empty for a job without a gang."""
    gang_size: int = 1
    patience_s: float = math.inf
    """The job is withdrawn if it has not started within this time; 0: it starts at once or never."""
    run: str = ""
    """Its DAG run; empty for a run of its own."""

    def speed(self, device_class: str) -> float:
        """Units of work a second on devices of that class; 0 if it can't run there."""
        return self.speeds.get(device_class, self.speeds.get(ANY_DEVICE, 0.0))


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their arrival, and the workers of the trace, if it names them."""

    name: str
    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...] = ()

    def __post_init__(self) -> None:
        job_ids: set[str] = set()
        for job in self.jobs:
            if job.id in job_ids:
                raise TraceError(
                    f"job {job.id} of {self.name}", found="the id twice", remedy="Give each job its own id"
                )
            job_ids.add(job.id)
        for job in self.jobs:
            for before in job.after:
                if before not in job_ids:
                    raise TraceError(
                        f"job {job.id} of {self.name}, which starts after {before}",
                        found=f"no job {before}",
                        remedy="Name jobs of the same workload",
                    )


def task_edges(jobs: Iterable[Job], names: Mapping[str, TaskName]) -> dict[TaskName, tuple[TaskName, ...]]:
    """Task → the tasks that come directly after it.

    :param names: job id → its task
    """
    after: dict[TaskName, dict[TaskName, None]] = {}
    for job in jobs:
        for before in job.after:
            after.setdefault(names[before], {})[names[job.id]] = None
    return {name: tuple(successors) for name, successors in after.items()}
