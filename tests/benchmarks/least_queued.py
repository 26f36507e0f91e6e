"""The baseline of load balancing: a queue for each device, and each job to the queue with the fewest jobs.

It is not a policy: a policy keeps nothing between decisions, and a snapshot does not show the queue of a job. A job
stays in its queue: nothing is migrated, and nothing is preempted.
"""

from collections import Counter
from collections.abc import Iterable

from hetero_airflow.errors import ClusterError
from hetero_airflow.model.device import device_class
from hetero_airflow.model.worker import Worker
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval, SimulationRecord
from hetero_airflow.simulator.workload import Job, Workload


class _DeviceQueue:
    """A device and the jobs that joined it."""

    def __init__(self, worker_id: str, name: str) -> None:
        self.worker_id = worker_id
        self.device_class = name
        self._ends: list[float] = []

    def length(self, now_s: float) -> int:
        """Jobs that wait or run."""
        self._ends = [end for end in self._ends if end > now_s]
        return len(self._ends)

    def join(self, job: Job, best_s: float) -> JobRecord:
        """The record of a job that comes now, after the jobs before it."""
        start = max([job.arrival_s, *self._ends[-1:]])
        end = start + job.work / job.speed(self.device_class)
        self._ends.append(end)
        interval = RunInterval(start, end, self.worker_id, self.device_class, 1.0)
        return JobRecord(
            job.id,
            job.group,
            job.task,
            job.arrival_s,
            start,
            end,
            JobOutcome.FINISHED,
            1.0,
            (interval,),
            best_device_s=best_s,
        )


def least_queued(workload: Workload, workers: Iterable[Worker]) -> SimulationRecord:
    """The record of jobs with one device each. Ties go to the first worker, then to its first device.

    :raises ClusterError: a job of several devices or in a DAG, or one that no device can run
    """
    devices = [
        (worker.id, device_class(device)) for worker in workers for device in worker.devices if device.kind != "cpu"
    ]
    queues = [_DeviceQueue(*device) for device in devices]
    records = [_join(queues, job) for job in sorted(workload.jobs, key=lambda job: job.arrival_s)]
    by_id = {record.id: record for record in records}
    jobs = tuple(by_id[job.id] for job in workload.jobs)
    return SimulationRecord(workload.name, "least_queued", Counter(name for _, name in devices), jobs)


def _join(queues: list[_DeviceQueue], job: Job) -> JobRecord:
    if (
        job.ranks != 1
        or job.after
        or any(alternative.count != 1 or alternative.share_milli != 1000 for alternative in job.request.alternatives)
    ):
        raise ClusterError(
            f"a queue for each device with job {job.id}",
            found="a job that is not of one whole device alone",
            remedy="Compare on a workload of single devices without a DAG",
        )
    able = [queue for queue in queues if job.speed(queue.device_class) > 0]
    if not able:
        raise ClusterError(
            f"job {job.id}", found="no device that can run it", remedy="Add such a device to the cluster"
        )
    best_s = job.work / max(job.speed(queue.device_class) for queue in able)
    return min(able, key=lambda queue: queue.length(job.arrival_s)).join(job, best_s)
