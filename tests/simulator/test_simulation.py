import math
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hetero_airflow.errors import ClusterError
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Preempt, Reason, ReasonCode, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import START, Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.record import JobOutcome, RunInterval, SimulationRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload

GPU = DeviceRequest.parse("gpu")
GPUS = DeviceRequest.parse("gpu:2")
ANY = DeviceRequest.parse({"v100", "k80"})
V100, K80 = "nvidia/v100", "nvidia/k80"


def simulate(*jobs: Job, cluster: str = "v100=2", policy=None, **options) -> SimulationRecord:
    workload = Workload("test", jobs)
    return Simulation(workload, parse_cluster(cluster), policy or Fifo(), "test", Options(**options)).run()


def spans(record: SimulationRecord) -> dict[str, tuple[float | None, float | None]]:
    return {job.id: (job.started_s, job.finished_s) for job in record.jobs}


class Swap(Fifo):
    """FIFO that preempts the given holder as soon as another request waits."""

    period_s = 10.0

    def __init__(self, victim: str, from_s: float = 0.0) -> None:
        super().__init__()
        self.victim, self.times = victim, 1
        self.from_s = from_s

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        plan = super().decide(snapshot, now)
        lease = next((lease for lease in snapshot.leases if lease.request_id == self.victim), None)
        if lease is None or not self.times or (now.minute * 60 + now.second) < self.from_s:
            return plan
        self.times -= 1
        return replace(plan, preemptions=(Preempt(lease.id, lease.token, self.victim, None, "moves"),))


def test_a_job_takes_its_work_by_the_speed_of_its_device():
    job = Job("a", 5.0, ANY, 100.0, {V100: 4.0, K80: 0.5})
    assert spans(simulate(job, cluster="v100=1")) == {"a": (5.0, 30.0)}
    assert spans(simulate(job, cluster="k80=1")) == {"a": (5.0, 205.0)}


def test_jobs_wait_for_devices_and_start_when_they_are_free():
    jobs = (Job("a", 0.0, GPUS, 60.0), Job("b", 1.0, GPU, 30.0), Job("c", 2.0, GPU, 30.0), Job("d", 3.0, GPU, 5.0))
    assert spans(simulate(*jobs)) == {"a": (0.0, 60.0), "b": (60.0, 90.0), "c": (60.0, 90.0), "d": (90.0, 95.0)}


def test_a_job_comes_after_the_jobs_that_it_names():
    jobs = (
        Job("fetch", 0.0, GPU, 10.0),
        Job("left", 0.0, GPU, 20.0, after=("fetch",)),
        Job("right", 0.0, GPU, 5.0, after=("fetch",)),
        Job("join", 50.0, GPU, 1.0, after=("left", "right")),
    )
    record = simulate(*jobs)
    assert spans(record) == {"fetch": (0.0, 10.0), "left": (10.0, 30.0), "right": (10.0, 15.0), "join": (50.0, 51.0)}
    assert [job.submitted_s for job in record.jobs] == [0.0, 10.0, 10.0, 50.0]


def test_a_preempted_job_keeps_its_progress_and_pays_for_its_restart():
    jobs = (Job("a", 0.0, GPU, 100.0), Job("b", 40.0, GPU, 10.0))
    record = simulate(*jobs, cluster="v100=1", policy=Swap("a", from_s=40), restart_s=fixed_restart_s(7.0))
    (a, b) = record.jobs
    assert (b.started_s, b.finished_s) == (107.0, 117.0)
    assert (a.preemptions, a.migrations, a.outcome) == (1, 0, JobOutcome.FINISHED)
    assert a.intervals == (
        RunInterval(0.0, 40.0, "v100-0", V100, 1.0, 0.0),
        RunInterval(40.0, 107.0, "v100-0", V100, 1.0, 7.0),
    )


def test_a_failure_undoes_the_work_since_the_last_checkpoint():
    (job,) = simulate(
        Job("a", 0.0, GPU, 5000.0), cluster="v100=1", mean_uptime_s=3000.0, repair_s=100.0, checkpoint_s=1000.0, seed=3
    ).jobs
    assert job.preemptions > 0
    done = sum(part.end_s - part.start_s - part.overhead_s for part in job.intervals)
    assert done == pytest.approx(5000.0)
    for part in job.intervals[:-1]:
        assert math.fmod(part.end_s - part.start_s - part.overhead_s, 1000.0) == pytest.approx(0.0, abs=1e-6)
    gaps = [b.start_s - a.end_s for a, b in zip(job.intervals, job.intervals[1:], strict=False)]
    assert gaps == [pytest.approx(100.0)] * job.preemptions


