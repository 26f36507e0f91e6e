"""What jobs ask of a cluster, as arrays: what bounds are computed from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_airflow.errors import ClusterError
from hetero_airflow.model.device import device_class
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.core.linear_program import Floats
from hetero_airflow.simulator.workload import Job


@dataclass(frozen=True, slots=True)
class JobDemand:
    """The jobs that need accelerators, and the accelerators; times in seconds, requests without their conditions."""

    arrival_s: Floats
    """[jobs]"""
    alone_s: Floats
    """[jobs, classes]: all the work of a job on that class; inf where it can't run."""
    devices: Floats
    """[jobs]: held at the same time; a share counts as its fraction."""
    capacity: Floats
    """[classes]: devices that there are."""
    beside_s: tuple[float, ...] = ()
    """The times of the jobs that need no accelerator, which are taken never to wait."""

    @property
    def best_s(self) -> Floats:
        """[jobs]: the least of `alone_s`."""
        return np.asarray(self.alone_s.min(axis=1, initial=math.inf))

    @property
    def horizon_s(self) -> float:
        """A time by which all could be done, though perhaps not all that was asked for later."""
        latest_s = float(self.arrival_s.max(initial=0.0))
        return latest_s + float((self.devices * self.best_s).sum() / self.capacity.sum() + self.best_s.mean())


def accelerators(workers: Sequence[Worker]) -> dict[str, int]:
    """Device class → how many there are, by name."""
    names = [device_class(device) for worker in workers for device in worker.devices if device.kind != "cpu"]
    return {name: names.count(name) for name in sorted(set(names))}


def alone_s(job: Job, classes: Sequence[str]) -> list[float]:
    """The time of all the job's work on each class; a job that needs no accelerator has the same on all.

    :raises ClusterError: it can run on none of them
    """
    if not held_devices(job):
        return [job.work / (job.speed("generic/x86-64") or 1.0)] * max(1, len(classes))
    speeds = [job.speed(name) for name in classes]
    if not any(speeds):
        raise ClusterError(
            f"a bound for job {job.id}, which runs on {', '.join(sorted(job.speeds))}",
            found=", ".join(classes) or "no accelerator",
            remedy="Name a cluster that has such devices",
        )
    return [job.work / speed if speed > 0 else math.inf for speed in speeds]


def held_devices(job: Job) -> float:
    """Accelerators that the job holds while it runs, over all ranks."""
    alternative = job.request.alternatives[0] if job.request else None
    return (
        0.0
        if alternative is None or alternative.kind == "cpu"
        else alternative.count * alternative.share_milli / 1000 * job.ranks
    )


def demand_of(jobs: Sequence[Job], workers: Sequence[Worker]) -> JobDemand:
    """The arrays of these jobs on that cluster."""
    there = accelerators(workers)
    on = [job for job in jobs if held_devices(job)]
    return JobDemand(
        arrival_s=np.array([job.arrival_s for job in on]),
        alone_s=np.array([alone_s(job, list(there)) for job in on]).reshape(len(on), len(there)),
        devices=np.array([held_devices(job) for job in on]),
        capacity=np.array(list(there.values()), dtype=np.float64),
        beside_s=tuple(alone_s(job, ())[0] for job in jobs if not held_devices(job)),
    )
