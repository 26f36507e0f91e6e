"""What no policy can beat: lower bounds of the completion times (JCT) and the makespan of simulated jobs.

Each is the optimum of a problem in which all that the cluster can do is allowed, so no schedule is below it. Restarts
cost nothing in it, and it ignores which devices are on one host. A job that ran on accelerators only is taken to need
them.
"""

import heapq
import math
from collections.abc import Mapping, Sequence

from hetero_airflow.simulator.record import JobRecord


def least_mean_jct_s(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> float | None:
    """No mean JCT of these jobs is less, in seconds; None if there are no jobs.

    The greater of two bounds: no job waits and each has its fastest devices; or one machine, as fast as all devices
    together, runs the shortest remaining job first (SRPT, which is optimal there: Schrage 1968).

    :param devices: device class → how many there are
    """
    if not jobs:
        return None
    contending = _contending(jobs, devices)
    count = sum(devices.values())
    arrivals_s, sizes_s = [job.submitted_s for job in contending], [job.best_device_s / count for job in contending]
    beside_s = math.fsum(map(_alone_s, jobs)) - math.fsum(map(_alone_s, contending))
    return max(math.fsum(map(_alone_s, jobs)), beside_s + srpt_total_jct_s(arrivals_s, sizes_s)) / len(jobs)


def least_makespan_s(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> float | None:
    """No time from the first submission to the last end is less, in seconds; None if there are no jobs."""
    if not jobs:
        return None
    first_s = min(job.submitted_s for job in jobs)
    work_s = math.fsum(job.best_device_s / sum(devices.values()) for job in _contending(jobs, devices))
    return max(work_s, *(job.submitted_s + _alone_s(job) - first_s for job in jobs))


def srpt_total_jct_s(arrivals_s: Sequence[float], sizes_s: Sequence[float]) -> float:
    """Sum of the JCTs of jobs on one machine that runs the job with the least remaining size first.

    >>> srpt_total_jct_s([0.0, 1.0], [10.0, 2.0])
    14.0
    """
    order = sorted(range(len(arrivals_s)), key=arrivals_s.__getitem__)
    unfinished: list[tuple[float, int]] = []
    now_s, total_s, coming = 0.0, 0.0, 0
    while unfinished or coming < len(order):
        if not unfinished:
            now_s = max(now_s, arrivals_s[order[coming]])
        while coming < len(order) and arrivals_s[order[coming]] <= now_s:
            heapq.heappush(unfinished, (sizes_s[order[coming]], order[coming]))
            coming += 1
        remaining_s, job = heapq.heappop(unfinished)
        next_s = arrivals_s[order[coming]] if coming < len(order) else math.inf
        if now_s + remaining_s <= next_s:
            now_s += remaining_s
            total_s += now_s - arrivals_s[job]
        else:
            heapq.heappush(unfinished, (remaining_s - (next_s - now_s), job))
            now_s = next_s
    return total_s


def _alone_s(job: JobRecord) -> float:
    """The time of all its work on its fastest devices."""
    return job.best_device_s / job.devices if job.devices else 0.0


def _contending(jobs: Sequence[JobRecord], devices: Mapping[str, int]) -> list[JobRecord]:
    """The jobs that ran on these devices only."""
    return [job for job in jobs if job.intervals and all(part.device_class in devices for part in job.intervals)]
