"""A model of a lease's life: schedulers, an Airflow, and one host with two GPUs, one step at a time in any order.

Real: the store in memory, and of each scheduler all between Airflow and the store (dispatcher, runs, cycle, policy).
Modelled: Airflow's rows, the messages to the engine, the processes, and the reports of their ends. Things that go
wrong: messages and reports are late or get lost; processes freeze or are killed; schedulers die, and act on what they
read long ago; their clocks are set.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from unittest import mock

from airflow.utils.state import TaskInstanceState
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetero_airflow.contract.envelope import read_lease
from hetero_airflow.engines.engine import Liveness
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.context import reported_speeds
from hetero_airflow.executor.leases import recovery
from hetero_airflow.executor.leases.lease_use import CLOCK_DIFFERENCE
from hetero_airflow.model.grant import SKEW_S
from hetero_airflow.model.lease import Lease
from hetero_airflow.recovery.rules import parse_rules
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, FakeClock, a_worker
from tests.executor.conftest import Bench, Key, StandInEngine, StandInTasks
from tests.sqlite_store import SqliteStore

TASKS = ("a", "b", "c")
GPUS = 2
TASK_TIMEOUT = timedelta(seconds=20)
"""After this time without a heartbeat, Airflow tells its executor that a task is lost."""
SOON_S = 120.0
"""A free device is used again within this time, once nothing goes wrong any more. A lease expires after 60 s."""

WHICH = st.integers(0, 99)
"""Chooses a scheduler, a process or a message: the number modulo how many there are."""


class Message(NamedTuple):
    """A task on its way to a supervisor."""

    name: str
    lease: Lease
    start_by: datetime
    """Until when its token lets the task begin."""
    reports: list[tuple[str, TaskInstanceState]]
    """What the engine that sent it has to report: a task, and how its supervisor ended."""


@dataclass(eq=False)
class Run:
    """A supervisor with its task's process."""

    pid: int
    name: str
    lease: Lease
    start_by: datetime
    reports: list[tuple[str, TaskInstanceState]]
    has_begun: bool = False
    is_frozen: bool = False


class Host:
    """The processes of all runs, and the messages that have started none yet."""

    def __init__(self):
        self.runs: list[Run] = []
        self.messages: list[Message] = []
        self.foreign_signals: list[str] = []
        self.wanted_signals: list[str] = []


class ModelEngine(StandInEngine):
    """Finds the processes of a lease, and the one with the pid that it is given, as the local engine does."""

    def __init__(self, host, store, tasks):
        super().__init__()
        self.host, self.store, self.tasks = host, store, tasks
        self.reports: list[tuple[str, TaskInstanceState]] = []

    def hand_over(self, workload, lease, worker):
        start_by, *_ = read_lease(workload.ti.context_carrier).grant.split(".")
        until = datetime.fromtimestamp(int(start_by), UTC)
        self.host.messages.append(Message(str(workload.key), lease, until, self.reports))

    def _runs_of(self, process):
        return [run for run in self.host.runs if run.lease.id == process.lease.id or run.pid == process.pid]

    def liveness(self, process):
        if self._runs_of(process):
            return Liveness.ALIVE
        is_on_the_way = any(message.lease.id == process.lease.id for message in self.host.messages)
        may_start = process.state == "queued" and (is_on_the_way or not process.is_ours)
        return Liveness.UNKNOWN if may_start else Liveness.GONE

    def _is_wanted(self, run):
        """Whether its lease has not ended, and its scheduler has read that Airflow wants it."""
        row = self.tasks.processes([run.lease.request_id]).get(run.lease.request_id, TaskProcess())
        is_live = any(lease.id == run.lease.id for lease in self.store.snapshot().leases)
        return is_live and run.has_begun and (row.state, row.pid) == ("running", run.pid)

    def signal(self, process, number):
        for run in self._runs_of(process):
            if run.lease.id != process.lease.id:
                self.host.foreign_signals.append(f"a process of {run.lease.id} for {process.lease.id}")
            elif self._is_wanted(run):
                self.host.wanted_signals.append(f"a process of {run.lease.id}")
            if number == 9 or not run.is_frozen:
                self.host.runs.remove(run)


