"""What the policy of a simulation is told of speeds and works; the truth itself stays with the jobs."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.scheduling.learning.past_use import PastUse
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import START, Knowledge
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload


class KnowledgeSource:
    """Tells the estimates of the moment; the same object while nothing new is known."""

    def __init__(
        self,
        workload: Workload,
        device_classes: frozenset[str],
        knowledge: Knowledge,
        shares: TeamShares = NO_TEAM_SHARES,
    ) -> None:
        self._knowledge = knowledge
        self._classes = device_classes
        self._finished_s: list[float] = []
        self._learner, self._past = Learner(), PastUse()
        is_told = knowledge in (Knowledge.SPEEDS, Knowledge.ORACLE)
        speeds = {self._name(job): self._speeds(job) for job in workload.jobs} if is_told else {}
        works = {}
        if knowledge is Knowledge.ORACLE:
            works = {self._name(job): Interval(job.work, job.work, job.work) for job in workload.jobs}
        asked = Counter(job.request.alternatives[0] for job in workload.jobs if job.ranks)
        total = sum(asked.values())
        mix = tuple((one, n / total) for one, n in asked.most_common()) if is_told else ()
        spread = {self._name(job): job.spread for job in workload.jobs if job.spread < 1} if speeds else {}
        self._edges = self._edges_of(workload)
        self._known = Estimates(speeds, works, mix=mix, spread=spread, edges=self._edges, shares=shares)
        self._is_stale = knowledge is Knowledge.LEARNED

    def estimates(self) -> Estimates:
        """What is known now."""
        if self._is_stale:
            self._is_stale = False
            if self._knowledge is Knowledge.LEARNED:
                learned = self._learner.estimates(self._classes)
                self._known = replace(learned, edges=self._edges, shares=self._known.shares)
            else:
                used, at = self._past.device_s(), self._past.at
                self._known = replace(self._known, finished_s=tuple(self._finished_s), used_device_s=used, used_at=at)
        return self._known

    def learn(self, run: JobRun) -> None:
        """Take in that a job has finished."""
        self._is_stale = True
        if self._knowledge is not Knowledge.LEARNED:
            for stay in run.intervals:
                held = {stay.device_class: (stay.end_s - stay.start_s) * stay.devices}
                self._past.add(run.job.group, held, START + timedelta(seconds=stay.end_s))
            if self._knowledge is not Knowledge.NONE:
                insort(self._finished_s, run.best_s)
        elif run.intervals:
            last = run.intervals[-1]
            held_s, asked = last.end_s - last.start_s, run.job.request.alternatives[0]
            before = dict(run.served)
            before[last.device_class] -= held_s
            served = {name: seconds for name, seconds in before.items() if seconds > 0}
            devices, end = max(1, round(run.devices)), RunEnd.FINISHED
            ended_at = START + timedelta(seconds=last.end_s)
            one = Run(
                0, run.job.id, self._name(run.job), asked, last.device_class, devices, held_s, end, ended_at, served
            )
            self._learner.learn([one])

    def task_id(self, job: Job) -> str:
        """By what name the policy knows the job: an oracle knows each job by its own."""
        return job.id if self._knowledge is Knowledge.ORACLE else job.task

    def _name(self, job: Job) -> TaskName:
        return job.group, self.task_id(job)

    def _edges_of(self, workload: Workload) -> dict[TaskName, tuple[TaskName, ...]]:
        """What an author has written is known to everybody: which task comes after which."""
        names = {job.id: self._name(job) for job in workload.jobs}
        after: dict[TaskName, dict[TaskName, None]] = {}
        for job in workload.jobs:
            for before in job.after:
                after.setdefault(names[before], {})[names[job.id]] = None
        return {name: tuple(found) for name, found in after.items()}

    def _speeds(self, job: Job) -> dict[str, float]:
        named = {name: speed for name, speed in job.speeds.items() if name != ANY_DEVICE}
        if ANY_DEVICE in job.speeds:
            named = dict.fromkeys(self._classes, job.speeds[ANY_DEVICE]) | named
        return named
