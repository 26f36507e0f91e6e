"""An executor's inside without Airflow around it: the real store in memory, and stand-ins for Airflow's own parts."""

import json
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID, uuid5

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.rendering import run_context
from hetero_airflow.engines.engine import EngineTraits, LeaseStatus, Liveness, WorkerChanges
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.build import Outside, make_dispatcher
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context import reported_speeds
from hetero_airflow.executor.events import Adopted, Dropped, HeartbeatLost, Read
from hetero_airflow.executor.leases import recovery
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, FakeClock, a_signer, a_worker
from tests.sqlite_store import SqliteStore


class StandInEngine:
    """Stands for LocalEngine: it records workloads, and starts no processes."""

    def __init__(self):
        self.started, self.alive, self.signals, self.forgotten, self.told = [], {}, [], [], []
        self.slots, self.in_hand = None, set()

    traits, cluster, prompt_ends, host = LocalEngine.traits, None, None, None

    def hand_over(self, workload, lease, worker):
        self.started.append(workload)

    def hand_over_unplaced(self, workload):
        self.started.append(workload)

    def withdraw(self, key):
        return False

    def forget(self, key):
        self.forgotten.append(key)

    def reaches(self, worker):
        return worker.id == "worker-a"

    def liveness_of(self, uses):
        return {use.lease.id: self.liveness(use) for use in uses}

    def liveness(self, use):
        if use.lease.id in self.alive:
            return Liveness.ALIVE
        may_start = use.state == "queued" and (not use.is_ours or use.lease.request_id in self.in_hand)
        return Liveness.UNKNOWN if may_start or use.hostname not in ("", "here") else Liveness.GONE

    def tell(self, lease_id, notice):
        self.told.append((lease_id, notice))

    def signal(self, use, number):
        self.signals.append((use.lease.id, number))

    def open_slots(self):
        return self.slots


class StandInTasks:
    """What TaskInstances is to the dispatcher: Airflow's rows as a dict."""

    def __init__(self):
        self.rows, self.records, self.refreshed, self.sent_back = {}, [], [], []
        self.gangs, self.finished, self.refreshed_running = {}, [], []

    def processes(self, ids):
        return {id_: self.rows[id_] for id_ in ids if id_ in self.rows}

    def queued(self, ids):
        return {id_ for id_ in ids if id_ in self.rows and self.rows[id_].state == "queued"}

    def ended_since(self, ids, since):
        rows = {id_: self.rows[id_] for id_ in ids if id_ in self.rows}
        over = {id_: row for id_, row in rows.items() if row.state not in ("queued", "running")}
        return {id_ for id_, row in over.items() if row.seen_at and row.seen_at >= since}

    def members(self, gang_members):
        return {member.gang: self.gangs.get(member.gang, {}) for member in gang_members}

    def finish(self, ids, now):
        self.finished += ids

    def refresh_queued(self, ids, now):
        self.refreshed.append((sorted(ids), now))

    def refresh_running(self, ids, now):
        self.refreshed_running.append((sorted(ids), now))

    def reschedule(self, id, now, at, even_queued=False):
        is_there = self.rows[id].state in ("running", *(["queued"] if even_queued else []))
        self.sent_back += [id] if is_there else []
        return is_there

    def epochs(self, ids):
        return {id_: 0 for id_ in ids if id_ in self.rows}

    def rescheduled(self, ids):
        return [id_ for id_ in ids if id_ in self.sent_back]

    def record_leases(self, leases, states):
        self.records += leases

    def template_context(self, dag_id, run_id, defaults):
        return run_context(dag_id, run_id, EPOCH, EPOCH, {"n": 2}, {})


class Key(str):
    """A task's key that equals its name."""

    dag_id, run_id, map_index, try_number = "dag", "run", -1, 1

    @property
    def task_id(self):
        return str(self)