class AirflowRows(StandInTasks):
    """Airflow's rows. A scheduler may act on rows that it read before; a write always meets the present ones."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self._read = rows, None

    def keep(self):
        """Let all reads see the present rows until `refresh`."""
        self._read = dict(self.rows)

    def refresh(self):
        self._read = None

    def processes(self, ids):
        rows = self.rows if self._read is None else self._read
        return {id_: rows[id_] for id_ in ids if id_ in rows}

    def queued(self, ids):
        return {id_ for id_, process in self.processes(ids).items() if process.state == "queued"}

    def reschedule(self, id, now, at, even_queued=False):
        is_sent_back = super().reschedule(id, now, at, even_queued)
        if is_sent_back:
            put_state(self.rows, id, "up_for_reschedule")
        return is_sent_back


def put_state(rows, id_, state):
    row = rows[id_]
    rows[id_] = TaskProcess(state, row.pid, row.hostname, row.seen_at)


class SchedulersStore:
    """The store as a scheduler reads it: once in a heartbeat, again after each of its own writes, and where it must."""

    def __init__(self, store):
        self._store, self._read, self._indexed = store, None, ((), {})

    workers, worker = SqlStore.workers, SqlStore.worker

    def invalidate(self):
        self._read = None

    def snapshot(self):
        self._read = self._read or self._store.snapshot()
        return self._read

    def __getattr__(self, name):
        if name in ("record", "commit", "renew", "move"):
            self._read = None
        return getattr(self._store, name)


class SkewedClock:
    """One scheduler's clock."""

    def __init__(self, clock):
        self._clock, self.ahead = clock, timedelta(0)

    def now(self):
        return self._clock.now() + self.ahead

    def advance(self, seconds):
        self._clock.advance(seconds)
        return self.now()