def preempting(*jobs: Job, policy=None, **options) -> SimulationRecord:
    options = {"restart_s": fixed_restart_s(7.0), "checkpoint_s": 15.0, "saves_at_notice": False, **options}
    return simulate(*jobs, cluster="v100=1", policy=policy or Swap("a", from_s=40), **options)


def test_a_job_without_time_to_save_goes_back_to_its_last_checkpoint():
    jobs = (Job("a", 0.0, GPU, 100.0), Job("b", 40.0, GPU, 10.0))
    (a, b) = preempting(*jobs).jobs
    assert (a.finished_s, b.finished_s) == (117.0, 127.0)
    assert [part.overhead_s for part in a.intervals] == [10.0, 7.0]
    assert [part.overhead_s for part in preempting(*jobs, checkpoint_s=0.0).jobs[0].intervals] == [0.0, 7.0]
    assert [part.overhead_s for part in preempting(*jobs, checkpoint_s=math.inf).jobs[0].intervals] == [40.0, 7.0]
    assert [part.overhead_s for part in preempting(*jobs, saves_at_notice=True).jobs[0].intervals] == [0.0, 7.0]


class Clock(Swap):
    """Notes when it decides, in seconds since the start."""

    period_s = 1000.0

    def __init__(self) -> None:
        super().__init__("a", from_s=40)
        self.decided_s: list[float] = []

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.decided_s.append((now - START).total_seconds())
        return super().decide(snapshot, now)


@pytest.mark.parametrize("knowledge", [Knowledge.SPEEDS, Knowledge.PROGRESS])
def test_a_policy_is_not_asked_when_a_preempted_job_would_have_ended(knowledge):
    """The times of its decisions would tell a policy how long a job takes that has not ended."""
    jobs = (Job("a", 0.0, GPU, 100.0), Job("b", 40.0, GPU, 1.0))
    clock = Clock()
    record = simulate(*jobs, cluster="v100=1", policy=clock, knowledge=knowledge, restart_s=fixed_restart_s(7.0))
    assert spans(record) == {"a": (0.0, 107.0), "b": (107.0, 108.0)}
    assert sorted(set(clock.decided_s)) == [0.0, 40.0, 107.0, 108.0]


class Watcher(Swap):
    """Notes the tokens and the last checkpoints of the leases of its victim, in seconds since the start."""

    def __init__(self) -> None:
        super().__init__("a", from_s=40)
        self.saved_s: list[tuple[int, float]] = []

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        for lease in snapshot.leases:
            if lease.request_id == "a" and lease.saved_at is not None:
                self.saved_s.append((lease.token, (lease.saved_at - START).total_seconds()))
        return super().decide(snapshot, now)


def test_the_policy_sees_checkpoints_if_jobs_do_not_save_at_notice():
    jobs = (Job("a", 0.0, GPU, 100.0), *(Job(f"n{n}", at, GPU, 1.0) for n, at in enumerate((14.0, 40.0, 70.0))))
    watcher = Watcher()
    preempting(*jobs, policy=watcher)
    assert sorted(set(watcher.saved_s)) == [(1, 15.0), (1, 30.0), (2, 62.0), (2, 77.0), (2, 92.0), (2, 107.0)]
    watcher = Watcher()
    preempting(*jobs, policy=watcher, saves_at_notice=True)
    assert watcher.saved_s == []


def test_a_gang_runs_on_several_workers_at_once():
    gang = Job("g", 0.0, GPU, 100.0, ranks=2)
    record = simulate(gang, cluster="v100=2x1")
    assert spans(record) == {"g": (0.0, 100.0)}
    assert [part.worker_id for part in record.jobs[0].intervals] == ["v100-0", "v100-1"]
    assert record.jobs[0].devices == 2.0


def test_a_job_without_ranks_only_takes_its_time():
    jobs = (Job("wait", 5.0, GPU, 10.0, ranks=0), Job("a", 0.0, GPU, 1.0, after=("wait",)))
    record = simulate(*jobs, cluster="v100=1")
    assert spans(record) == {"wait": (5.0, 15.0), "a": (15.0, 16.0)}
    assert (record.jobs[0].devices, record.jobs[0].best_device_s, record.jobs[0].intervals) == (0.0, 0.0, ())


def test_a_job_without_patience_leaves_when_it_can_not_start_at_once():
    patience = (math.inf, 0.0, 99.0, 10.0)
    jobs = [Job(f"j{n}", float(n), GPU, 60.0, patience_s=p) for n, p in enumerate(patience)]
    record = simulate(*jobs, cluster="v100=1")
    assert spans(record) == {"j0": (0.0, 60.0), "j1": (None, None), "j2": (60.0, 120.0), "j3": (None, None)}
    assert [job.outcome for job in record.jobs] == [
        JobOutcome.FINISHED,
        JobOutcome.LEFT,
        JobOutcome.FINISHED,
        JobOutcome.LEFT,
    ]


