"""What the policy of a simulation knows of speeds and amounts of work; the true values stay with the jobs."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import replace

from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.scheduling.learning.learner import Learner, PastUse
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import Knowledge, simulated_time
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload, task_edges


class KnowledgeSource:
    """Gives the estimates of the moment; the same object while nothing new is known."""

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
        knows_speeds = knowledge in (Knowledge.SPEEDS, Knowledge.ORACLE)
        jobs = workload.jobs if knows_speeds else ()
        speeds = {self._name(job): self._speeds(job) for job in jobs}
        works = {}
        if knowledge is Knowledge.ORACLE:
            works = {self._name(job): Interval(job.work, job.work, job.work) for job in jobs}
        requested = Counter(job.request.alternatives[0] for job in jobs if job.ranks)
        mix = tuple((alternative, count / requested.total()) for alternative, count in requested.most_common())
        spread = {self._name(job): job.spread for job in jobs if job.spread < 1}
        self._edges = task_edges(workload.jobs, {job.id: self._name(job) for job in workload.jobs})
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
        """Learn from a job that has finished."""
        self._is_stale = True
        if self._knowledge is Knowledge.LEARNED:
            if run.intervals:
                self._learner.learn([self._finished_run(run)])
            return
        for interval in run.intervals:
            held = {interval.device_class: (interval.end_s - interval.start_s) * interval.devices}
            self._past.add(run.job.group, held, simulated_time(interval.end_s))
        if self._knowledge is not Knowledge.NONE:
            insort(self._finished_s, run.best_s)

    def _finished_run(self, run: JobRun) -> Run:
        """The run as the store's history has it."""
        last = run.intervals[-1]
        held_s = last.end_s - last.start_s
        earlier = dict(run.attained_service_s)
        earlier[last.device_class] -= held_s
        return Run(
            0,
            run.job.id,
            self._name(run.job),
            run.job.request.alternatives[0],
            last.device_class,
            max(1, round(run.devices)),
            held_s,
            RunEnd.FINISHED,
            simulated_time(last.end_s),
            {name: seconds for name, seconds in earlier.items() if seconds > 0},
        )

    def task_id(self, job: Job) -> str:
        """The task that the policy takes the job for; an oracle knows each job as a task of its own."""
        return job.id if self._knowledge is Knowledge.ORACLE else job.task

    def _name(self, job: Job) -> TaskName:
        return job.group, self.task_id(job)

    def _speeds(self, job: Job) -> dict[str, float]:
        named = {name: speed for name, speed in job.speeds.items() if name != ANY_DEVICE}
        if ANY_DEVICE in job.speeds:
            named = dict.fromkeys(self._classes, job.speeds[ANY_DEVICE]) | named
        return named
