"""The publisher's experiment on the openb trace: fill the cluster with pods that never leave."""

from __future__ import annotations

import random
from dataclasses import replace

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.workload import Job, Workload

FOREVER_S = 1e8
"""Three years: longer than any arrival, and shorter than the simulator's leases."""
_MAX_DEMAND = 10.0


def fill(workload: Workload, demand: float, seed: int) -> Workload:
    """The jobs in random order, a second apart, none of which ends, that ask for `demand` of the accelerators.

    As in ``TunePodsByNodeTotalResource`` of the publisher's simulator: copies of random pods are added, or
    random pods taken away, until what all ask for is just below (after taking away, at most) `demand` × what
    there is; then the order is shuffled. A job that can't be placed at once is lost. The random numbers are
    Python's, not Go's, so that a seed here is none of the published ones.
    """
    offered = sum(device.kind != "cpu" for worker in workload.workers for device in worker.devices)
    limit, rng = demand * offered, random.Random(seed)  # noqa: S311  a simulation, not a secret
    if not 0 < demand <= _MAX_DEMAND or not any(asked_devices(job.request) for job in workload.jobs):
        raise TraceError(
            f"{workload.name}, filled to {demand:g} of its accelerators",
            found=f"a demand outside of 0 to {_MAX_DEMAND:g}, or no job that asks for an accelerator",
            remedy="Write it as openb/default_fill1.3_seed42",
        )
    jobs = list(workload.jobs)
    asked = sum(asked_devices(job.request) for job in jobs)
    while asked > limit:
        asked -= asked_devices(jobs.pop(rng.randrange(len(jobs))).request)
    for number in range(10 * len(workload.jobs)):
        job = workload.jobs[rng.randrange(len(workload.jobs))]
        asked += asked_devices(job.request)
        if asked > limit:
            break
        jobs.append(replace(job, id=f"{job.id}-copy-{number}"))
    rng.shuffle(jobs)
    return replace(workload, jobs=tuple(_at(job, second) for second, job in enumerate(jobs)))


def _at(job: Job, second: int) -> Job:
    return replace(job, arrival_s=float(second), work=FOREVER_S, patience_s=0.0)


def asked_devices(request: DeviceRequest | None) -> float:
    """Accelerators of the first alternative; a share counts as its fraction, CPU cores not at all.

    >>> asked_devices(DeviceRequest.parse("gpu:0.5")), asked_devices(DeviceRequest.parse("cpu:4"))
    (0.5, 0.0)
    """
    first = request.alternatives[0] if request else None
    return 0.0 if first is None or first.kind == "cpu" else first.count * first.share_milli / 1000