def test_a_heartbeat_delays_decisions():
    jobs = (Job("a", 1.0, GPU, 10.0), Job("b", 6.0, GPU, 10.0))
    assert spans(simulate(*jobs, cluster="v100=1", cycle_s=5.0)) == {"a": (5.0, 15.0), "b": (15.0, 25.0)}


def test_the_simulation_ends_at_the_given_time():
    jobs = (Job("a", 0.0, GPU, 10.0), Job("b", 0.0, GPU, 100.0), Job("c", 2.0, GPUS, 9.0))
    record = simulate(*jobs, until_s=50.0)
    assert [job.outcome for job in record.jobs] == [JobOutcome.FINISHED, JobOutcome.RUNNING, JobOutcome.WAITING]
    assert record.jobs[1].intervals == (RunInterval(0.0, 50.0, "v100-0", V100, 1.0, 0.0),)


def test_the_simulation_ends_when_the_measured_jobs_have_ended():
    jobs = [Job(f"j{n}", float(n), GPU, 10.0 if n != 4 else 1e6) for n in range(5)]
    record = simulate(*jobs, cluster="v100=4", measured=(1, 3))
    outcomes = [job.outcome for job in record.jobs]
    assert outcomes == [JobOutcome.FINISHED] * 3 + [JobOutcome.RUNNING] * 2
    assert record.jobs[4].intervals == (RunInterval(10.0, 12.0, "v100-0", V100, 1.0, 0.0),)


def test_a_job_that_no_worker_could_run_is_an_error_that_says_so():
    with pytest.raises(ClusterError) as caught:
        simulate(Job("a", 0.0, DeviceRequest.parse("h100:3"), 1.0), cluster="h100=2")
    assert caught.value.asked == "to run job a on 3 × nvidia/h100"
    assert "count: asked 3 × nvidia/h100, found 2" in caught.value.found


class Spy(PriorityPolicy):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.seen.append(snapshot)
        return super().decide(snapshot, now)


@pytest.mark.parametrize(
    ("knowledge", "speed", "work"),
    [(Knowledge.NONE, None, None), (Knowledge.SPEEDS, 4.0, None), (Knowledge.ORACLE, 4.0, 100.0)],
)
def test_a_policy_knows_only_what_the_options_say(knowledge, speed, work):
    policy = Spy()
    simulate(Job("a", 0.0, ANY, 100.0, {V100: 4.0, K80: 0.5}), policy=policy, knowledge=knowledge)
    snapshot = policy.seen[0]
    task = snapshot.pending[0].task
    assert snapshot.estimates.speed(task, V100) == speed
    assert (snapshot.estimates.works[task].middle if task in snapshot.estimates.works else None) == work
    assert snapshot.estimates.finished_s == ()
    assert snapshot.can_preempt


def test_finished_jobs_are_learned():
    policy = Spy()
    jobs = [Job(f"j{n}", 1000.0 * n, ANY, 100.0 * (3 - n), {V100: 4.0, K80: 0.5}) for n in range(3)]
    simulate(*jobs, policy=policy)
    finished_s = list(dict.fromkeys(snapshot.estimates.finished_s for snapshot in policy.seen))
    assert finished_s == [(), (75.0,), (50.0, 75.0), (25.0, 50.0, 75.0)]


def test_the_requests_to_come_are_not_known():
    policy = Spy()
    jobs = [Job("first", 0.0, GPU, 10.0), Job("second", 5.0, GPUS, 10.0)]
    simulate(*jobs, cluster="v100=1x4", policy=policy, knowledge=Knowledge.SPEEDS)
    mixes = dict.fromkeys(snapshot.estimates.mix for snapshot in policy.seen)
    assert [[str(alternative) for alternative, _ in mix] for mix in mixes][:2] == [[], ["1 × gpu"]]


def test_a_preempted_job_waits_with_its_attained_service():
    class Watch(Swap):
        attained_service_s: dict[str, float]

        def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
            for pending in snapshot.pending:
                if pending.attained_service_s:
                    self.attained_service_s = dict(pending.attained_service_s)
            return super().decide(snapshot, now)

    policy = Watch("a", from_s=30)
    simulate(Job("a", 0.0, GPU, 100.0), cluster="v100=1", policy=policy)
    assert policy.attained_service_s == {V100: 30.0}