class LeaseLife(RuleBasedStateMachine):
    """Two or three schedulers and three tasks that want a GPU each."""

    def __init__(self):
        super().__init__()
        self.patches = [
            *(mock.patch.object(module, "read_states", return_value={}) for module in (recovery, reported_speeds)),
            mock.patch.object(recovery, "write_state", return_value=None),
        ]
        for patch in self.patches:
            patch.start()
        self.host, self.rows, self.ids, self.last_pid = Host(), {}, {}, 100
        self.used_tokens, self.reused_tokens, self.queued_by = set(), set(), {}
        self.store, self.clock = SqliteStore(), FakeClock()
        self.store.record([WorkerSeen(a_worker())], EPOCH - timedelta(seconds=1))
        self.schedulers, self.is_over = [], False

    def teardown(self):
        for patch in self.patches:
            patch.stop()

    def new_scheduler(self):
        store, clock = SchedulersStore(self.store), SkewedClock(self.clock)
        tasks = AirflowRows(self.rows)
        bench = Bench(store, clock=clock, engine=ModelEngine(self.host, self.store, tasks), tasks=tasks)
        bench.commands.recovery._rules = parse_rules(
            '{"network": {"times": null}}'
        )  # else a try is spent on the fourth
        bench.pass_on = lambda key, state, info, is_noted: bench.reports.append((key, state, info))
        return bench

    def scheduler(self, which):
        return self.schedulers[which % len(self.schedulers)]

    def state(self, name):
        return self.rows[self.ids[name]].state if name in self.ids else None

    def live_leases(self):
        return {lease.id: lease for lease in self.store.snapshot().leases}

    def queue(self, name, bench):
        """Airflow gives the task to a scheduler. Its row keeps the process of the run before.

        This happens between two heartbeats of the scheduler, and a heartbeat decides only on tasks that were there
        before its reads.
        """
        bench.tasks.refresh()
        before = self.rows.get(self.ids.get(name), TaskProcess())
        self.ids[name] = id_ = bench.hold(name)
        self.rows[id_] = TaskProcess("queued", before.pid, before.hostname, before.seen_at)
        self.queued_by[name] = bench

    # -- schedulers ----------------------------------------------------------------------------------------------------

    @initialize(schedulers=st.integers(2, 3))
    def begin_with(self, schedulers):
        self.schedulers = [self.new_scheduler() for _ in range(schedulers)]
        self.queue("a", self.schedulers[0])

    def idle_tasks(self):
        return [name for name in TASKS if self.state(name) in (None, "up_for_reschedule", "scheduled", "success")]

    @precondition(lambda self: any(self.state(name) == "up_for_reschedule" for name in TASKS))
    @rule(which=WHICH)
    def schedule_task(self, which):
        """Some scheduler schedules a task again; its row still names the one that queued its last run."""
        names = [name for name in TASKS if self.state(name) == "up_for_reschedule"]
        put_state(self.rows, self.ids[names[which % len(names)]], "scheduled")

    @precondition(lambda self: self.idle_tasks())
    @rule(which=WHICH)
    def queue_task(self, which):
        idle = self.idle_tasks()
        self.queue(idle[which % len(idle)], self.scheduler(which))

    @rule(which=WHICH, seconds=st.sampled_from([1, 6, 25, 70]))
    def beat(self, which, seconds):
        bench = self.scheduler(which)
        self.pass_time(seconds)
        self.miss_heartbeats(bench)
        bench.store.invalidate()
        bench.tasks.refresh()
        bench.beat()

    @rule(which=WHICH)
    def beat_and_start(self, which):
        """A heartbeat without any delay after it."""
        self.beat(which, 1)
        while self.host.messages:
            self.deliver(0, is_lost=False)
        while self.pick(0, has_begun=False):
            self.begin(0)

    def pass_time(self, seconds):
        """Processes that are not frozen send Airflow a heartbeat every few seconds, and end if it is refused."""
        self.clock.advance(seconds)
        for run in [run for run in self.host.runs if run.has_begun and not run.is_frozen and seconds > 5]:
            if self.has_row(run):
                self.rows[self.ids[run.name]] = TaskProcess("running", run.pid, "here", self.clock.now())
            else:
                self.host.runs.remove(run)

    def miss_heartbeats(self, bench):
        """Airflow tells a scheduler which of its tasks sent no heartbeat for too long."""
        for name in list(bench.runs.leased):
            row = self.rows[self.ids[name]]
            if row.state == "running" and self.clock.now() - row.seen_at > TASK_TIMEOUT:
                bench.lose_heartbeat(name)

    @rule(which=WHICH, has_old_rows=st.booleans())
    def read_before_others_write(self, which, has_old_rows):
        """A scheduler is stopped in a heartbeat, after its reads; `go_on_with_old_reads` is the rest of it."""
        bench = self.scheduler(which)
        bench.store.invalidate()
        bench.store.snapshot()
        if has_old_rows:
            bench.tasks.keep()

    @rule(which=WHICH)
    def go_on_with_old_reads(self, which):
        bench = self.scheduler(which)
        bench.beat(0)
        bench.tasks.refresh()

    @rule(which=WHICH, seconds=st.sampled_from([5, 0, -5, -70, -3600]))
    def set_clock(self, which, seconds):
        """Set a scheduler's clock. Not modelled: one that is more than `CLOCK_DIFFERENCE` ahead of the API server's."""
        self.scheduler(which).clock.ahead = timedelta(seconds=seconds)

    @rule(which=WHICH)
    def kill_scheduler(self, which):
        """Airflow gives what a dead scheduler had to another one. What it sent is still on the way."""
        dead = self.scheduler(which)
        others = [bench for bench in self.schedulers if bench is not dead]
        heir = others[which % len(others)]
        self.schedulers[self.schedulers.index(dead)] = self.new_scheduler()
        waiting = {name for bench in others for name in bench.queued}
        kept = {name for bench in others for name in bench.runs.leased}
        for name in sorted({*dead.queued, *dead.runs.leased} - waiting):
            if name not in kept or (name in dead.queued and self.state(name) == "queued"):
                self.adopt(name, heir)

    @rule(which=WHICH, name=st.sampled_from(TASKS))
    def adopt_task_of_a_late_scheduler(self, which, name):
        """Airflow takes a scheduler with a late heartbeat for dead, and gives its task to another one."""
        bench = self.scheduler(which)
        if name not in bench.queued and name not in bench.runs.leased:
            self.adopt(name, bench)

    def adopt(self, name, bench):
        """As `HeteroExecutor.try_adopt_task_instances` does it."""
        if self.state(name) == "queued":
            self.queue(name, bench)
        elif self.state(name) == "running":
            key, leases = Key(name), {lease.request_id: lease for lease in self.live_leases().values()}
            lease = leases.get(self.ids[name]) or bench.dispatcher.observer.last_lease(key, self.ids[name])
            if lease is not None:
                bench.take_over(key, lease)
                self.queued_by[name] = bench

    # -- messages and processes ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.host.messages)
    @rule(which=WHICH, is_lost=st.booleans())
    def deliver(self, which, is_lost):
        message = self.host.messages.pop(which % len(self.host.messages))
        if not is_lost and self.may_start(message):
            self.last_pid += 1
            self.host.runs.append(Run(self.last_pid, *message))

    def may_start(self, message):
        """Its grant is valid. Not modelled: a supervisor that starts within this time and after its lease has ended."""
        is_late = self.clock.now() - message.start_by > timedelta(seconds=SKEW_S)
        return not is_late and message.lease.id in self.live_leases()

    def pick(self, which, *, has_begun, is_frozen=False):
        runs = [run for run in self.host.runs if run.has_begun == has_begun and run.is_frozen == is_frozen]
        return runs[which % len(runs)] if runs else None

    @precondition(lambda self: self.pick(0, has_begun=False))
    @rule(which=WHICH)
    def begin(self, which):
        """Airflow lets only one process begin a queued task, and only while the process's token is valid."""
        run = self.pick(which, has_begun=False)
        if self.state(run.name) != "queued" or self.clock.now() - run.start_by > CLOCK_DIFFERENCE:
            self.host.runs.remove(run)
            run.reports.append((run.name, TaskInstanceState.FAILED))
            return
        run.has_begun = True
        self.rows[self.ids[run.name]] = TaskProcess("running", run.pid, "here", self.clock.now())
        if run.lease.token in self.used_tokens:
            self.reused_tokens.add(run.lease.token)
        self.used_tokens.add(run.lease.token)

    @precondition(lambda self: self.host.runs)
    @rule(which=WHICH)
    def freeze_or_resume(self, which):
        run = self.host.runs[which % len(self.host.runs)]
        run.is_frozen = not run.is_frozen

    @precondition(lambda self: self.host.runs)
    @rule(which=WHICH)
    def kill_run(self, which):
        self.host.runs.pop(which % len(self.host.runs))

    def has_row(self, run):
        row = self.rows[self.ids[run.name]]
        return row.state == "running" and row.pid == run.pid

    @precondition(lambda self: self.pick(0, has_begun=True))
    @rule(which=WHICH, state=st.sampled_from(["success", "up_for_reschedule"]))
    def end_run(self, which, state):
        run = self.pick(which, has_begun=True)
        if self.has_row(run):
            put_state(self.rows, self.ids[run.name], state)
        self.host.runs.remove(run)
        run.reports.append((run.name, TaskInstanceState.SUCCESS))

    @rule(which=WHICH)
    def hear_ends(self, which):
        """The engine of a scheduler reports which supervisors have ended in order, or could not start their task.

        Not modelled: an engine that reports an end before Airflow's row shows that of the task.
        """
        bench = self.scheduler(which)
        reports, bench.engine.reports[:] = dict(bench.engine.reports), []
        bench.tasks.refresh()
        bench.dispatcher.take_reports({key: (state, None) for key, state in reports.items()}, bench.clock.now())

    @rule(which=WHICH)
    def read_reports(self, which):
        """Airflow reads what a scheduler's executor reports: an end of a task that it has queued spends a try."""
        bench = self.scheduler(which)
        for name, state, _ in bench.reports:
            is_to_run = self.state(name) in ("scheduled", "queued", "running") and self.queued_by[name] is bench
            assert not is_to_run or name in bench.runs, f"the {state} of {name} would be the end of its next run"
        bench.reports.clear()

    # -- what always holds ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_over)
    @rule()
    def nothing_goes_wrong_any_more(self):
        """Every task that waits gets a device soon, or all devices are used; in the end, every task has run."""
        self.is_over = True
        for run in self.host.runs:
            run.is_frozen = False
        for bench in self.schedulers:
            bench.clock.ahead = timedelta(0)
        for _ in TASKS:
            self.live_quietly(SOON_S)
            waiting = [name for name in TASKS if self.state(name) == "queued"]
            used = {claim.device_id for run in self.host.runs if run.has_begun for claim in run.lease.claims}
            assert not waiting or len(used) == GPUS, f"{waiting} wait, and only {used} are used"
            for run in list(self.host.runs):
                put_state(self.rows, self.ids[run.name], "success")
            self.host.runs.clear()
        self.live_quietly(SOON_S)
        assert [name for name in TASKS if self.state(name) not in (None, "success")] == []
        assert list(self.live_leases()) == []

    def live_quietly(self, seconds):
        until = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < until:
            for name in [name for name in TASKS if self.state(name) in ("up_for_reschedule", "scheduled")]:
                self.queue(name, self.schedulers[0])
            for number in range(len(self.schedulers)):
                self.beat_and_start(number)
                self.hear_ends(number)
                self.read_reports(number)
            self.pass_time(10)

    @invariant()
    def promises_hold(self):
        self.no_process_gets_a_signal_for_another_lease()
        self.no_process_that_airflow_wants_gets_a_signal()
        self.no_two_runs_have_the_same_token()
        self.a_process_that_runs_keeps_its_devices()
        self.no_device_has_two_holders()
        self.no_try_is_spent()

    def no_process_gets_a_signal_for_another_lease(self):
        assert self.host.foreign_signals == []

    def no_process_that_airflow_wants_gets_a_signal(self):
        assert self.host.wanted_signals == []

    def no_two_runs_have_the_same_token(self):
        assert self.reused_tokens == set()

    def a_process_that_runs_keeps_its_devices(self):
        live = self.live_leases()
        assert [run.lease.id for run in self.host.runs if run.has_begun and run.lease.id not in live] == []

    def no_device_has_two_holders(self):
        leased = [claim.device_id for lease in self.live_leases().values() for claim in lease.claims]
        used = [claim.device_id for run in self.host.runs if run.has_begun for claim in run.lease.claims]
        assert (len(leased), len(used)) == (len(set(leased)), len(set(used)))

    def no_try_is_spent(self):
        reports = [report for bench in self.schedulers for report in bench.reports]
        assert [report for report in reports if type(report[1]) is str and report[1] == "failed"] == []