class Bench:
    """Everything between Airflow and the store, and handles on both ends."""

    def __init__(
        self, store=None, *, clock=None, engine=None, tasks=None, policy=None, worker=None, wait_for_hardware_s=0.0
    ):
        self.clock, self.engine, self.tasks = clock or FakeClock(), engine or StandInEngine(), tasks or StandInTasks()
        self.store = store or SqliteStore()
        if worker is not None:
            self.store.record([WorkerSeen(worker)], EPOCH - timedelta(seconds=1))
        self.edges = {}
        self.reports, self.tokens, self.policy = [], [], policy or PriorityPolicy()
        configuration = Configuration("priority", "p", "hetero", 60, 1e6, 10, 180, 604800, 30, 60, 300, {}, "worker-a")
        configuration = replace(configuration, wait_for_hardware_s=wait_for_hardware_s)
        self.notes = []
        self.api_problem = None
        self.api = ExecutionApiWatch(lambda: self.api_problem, self.clock)
        self.api.ask()
        callbacks = SchedulerCallbacks(
            report=self.report,
            note=lambda key, text: self.notes.append((key, text)),
            renew_token=self.renew_token,
        )
        edges = SimpleNamespace(refresh=lambda dag_ids: self.edges)
        outside = Outside(self.store, self.engine, self.tasks, edges, self.api, callbacks, self.clock, a_signer())
        self.runs = Runs()
        self.dispatcher = make_dispatcher(configuration, self.policy, self.runs, outside, 600)
        self.commands = self.dispatcher.commands
        self.dispatcher.inventory = SimpleNamespace(
            poll=lambda: None,
            readings=lambda: (),
            close=lambda: None,
            note_recorded=lambda: None,
            log_contested=lambda snapshot: None,
        )
        self.pass_on = lambda key, state, info, is_noted: None

    @property
    def queued(self):
        """Key → the task that waits for devices."""
        return {key: run.task for key, run in self.runs.queued.items()}

    def report(self, key, state, info, is_noted):
        """What is reported by itself is kept; what the engine reported is passed on."""
        if type(state) is str:
            self.reports.append((key, state, info))
        else:
            self.pass_on(key, state, info, is_noted)

    def beat_until(self, is_done, longest_s=180.0):
        """Heartbeats in real time until then; the seconds of CPU time that each of them took."""
        durations, until = [], time.monotonic() + longest_s
        while not is_done():
            assert time.monotonic() < until, (self.reports, self.started, list(self.queued))
            begin = time.process_time()
            self.beat(0.02)
            durations.append(time.process_time() - begin)
            time.sleep(0.02)
        return durations

    def renew_token(self, workload, valid_s):
        self.tokens.append(workload.key)
        workload.token = f"{len(self.tokens)} of {workload.key}"

    def hold(self, name, device="gpu", *, task_id=None, map_index=-1, gang=1, **arguments):
        """A QUEUED task instance of that name; its request id."""
        self.clock.advance(0.001)  # so that the queue's order is that of the calls
        id_ = uuid5(UUID(int=0), name)
        ti = SimpleNamespace(
            id=id_, dag_id="dag", run_id="run", task_id=task_id or name, map_index=map_index, try_number=1,
            priority_weight=1, queue="default", context_carrier=None, executor_config={"hetero": {"gang": gang}},
        )  # fmt: skip
        workload = SimpleNamespace(ti=ti, key=Key(name), log_path=None, token="of the queue")
        self.tasks.rows[str(id_)] = TaskProcess("queued")
        self.add(workload, DeviceRequest.parse(device, **arguments))
        return str(id_)

    def ask(self, name, device="gpu", **arguments):
        """A QUEUED placement check of that name; its request id."""
        id_ = self.hold(name, device, **arguments)
        self.add(self.runs.queued[name].workload, DeviceRequest.parse(device, **arguments), is_check=True)
        del self.runs.queued[name]
        return id_

    def add(self, workload, requested, *, is_check=False):
        """Airflow queues a task."""
        now = self.clock.now()
        task = PendingTask(workload, requested, now)
        run = self.runs.arrive(workload.key, str(workload.ti.id), workload)
        self.commands.apply([(run, Read(task, is_check))], now)

    def take_over(self, key, lease):
        """Airflow gives this scheduler a task that runs."""
        run = self.runs.arrive(key, lease.request_id, None)
        self.commands.apply([(run, Adopted(lease, is_live=True))], self.clock.now())

    def lose_heartbeat(self, key):
        """Airflow has had no heartbeat of a task for too long."""
        self.commands.apply([(self.runs.leased[key], HeartbeatLost())], self.clock.now())

    def drop(self, name, cause):
        """Airflow does not want a waiting task any more."""
        self.commands.apply([(self.runs.queued[name], Dropped("", cause))], self.clock.now())

    def end(self, name, state=TaskInstanceState.SUCCESS):
        """The engine reports the end of a task."""
        return self.dispatcher.take_reports({name: (state, None)}, self.clock.now())

    def start(self, name, device="gpu", **arguments):
        """A task that is placed, and whose process has begun; its request id."""
        request_id = self.hold(name, device, **arguments)
        self.beat()
        self.run(request_id)
        return request_id

    def finish(self, name):
        """No process runs on the host any more, and the engine has reported the end of this task."""
        self.engine.alive.clear()
        self.end(name)

    def beat(self, seconds=0.0, times=1):
        """So many heartbeats, each after that time."""
        for _ in range(times):
            now = self.clock.advance(seconds)
            self.dispatcher.place_tasks(now)
            self.dispatcher.maintain(now)

    def lose_api_server(self, problem="ConnectError: Connection refused"):
        """The API server has answered, and does not answer any more."""
        self.api_problem = None
        self.api.ask()
        self.api_problem = problem
        for _ in range(2):
            self.api.ask()

    def bring_back_api_server(self):
        self.api_problem = None
        self.api.ask()

    def run(self, request_id, pid=100):
        """The task's process has begun."""
        self.tasks.rows[request_id] = TaskProcess("running", pid, "here", self.clock.now())
        self.engine.alive[self.lease(request_id).id] = [pid]

    def on_a_cluster(self, losses, statuses=None):
        """The engine's workers are a cluster, in which nothing runs any more: lease id → what it says of that."""
        statuses = statuses or {}
        self.engine.traits = EngineTraits()
        self.engine.cluster = SimpleNamespace(
            poll=WorkerChanges,
            follow=lambda key, lease: None,
            status=lambda id_: LeaseStatus(statuses.get(id_), None, losses.get(id_)),
        )
        self.engine.alive.clear()

    def lease(self, request_id):
        return next(lease for lease in self.store.snapshot().leases if lease.request_id == request_id)

    @property
    def started(self):
        return [workload.key for workload in self.engine.started]


@pytest.fixture
def bench():
    bench = Bench(worker=a_worker())
    yield bench
    bench.dispatcher.resolver.close()


@pytest.fixture(autouse=True)
def no_reported_speeds(monkeypatch):
    """The stand-ins have no task state store."""
    monkeypatch.setattr(reported_speeds, "read_states", lambda keys, name: {})


@pytest.fixture
def make_bench():
    return Bench


def recorded_failures(monkeypatch):
    """Key → the failures on record, in place of Airflow's task state store."""
    failures = {}
    monkeypatch.setattr(
        recovery,
        "read_states",
        lambda keys, name: {key: json.dumps(failures[key]) for key in keys if key in failures},
    )
    monkeypatch.setattr(recovery, "write_state", lambda key, name, text: failures.__setitem__(key, json.loads(text)))
    return failures