def test_the_same_seed_gives_the_same_record():
    jobs = [Job(f"j{n}", 7.0 * n, GPU, 300.0 + n) for n in range(40)]
    first, again = (simulate(*jobs, cluster="v100=3x1", mean_uptime_s=2000.0, seed=5) for _ in range(2))
    other_seed = simulate(*jobs, cluster="v100=3x1", mean_uptime_s=2000.0, seed=6)
    assert first.jobs == again.jobs
    assert first.jobs != other_seed.jobs


class Restless:
    """Preempts all running jobs in every cycle."""

    period_s = 10.0

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        placed = Fifo().decide(snapshot, now)
        live = [lease for lease in snapshot.leases if lease.state is not LeaseState.PREEMPTED]
        return replace(
            placed, preemptions=tuple(Preempt(lease.id, lease.token, lease.request_id, None, "") for lease in live)
        )


def test_a_policy_that_never_settles_does_not_hang_the_simulation():
    record = simulate(Job("a", 0.0, GPU, 100.0), cluster="v100=1", policy=Restless(), until_s=1e3)
    assert record.jobs[0].preemptions > 0


class Idle:
    period_s = 1.0

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        reason = Reason(ReasonCode.BUSY, "", "")
        return Plan(tuple(Wait(p.id, n, reason, Account("", "")) for n, p in enumerate(snapshot.pending, start=1)))


def test_a_policy_that_never_places_does_not_hang_the_simulation():
    assert simulate(Job("a", 0.0, GPU, 1.0), policy=Idle()).jobs[0].outcome is JobOutcome.WAITING


class Hesitant:
    """Places nothing before second 70; its plans say so."""

    def __init__(self) -> None:
        self.asked_at_s: list[float] = []

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.asked_at_s.append((now - START).total_seconds())
        until = START + timedelta(seconds=70)
        return Fifo().decide(snapshot, now) if now >= until else replace(Idle().decide(snapshot, now), until=until)


def test_a_policy_decides_again_at_the_time_that_its_plan_names():
    policy = Hesitant()
    [job] = simulate(Job("a", 10.0, GPU, 5.0), policy=policy).jobs
    assert (policy.asked_at_s, job.started_s) == ([10.0, 70.0, 75.0], 70.0)


def test_reported_steps_teach_a_speed_after_a_minute_on_a_class():
    policy = Spy()
    jobs = [Job(f"j{n}", 0.0, ANY, 10_000.0, {V100: 4.0, K80: 2.0}) for n in range(3)]
    simulate(*jobs, cluster="v100=1,k80=1", policy=policy, knowledge=Knowledge.PROGRESS)
    task = ("trace", "job")
    before, after = policy.seen[0].estimates, policy.seen[1].estimates
    assert (task in before.speeds, policy.seen[-1].sequence > policy.seen[0].sequence) == (False, True)
    assert after.speed(task, V100) == pytest.approx(4.0, rel=0.01)
    assert after.relative_speeds(task, frozenset({V100, K80})) == {V100: 1.0, K80: pytest.approx(0.5, rel=0.1)}


def test_with_half_of_the_jobs_reporting_the_other_half_teaches_no_speed():
    speeds = {V100: 4.0, K80: 2.0}
    jobs = [Job(f"j{n}", 0.0, ANY, 10_000.0, speeds, task=f"task{n}") for n in range(4)]
    policy = Spy()
    simulate(*jobs, cluster="v100=2,k80=2", policy=policy, knowledge=Knowledge.HALF)
    assert {task for snapshot in policy.seen for _, task in snapshot.estimates.speed_deviations} == {"task0", "task2"}


def test_a_job_of_less_than_a_minute_reports_no_speed():
    policy = Spy()
    simulate(
        *(Job(f"j{n}", 0.0, ANY, 100.0, {V100: 4.0}) for n in range(3)), policy=policy, knowledge=Knowledge.PROGRESS
    )
    assert all(not snapshot.estimates.speed_deviations for snapshot in policy.seen)


def test_learned_knowledge_is_what_ended_runs_teach():
    policy = Spy()
    jobs = [Job(f"j{n}", 1000.0 * n, ANY, 100.0, {V100: 4.0, K80: 0.5}) for n in range(6)]
    simulate(*jobs, cluster="v100=1,k80=1", policy=policy, knowledge=Knowledge.LEARNED)
    first, last = policy.seen[0], policy.seen[-1]
    task = ("trace", "job")
    assert (first.estimates.works, task in last.estimates.works) == ({}, True)
    assert last.estimates.duration_s(task, K80).middle == pytest.approx(200.0, rel=0.05)
    assert first.estimates.default_speeds[V100] > first.estimates.default_speeds[K80]
