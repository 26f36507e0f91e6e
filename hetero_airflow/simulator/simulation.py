"""The event loop of a simulation: what happens between two cycles, and the cycles themselves.

All events of one moment are taken in before the next cycle. A cycle that preempts is followed by another one at the
same moment, in which the devices are free.
"""

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from hetero_airflow.errors import ClusterError, StoreError
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.cycle import Cycle, CycleResult
from hetero_airflow.simulator.initial_jobs import InitialJob
from hetero_airflow.simulator.job_run import JobGraph, JobRun, RankLease, best_s
from hetero_airflow.simulator.knowledge import KnowledgeSource
from hetero_airflow.simulator.options import START, Options, simulated_time
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.simulated_engine import CheckpointSchedule, EventQueue, SimulatedEngine
from hetero_airflow.simulator.workload import Workload
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, StoreEvent, WorkerLost, WorkerSeen

NEVER_S = 10 * 365 * 86400.0
"""The expiry of leases, and the reported time of what does not happen within a simulation."""

_MAX_CYCLES = 8
"""Cycles at one moment. A policy that still preempts then has to wait until something happens."""

_MAX_IDLE_TICKS = 1000

ProgressCallback = Callable[[int, int, float], None]
"""Called with jobs ended, jobs in all, and the simulated time in seconds."""


