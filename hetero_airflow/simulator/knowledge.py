"""What the policy of a simulation is told of speeds and works; the truth itself stays with the jobs."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import replace

from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload


class Informant:
    """Tells the estimates of the moment; the same object while nothing new is known."""

    def __init__(self, workload: Workload, device_classes: frozenset[str], knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._classes = device_classes
        self._finished_s: list[float] = []
        speeds = {} if knowledge is Knowledge.NONE else {self._name(job): self._speeds(job) for job in workload.jobs}
        works = {}
        if knowledge is Knowledge.ORACLE:
            works = {self._name(job): Interval(job.work, job.work, job.work) for job in workload.jobs}
        asked = Counter(job.request.alternatives[0] for job in workload.jobs if job.ranks)
        total = sum(asked.values())
        mix = () if knowledge is Knowledge.NONE else tuple((one, n / total) for one, n in asked.most_common())
        spread = {self._name(job): job.spread for job in workload.jobs if job.spread < 1} if speeds else {}
        self._known = Estimates(speeds, works, mix=mix, spread=spread)
        self._is_stale = False

    def estimates(self) -> Estimates:
        """What is known now."""
        if self._is_stale:
            self._known = replace(self._known, finished_s=tuple(self._finished_s))
            self._is_stale = False
        return self._known

    def learn(self, run: JobRun) -> None:
        """Take in that a job has finished."""
        insort(self._finished_s, run.best_s)
        self._is_stale = True

    def task_id(self, job: Job) -> str:
        """By what name the policy knows the job: an oracle knows each job by its own."""
        return job.id if self._knowledge is Knowledge.ORACLE else job.task

    def _name(self, job: Job) -> TaskName:
        return job.group, self.task_id(job)

    def _speeds(self, job: Job) -> dict[str, float]:
        named = {name: speed for name, speed in job.speeds.items() if name != ANY_DEVICE}
        if ANY_DEVICE in job.speeds:
            named = dict.fromkeys(self._classes, job.speeds[ANY_DEVICE]) | named
        return named
