"""The event loop: what happens in the world between two cycles, and the cycles themselves.

Discrete events in a heap, ordered by time, then by their order of creation. All events of one moment
are taken in before the next cycle; a cycle that preempts is followed by another at the same moment,
in which the devices are free.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from hetero_airflow.errors import ClusterError, StoreError
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.cycle import Cycle, CycleResult
from hetero_airflow.simulator.checkpoint_schedule import CheckpointSchedule
from hetero_airflow.simulator.engine import SimulatedEngine
from hetero_airflow.simulator.initial_jobs import InitialJob
from hetero_airflow.simulator.job_run import JobRun, RankLease
from hetero_airflow.simulator.knowledge import KnowledgeSource
from hetero_airflow.simulator.options import START, Options
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, StoreEvent, WorkerLost, WorkerSeen

_NEVER_S = 10 * 365 * 86400.0
_MAX_CYCLES = 8
"""Cycles at one moment; a policy that still preempts then is cut off until something happens."""

_MAX_IDLE_TICKS = 1000

Progress = Callable[[int, int, float], None]
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
    :param standing: what waits or runs already when the simulation begins; told of in the record before the workload
    :param estimates: what the policy is told throughout; None is what `Options.knowledge` says
    """

    def __init__(
        self,
        workload: Workload,
        workers: Iterable[Worker],
        policy: Policy,
        policy_name: str,
        options: Options | None = None,
        *,
        standing: Iterable[InitialJob] = (),
        estimates: Estimates | None = None,
    ) -> None:
        self._options = options or Options()
        self._workload = workload
        self._workers = {worker.id: worker for worker in (tuple(workers) or workload.workers)}
        self._policy_name = policy_name
        self._classes = {
            (worker.id, device.id): device_class(device)
            for worker in self._workers.values()
            for device in worker.devices
        }
        accelerators = [
            device_class(device) for w in self._workers.values() for device in w.devices if device.kind != "cpu"
        ]
        self._devices = {name: accelerators.count(name) for name in sorted(set(accelerators))}
        self._standing = tuple(standing)
        self._jobs = (*(one.job for one in self._standing), *workload.jobs)
        classes = frozenset(self._classes.values())
        self._informant = KnowledgeSource(workload, classes, self._options.knowledge, self._options.shares)
        self._told = self._informant.estimates if estimates is None else lambda: estimates
        self._store, self._engine = MemoryStore(keeps_history=False), SimulatedEngine()
        preemptor = self._engine if self._options.can_preempt else None
        self._cycle = Cycle(
            self._store, policy, self._engine, _NEVER_S, preemptor=preemptor, policy_context=self._policy_context
        )
        self._runs = {job.id: JobRun(job, _fastest_s(job, classes)) for job in self._jobs}
        self._by_request: dict[str, tuple[JobRun, PendingRequest]] = {}
        self._gangs: defaultdict[str, list[JobRun]] = defaultdict(list)
        self._successors: defaultdict[str, list[JobRun]] = defaultdict(list)
        self._blockers: dict[str, int] = {}
        for run in self._runs.values():
            self._gangs[run.job.gang].append(run)
            self._blockers[run.job.id] = len(run.job.after)
            for before in run.job.after:
                self._successors[before].append(run)
        first, last = self._options.measured
        self._unended = {job.id for job in self._jobs[first:last]}
        self._measured = len(self._unended)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._now_s = 0.0
        self._news: list[StoreEvent] = []
        self._impatient: list[tuple[float, int, JobRun]] = []
        self._tick_s = -math.inf
        self._next_cycle_s = -math.inf
        self._idle_ticks = 0
        self._saving = CheckpointSchedule(0.0 if self._options.saves_at_notice else self._options.checkpoint_s)
        self._random = random.Random(self._options.seed)  # noqa: S311  failures of a pretend world
        self._decision_s: list[float] = []
        self._placements = 0

    def _policy_context(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, estimates=self._told())

    def run(self, progress: Progress | None = None) -> SimulationRecord:
        """What became of each job.

        :raises ClusterError: a job that no worker of the cluster could ever run
        """
        self._news += [WorkerSeen(worker) for worker in self._workers.values()]
        self._set_up()
        for run in self._runs.values():
            if not run.is_running:
                self._at(run.job.arrival_s, lambda run=run: self._arrive(run))  # type: ignore[misc]
        for worker_id in self._workers if math.isfinite(self._options.mean_uptime_s) else ():
            self._plan_failure(worker_id)
        while self._heap and self._unended and self._heap[0][0] <= self._options.until_s:
            self._now_s = self._heap[0][0]
            while self._heap and self._heap[0][0] == self._now_s:
                heapq.heappop(self._heap)[2]()
            self._decide()
            if progress is not None:
                progress(self._measured - len(self._unended), self._measured, self._now_s)
            if self._idle_ticks > _MAX_IDLE_TICKS:
                break
        end_s = self._options.until_s if self._unended and math.isfinite(self._options.until_s) else self._now_s
        records = tuple(run.record(end_s) for run in self._runs.values())
        return SimulationRecord(
            self._workload.name,
            self._policy_name,
            self._devices,
            records,
            self._options.told(),
            tuple(self._decision_s),
            self._placements,
        )

    def _set_up(self) -> None:
        """What stands when the simulation begins: who waits keeps its age, who runs its devices."""
        for standing in self._standing:
            run, place = self._runs[standing.job.id], standing.place
            run.submitted_s = standing.submitted_s
            if place is None:
                continue
            self._submit(run)
            self._store.record(self._news, _time(0.0))
            self._news.clear()
            commit = self._store.commit(Plan((place,)), _time(standing.since_s), _time(_NEVER_S))
            for lease in commit.leases:
                self._start(lease)
            if commit.refused:
                raise ClusterError(
                    f"job {run.job.id} to go on where it runs, on {place.worker_id}",
                    found="its devices are not there or held twice",
                    remedy="Take the snapshot anew",
                )

    # -- the world -----------------------------------------------------------------------------------------------------

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time_s, self._serial, happen))

    def _arrive(self, run: JobRun) -> None:
        self._blockers[run.job.id] -= 1
        if self._blockers[run.job.id] < 0:
            self._submit(run)

    def _submit(self, run: JobRun) -> None:
        job = run.job
        if run.submitted_s is None or run.started_s is None:
            run.submitted_s = self._now_s if run.submitted_s is None else run.submitted_s
            if math.isfinite(job.patience_s):
                heapq.heappush(self._impatient, (self._now_s + job.patience_s, self._serial, run))
                self._at(self._now_s + job.patience_s, lambda: None)
        if not job.ranks:
            run.since_s = run.started_s = self._now_s
            self._at(self._now_s + run.best_s, lambda: self._finish(run, True))
            return
        for rank in range(job.ranks):
            request_id = job.id if job.ranks == 1 else f"{job.id}/{rank}"
            pending = PendingRequest(
                request_id, job.request, _time(run.submitted_s), job.weight, job.group, job.run or job.id,
                self._informant.task_id(job), -1 if job.ranks == 1 else rank, 1, dict(run.served),
                job.gang if job.ranks == 1 else job.id, job.gang_size if job.ranks == 1 else job.ranks,
            )  # fmt: skip
            self._by_request[request_id] = (run, pending)
            self._news.append(RequestSubmitted(pending))

    def _start(self, lease: Lease) -> None:
        run, _ = self._by_request[lease.request_id]
        claims = [(self._classes[lease.worker_id, claim.device_id], claim.share_milli / 1000) for claim in lease.claims]
        accelerators = [claim for claim in claims if not claim[0].startswith("generic/")] or claims[:1]
        run.holds.append(RankLease(lease, accelerators[0][0], sum(amount for _, amount in accelerators)))
        if not run.is_running:
            return
        has_run = run.started_s is not None
        overhead_s = self._options.restart_s(math.ceil(run.devices)) if has_run else 0.0
        finish_s, stay = run.begin(self._now_s, overhead_s), run.stay
        self._saving.begin(run)
        if math.isfinite(finish_s):
            self._at(finish_s, lambda: self._finish(run, run.stay == stay))

    def _finish(self, run: JobRun, is_due: bool) -> None:
        if not is_due:
            return
        together = [one for one in self._gangs[run.job.gang] if one.is_running] if run.job.gang else [run]
        if any(one.due_s > self._now_s for one in together):
            return
        for one in together:
            self._release(one.end_interval(self._now_s), LeaseState.RELEASED)
            one.remaining, one.finished_s = 0.0, self._now_s
            self._unended.discard(one.job.id)
            self._informant.learn(one)
            for after in self._successors[one.job.id]:
                self._arrive(after)

    def _release(self, leases: Iterable[Lease], to: LeaseState) -> None:
        moves = [LeaseMove(lease.id, lease.token, to) for lease in leases]
        for outcome in self._store.move(moves, _time(self._now_s)):
            if isinstance(outcome, StoreError):
                raise outcome

    def _preempt(self, leases: Iterable[Lease]) -> None:
        """Let the holders end at once, saving first unless they can't; the time is part of the restart cost."""
        for lease in leases:
            run, _ = self._by_request[lease.request_id]
            if run.holds and any(hold.lease.id == lease.id for hold in run.holds):
                run.preemptions += 1
                is_lossless = self._options.saves_at_notice
                lost_s = 0.0 if is_lossless else run.lost_progress_s(self._now_s, self._options.checkpoint_s)
                self._release(run.end_interval(self._now_s, lost_s), LeaseState.RELEASED)
                self._submit(run)

    def _plan_failure(self, worker_id: str) -> None:
        self._at(self._now_s + self._random.expovariate(1 / self._options.mean_uptime_s), lambda: self._fail(worker_id))

    def _fail(self, worker_id: str) -> None:
        """The worker is lost with all that runs on it, and comes back repaired."""
        self._news.append(WorkerLost(worker_id))
        for run in self._runs.values():
            if run.is_running and any(hold.lease.worker_id == worker_id for hold in run.holds):
                run.preemptions += 1
                lost_s = run.lost_progress_s(self._now_s, self._options.checkpoint_s)
                self._release(run.end_interval(self._now_s, lost_s), LeaseState.EVICTED)
                self._submit(run)
        self._at(self._now_s + self._options.repair_s, lambda: self._repair(worker_id))

    def _repair(self, worker_id: str) -> None:
        self._news.append(WorkerSeen(self._workers[worker_id]))
        self._plan_failure(worker_id)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Run the cycle until nothing is preempted; with a heartbeat, at its next beat."""
        if self._options.cycle_s > 0:
            beat_s = math.ceil(self._now_s / self._options.cycle_s) * self._options.cycle_s
            if beat_s > self._now_s:
                if beat_s > self._next_cycle_s:
                    self._next_cycle_s = beat_s
                    self._at(beat_s, lambda: None)
                return
        for _ in range(_MAX_CYCLES):
            result = self._run_cycle()
            for lease in result.dispatched:
                self._start(lease)
            self._placements += len(result.dispatched)
            told, self._engine.told = self._engine.told, []
            self._preempt(lease for lease, _ in told)
            if not told and not self._let_go():
                break
        self._plan_tick(bool(result.dispatched), result.plan.until)

    def _run_cycle(self) -> CycleResult:
        now = _time(self._now_s)
        for at_s, saved in self._saving.until(self._now_s):
            self._store.record(saved, _time(at_s))
        self._store.record(self._news, now)
        self._news.clear()
        begin = time.perf_counter()
        result = self._cycle.run(now)
        self._decision_s.append(time.perf_counter() - begin)
        for refused in result.refused:
            run, pending = self._by_request[refused.request_id]
            raise ClusterError(
                f"job {run.job.id} asks for {pending.request}",
                found=f"{refused.reason}; {refused.nearest}",
                remedy="Add such a device to the cluster, or leave the job out of the workload",
            )
        return result

    def _let_go(self) -> bool:
        """Withdraw jobs whose patience has ended before they started; whether there were any."""
        news = len(self._news)
        while self._impatient and self._impatient[0][0] <= self._now_s:
            run = heapq.heappop(self._impatient)[2]
            if run.started_s is None:
                run.is_withdrawn = True
                self._unended.discard(run.job.id)
                ids = [run.job.id] if run.job.ranks == 1 else [f"{run.job.id}/{rank}" for rank in range(run.job.ranks)]
                self._news += [RequestWithdrawn(request_id, "its patience has ended") for request_id in ids]
        return len(self._news) > news

    def _plan_tick(self, is_busy: bool, until: datetime | None) -> None:
        """Decide again in time where a policy changes its mind with time alone: then, or after a period."""
        snapshot = self._store.snapshot()
        self._idle_ticks = 0 if is_busy or snapshot.leases else self._idle_ticks + 1
        is_open = bool(snapshot.leases or snapshot.pending)
        next_s = math.inf if until is None else (until - START).total_seconds()
        if is_open and self._now_s < next_s < math.inf and not self._now_s < self._tick_s <= next_s:
            self._tick_s = next_s
            self._at(next_s, lambda: None)


def _fastest_s(job: Job, classes: frozenset[str]) -> float:
    if not job.ranks:
        return job.work / job.speed(ANY_DEVICE)
    speed = max((job.speed(name) for name in classes if not name.startswith("generic/")), default=0.0)
    speed = speed or max((job.speed(name) for name in classes), default=0.0)
    return job.work / speed if speed else math.inf


def _time(time_s: float) -> datetime:
    return START + timedelta(seconds=time_s)