class Simulation:
    """One workload under one policy on one cluster. Run it once.

    >>> from hetero_airflow.policies.fifo import Fifo
    >>> from hetero_airflow.simulator.cluster import parse_cluster
    >>> from hetero_airflow.simulator.workload import Job, Workload
    >>> from hetero_airflow.model.request import DeviceRequest
    >>> gpu = DeviceRequest.parse("gpu")
    >>> workload = Workload("two", (Job("a", 0.0, gpu, 60.0), Job("b", 10.0, gpu, 60.0)))
    >>> record = Simulation(workload, parse_cluster("v100=1"), Fifo(), "fifo").run()
    >>> [(job.id, job.started_s, job.finished_s) for job in record.jobs]
    [('a', 0.0, 60.0), ('b', 60.0, 120.0)]

    :param workers: the cluster; empty: the one that the workload was recorded on
    :param initial_jobs: what waits or runs when the simulation begins; these come first in the record
    :param estimates: what the policy knows throughout; None: what `Options.knowledge` says
    """

    def __init__(
        self,
        workload: Workload,
        workers: Iterable[Worker],
        policy: Policy,
        policy_name: str,
        options: Options | None = None,
        *,
        initial_jobs: Iterable[InitialJob] = (),
        estimates: Estimates | None = None,
    ) -> None:
        self._options = options or Options()
        self._workload, self._policy_name = workload, policy_name
        self._workers = {worker.id: worker for worker in (tuple(workers) or workload.workers)}
        devices = [(worker.id, device) for worker in self._workers.values() for device in worker.devices]
        self._classes = {(worker_id, device.id): device_class(device) for worker_id, device in devices}
        accelerators = [device_class(device) for _, device in devices if device.kind != "cpu"]
        self._devices = {name: accelerators.count(name) for name in sorted(set(accelerators))}
        classes = frozenset(self._classes.values())
        self._knowledge = KnowledgeSource(workload, classes, self._options.knowledge, self._options.shares)
        self._estimates = self._knowledge.estimates if estimates is None else lambda: estimates
        self._initial_jobs = tuple(initial_jobs)
        jobs = (*(initial.job for initial in self._initial_jobs), *workload.jobs)
        self._runs = {job.id: JobRun(job, best_s(job, classes)) for job in jobs}
        self._graph = JobGraph(self._runs.values())
        self._by_request: dict[str, JobRun] = {}
        first, last = self._options.measured
        self._unended = {job.id for job in jobs[first:last]}
        self._store, self._engine = MemoryStore(), SimulatedEngine()
        preemptor = self._engine if self._options.can_preempt else None
        self._cycle = Cycle(
            self._store,
            policy,
            self._engine,
            NEVER_S,
            preemptor=preemptor,
            policy_context=lambda snapshot: replace(snapshot, estimates=self._estimates()),
        )
        self._events = EventQueue()
        self._unrecorded: list[StoreEvent] = []
        self._impatient: list[JobRun] = []
        """Jobs whose patience has ended."""
        self._tick_s = self._next_cycle_s = -math.inf
        self._idle_ticks = 0
        self._checkpoints = CheckpointSchedule(0.0 if self._options.saves_at_notice else self._options.checkpoint_s)
        self._random = random.Random(self._options.seed)  # noqa: S311  failures of a simulated world
        self._decision_s: list[float] = []
        self._placements = 0

    def run(self, progress: ProgressCallback | None = None) -> SimulationRecord:
        """The record of each job.

        :raises ClusterError: a job that no worker of the cluster could ever run
        """
        self._unrecorded += [WorkerSeen(worker) for worker in self._workers.values()]
        self._start_initial_jobs()
        for run in self._runs.values():
            if not run.is_running:
                self._events.at(run.job.arrival_s, lambda run=run: self._arrive(run))  # type: ignore[misc]
        for worker_id in self._workers if math.isfinite(self._options.mean_uptime_s) else ():
            self._plan_failure(worker_id)
        measured = len(self._unended)
        while self._unended and self._events.next_s < math.inf and self._events.next_s <= self._options.until_s:
            self._events.advance()
            self._decide()
            if progress is not None:
                progress(measured - len(self._unended), measured, self._now_s)
            if self._idle_ticks > _MAX_IDLE_TICKS:
                break
        end_s = self._options.until_s if self._unended and math.isfinite(self._options.until_s) else self._now_s
        return SimulationRecord(
            self._workload.name,
            self._policy_name,
            self._devices,
            tuple(run.record(end_s) for run in self._runs.values()),
            self._options.described(),
            tuple(self._decision_s),
            self._placements,
        )

    @property
    def _now_s(self) -> float:
        return self._events.now_s

    def _start_initial_jobs(self) -> None:
        """Jobs that wait keep their age; jobs that run keep their devices."""
        for initial in self._initial_jobs:
            run, place = self._runs[initial.job.id], initial.place
            run.submitted_s = initial.submitted_s
            if place is None:
                continue
            self._submit(run)
            self._record_events(simulated_time(0.0))
            commit = self._store.commit(Plan((place,)), simulated_time(initial.since_s), simulated_time(NEVER_S))
            for lease in commit.leases:
                self._start(lease)
            if commit.raced:
                asked, found = f"to continue job {run.job.id} on {place.worker_id}", "its devices missing or held twice"
                raise ClusterError(asked, found=found, remedy="Take a new snapshot")

    def _arrive(self, run: JobRun) -> None:
        if self._graph.unblock(run):
            self._submit(run)

    def _submit(self, run: JobRun) -> None:
        job = run.job
        if run.submitted_s is None or run.started_s is None:
            run.submitted_s = self._now_s if run.submitted_s is None else run.submitted_s
            if math.isfinite(job.patience_s):
                self._events.at(self._now_s + job.patience_s, lambda: self._impatient.append(run))
        if not job.ranks:
            run.since_s = run.started_s = self._now_s
            self._events.at(self._now_s + run.best_s, lambda: self._finish(run))
            return
        for request in run.requests(run.submitted_s, self._knowledge.task_id(job)):
            self._by_request[request.id] = run
            self._unrecorded.append(RequestSubmitted(request))

    def _start(self, lease: Lease) -> None:
        run = self._by_request[lease.request_id]
        claims = [(self._classes[lease.worker_id, claim.device_id], claim.share_milli / 1000) for claim in lease.claims]
        accelerators = [claim for claim in claims if not claim[0].startswith("generic/")] or claims[:1]
        run.rank_leases.append(RankLease(lease, accelerators[0][0], sum(amount for _, amount in accelerators)))
        if not run.is_running:
            return
        overhead_s = 0.0 if run.started_s is None else self._options.restart_s(math.ceil(run.devices))
        finish_s, number = run.begin(self._now_s, overhead_s), run.interval_number
        self._checkpoints.begin(run)
        self._events.at(finish_s, lambda: self._finish(run), run.still_in(number))
        self._events.at(self._knowledge.measured_s(run), lambda: self._knowledge.measure(run), run.still_in(number))

    def _finish(self, run: JobRun) -> None:
        gang = self._graph.running_gang(run)
        if any(member.due_s > self._now_s for member in gang):
            return
        for member in gang:
            self._release(member.end_interval(self._now_s), LeaseState.RELEASED)
            member.remaining, member.finished_s = 0.0, self._now_s
            self._unended.discard(member.job.id)
            self._knowledge.learn(member)
            for successor in self._graph.successors(member):
                self._arrive(successor)

    def _release(self, leases: Iterable[Lease], to: LeaseState) -> None:
        moves = [LeaseMove(lease.id, lease.token, to) for lease in leases]
        for outcome in self._store.move(moves, simulated_time(self._now_s)):
            if isinstance(outcome, StoreError):
                raise outcome

    def _interrupt(self, run: JobRun, to: LeaseState, *, saves: bool) -> None:
        """End the interval of a job before its work is done; it waits again."""
        run.preemptions += 1
        lost_s = 0.0 if saves else run.lost_progress_s(self._now_s, self._options.checkpoint_s)
        self._release(run.end_interval(self._now_s, lost_s), to)
        self._submit(run)

    def _plan_failure(self, worker_id: str) -> None:
        uptime_s = self._random.expovariate(1 / self._options.mean_uptime_s)
        self._events.at(self._now_s + uptime_s, lambda: self._fail(worker_id))

    def _fail(self, worker_id: str) -> None:
        """The worker is lost with all that runs on it, and comes back repaired."""
        self._unrecorded.append(WorkerLost(worker_id))
        for run in self._runs.values():
            if run.is_running and any(rank.lease.worker_id == worker_id for rank in run.rank_leases):
                self._interrupt(run, LeaseState.EVICTED, saves=False)
        self._events.at(self._now_s + self._options.repair_s, lambda: self._repair(worker_id))

    def _repair(self, worker_id: str) -> None:
        self._unrecorded.append(WorkerSeen(self._workers[worker_id]))
        self._plan_failure(worker_id)

    def _decide(self) -> None:
        """Run the cycle until it preempts nothing; with a heartbeat, at the next one."""
        if self._waits_for_heartbeat():
            return
        for _ in range(_MAX_CYCLES):
            result = self._run_cycle()
            for lease in result.dispatched:
                self._start(lease)
            self._placements += len(result.dispatched)
            preempted, self._engine.preempted = self._engine.preempted, []
            for lease in preempted:
                run = self._by_request[lease.request_id]
                if run.holds(lease):
                    self._interrupt(run, LeaseState.RELEASED, saves=self._options.saves_at_notice)
            if not preempted and not self._withdraw_impatient():
                break
        self._plan_tick(bool(result.dispatched), result.plan.until)

    def _waits_for_heartbeat(self) -> bool:
        """Whether the next decision is later than now; then it is planned."""
        cycle_s = self._options.cycle_s
        heartbeat_s = math.ceil(self._now_s / cycle_s) * cycle_s if cycle_s > 0 else self._now_s
        if heartbeat_s > max(self._now_s, self._next_cycle_s):
            self._next_cycle_s = heartbeat_s
            self._events.at(heartbeat_s)
        return heartbeat_s > self._now_s

    def _run_cycle(self) -> CycleResult:
        now = simulated_time(self._now_s)
        for at_s, saved in self._checkpoints.until(self._now_s):
            self._store.record(saved, simulated_time(at_s))
        self._record_events(now)
        begin = time.perf_counter()
        result = self._cycle.run(now)
        self._decision_s.append(time.perf_counter() - begin)
        for refused in result.refused:
            job = self._by_request[refused.request_id].job
            raise ClusterError(
                f"to run job {job.id} on {job.request}",
                found=f"{refused.reason}; {refused.nearest}",
                remedy="Add such a device to the cluster, or leave the job out of the workload",
            )
        return result

    def _record_events(self, now: datetime) -> None:
        self._store.record(self._unrecorded, now)
        self._unrecorded.clear()

    def _withdraw_impatient(self) -> bool:
        """Withdraw the jobs whose patience ended before they started; whether there were any."""
        withdrawn = [run for run in self._impatient if run.started_s is None]
        self._impatient.clear()
        for run in withdrawn:
            run.is_withdrawn = True
            self._unended.discard(run.job.id)
            self._unrecorded += [RequestWithdrawn(id_, "its patience has ended") for id_ in run.request_ids]
        return bool(withdrawn)

    def _plan_tick(self, is_busy: bool, until: datetime | None) -> None:
        """Decide again when the plan says that time alone may change it."""
        snapshot = self._store.snapshot()
        self._idle_ticks = 0 if is_busy or snapshot.leases else self._idle_ticks + 1
        is_open = bool(snapshot.leases or snapshot.pending)
        next_s = math.inf if until is None else (until - START).total_seconds()
        if is_open and self._now_s < next_s < math.inf and not self._now_s < self._tick_s <= next_s:
            self._tick_s = next_s
            self._events.at(next_s)
