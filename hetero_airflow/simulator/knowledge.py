"""What the policy of a simulation knows of speeds and amounts of work; the true values stay with the jobs."""

import math
from bisect import insort
from dataclasses import replace

from hetero_airflow.model.estimates import Estimates, Interval, TaskName
from hetero_airflow.model.run import EndedRun, MeasuredSpeed, RunEnd
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.scheduling.learning.learner import Learner, PastRequests, PastUse
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import Knowledge, simulated_time
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload, task_edges

MEASURED_AFTER_S = 60.0
"""A task that reports its steps for this long has a speed."""

_LEARNING = (Knowledge.LEARNED, Knowledge.PROGRESS, Knowledge.HALF)
_EXACT = 0.02
"""The deviation of a reported speed; runs of a job are equally fast here."""


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
        self._learner, self._past, self._requests = Learner(), PastUse(), PastRequests()
        reporting = {Knowledge.PROGRESS: workload.jobs, Knowledge.HALF: workload.jobs[::2]}.get(knowledge, ())
        self._reporting = {job.id for job in reporting if job.ranks}
        self._measured: set[tuple[TaskName, str]] = set()
        knows_speeds = knowledge in (Knowledge.SPEEDS, Knowledge.ORACLE)
        jobs = workload.jobs if knows_speeds else ()
        speeds = {self._name(job): self._speeds(job) for job in jobs}
        works = {}
        if knowledge is Knowledge.ORACLE:
            works = {self._name(job): Interval(job.work, job.work, job.work) for job in jobs}
        self._edges = task_edges(workload.jobs, {job.id: self._name(job) for job in workload.jobs})
        self._estimates = Estimates(speeds, works, edges=self._edges, shares=shares)
        self._is_stale = knowledge in _LEARNING

    def estimates(self) -> Estimates:
        """What is known now."""
        if self._is_stale:
            self._is_stale = False
            if self._knowledge in _LEARNING:
                learned = self._learner.estimates(self._classes)
                self._estimates = replace(learned, edges=self._edges, shares=self._estimates.shares)
            else:
                used, at = self._past.device_s(), self._past.at
                self._estimates = replace(
                    self._estimates,
                    finished_s=tuple(self._finished_s),
                    mix=self._requests.mix,
                    used_device_s=used,
                    used_at=at,
                )
        return self._estimates

    def learn(self, run: JobRun) -> None:
        """Learn from a job that has finished."""
        self._is_stale = True
        if self._knowledge in _LEARNING:
            if run.intervals:
                self._learner.learn([self._finished_run(run)])
            return
        for interval in run.intervals:
            held = {interval.device_class: (interval.end_s - interval.start_s) * interval.devices}
            self._past.add(run.job.group, held, simulated_time(interval.end_s))
        if self._knowledge is not Knowledge.NONE:
            insort(self._finished_s, run.best_s)
            if run.job.ranks:
                self._requests.add(run.job.id, run.job.request.alternatives[0])

    def measured_s(self, run: JobRun) -> float:
        """When the steps of a job that has just started will teach its speed; infinite if never."""
        at_s = run.since_s + run.overhead_s + MEASURED_AFTER_S
        is_measured = (self._name(run.job), run.device_class) in self._measured
        return math.inf if run.job.id not in self._reporting or is_measured or at_s >= run.due_s else at_s

    def measure(self, run: JobRun) -> None:
        """Learn the speed of a running job from the steps that it reported."""
        task = self._name(run.job)
        if (task, run.device_class) in self._measured:
            return
        self._is_stale = True
        self._measured.add((task, run.device_class))
        steps = max(1, round(MEASURED_AFTER_S * run.speed))
        speed = MeasuredSpeed(task, run.device_class, math.log(run.speed), _EXACT, steps, MEASURED_AFTER_S)
        self._learner.learn_speeds([speed])

    def _finished_run(self, run: JobRun) -> EndedRun:
        """The run as the store's history has it."""
        last = run.intervals[-1]
        held_s = last.end_s - last.start_s
        earlier = dict(run.attained_service_s)
        earlier[last.device_class] -= held_s
        return EndedRun(
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
