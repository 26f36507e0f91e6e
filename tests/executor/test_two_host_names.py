"""Two schedulers with the local engine in two containers on one machine, which both see its one usable GPU."""

import json
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine

from hetero_airflow.discovery import nvidia
from hetero_airflow.discovery.discover import build_inventory
from hetero_airflow.engines.engine import Liveness
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.executor.device_health import host_health
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.executor.device_health.host_inventory import HostInventory
from hetero_airflow.store import tables
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import FakeClock
from tests.discovery.test_nvidia import FakeNvml
from tests.executor.conftest import Bench, StandInEngine, StandInTasks
from tests.sqlite_store import SqliteStore

GPU = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
NVML_ANSWERS = Path(__file__).parents[1] / "fixtures/nvidia/dgx-a100.json"
NAMES = ("container-1", "container-2")


def fresh(store):
    """The store's snapshot, also if the store keeps an earlier one."""
    if hasattr(store, "invalidate"):
        store.invalidate()
    return store.snapshot()


class ContainerEngine(StandInEngine):
    """The local engine of one container: it reaches its own host and can't see the processes of the other one."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def reaches(self, worker):
        return worker.id == self.name

    def liveness(self, use):
        return Liveness.UNKNOWN if use.lease.worker_id != self.name else super().liveness(use)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make_store(request, tmp_path):
    """Makes one store for each scheduler, all on the same data."""
    if request.param == "memory":
        store = SqliteStore()
        yield lambda: store
        return
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("make_postgres_database")() if is_postgres else f"sqlite:///{tmp_path}/store.db"
    engine = create_engine(url)
    tables.metadata.create_all(engine)
    yield lambda: CachedSnapshotStore(engine)
    engine.dispose()


@pytest.fixture
def inventory_in(monkeypatch):
    """What discovery finds in a container with this host name: the recorded answers of a real NVML."""

    def discover(name):
        nvml = FakeNvml(json.loads(NVML_ANSWERS.read_text()))
        monkeypatch.setattr(nvidia, "import_module", lambda _: nvml)
        monkeypatch.setattr(socket, "gethostname", lambda: name)
        return build_inventory(name, {"nvidia": nvidia.probe()}, {})

    return discover


class Machine:
    """The schedulers, and a witness of which task uses the GPU."""

    def __init__(self, make_store, inventory_in):
        self.clock, self.rows, self.ids = FakeClock(), {}, {}
        self.benches = {}
        for name in NAMES:
            bench = self.benches[name] = Bench(
                make_store(), clock=self.clock, engine=ContainerEngine(name), tasks=StandInTasks()
            )
            bench.tasks.rows = self.rows
            self.report(name, inventory_in(name).worker)
        self.users, self.done = set(), []

    def report(self, name, worker):
        self.benches[name].store.record([WorkerSeen(worker)], self.clock.now())

    def queue(self, name, *tasks):
        for task in tasks:
            self.ids[task] = self.benches[name].hold(task)

    def beat(self, name):
        """One heartbeat of a scheduler, after which the tasks that it has started run."""
        bench = self.benches[name]
        fresh(bench.store)
        bench.beat(1)
        for task in bench.started[len([t for t in self.done if t in bench.started]) :]:
            if self.rows[self.ids[task]].state == "queued":
                self.users.add(task)
                self.rows[self.ids[task]] = TaskProcess("running", 100, "here", self.clock.now())
                bench.engine.alive[bench.lease(self.ids[task]).id] = [100]

    def finish(self, name, task):
        bench = self.benches[name]
        self.rows[self.ids[task]] = TaskProcess(None, 100, "here", self.clock.now())
        self.users.discard(task)
        self.done.append(task)
        bench.engine.alive.clear()
        bench.end(task)


def test_tasks_of_both_schedulers_take_turns_on_the_gpu(make_store, inventory_in):
    machine = Machine(make_store, inventory_in)
    machine.queue("container-1", "a", "b", "c")
    machine.queue("container-2", "d", "e", "f")
    for _ in range(20):
        for name in NAMES:
            machine.beat(name)
            assert len(machine.users) <= 1
        for name, bench in machine.benches.items():
            for task in machine.users & set(bench.started):
                machine.finish(name, task)
    assert sorted(machine.done) == ["a", "b", "c", "d", "e", "f"]


def test_the_waiting_task_says_which_worker_holds_the_gpu(make_store, inventory_in):
    machine = Machine(make_store, inventory_in)
    machine.queue("container-1", "a")
    machine.beat("container-1")
    machine.queue("container-2", "b")
    machine.beat("container-2")
    assert machine.users == {"a"}
    reason = machine.benches["container-2"].queued["b"].logged_wait
    assert "worker container-1 holds it; it is free here when its task there has ended" in reason


def test_a_scheduler_logs_once_which_devices_another_worker_reports_too(make_store, inventory_in, caplog):
    machine = Machine(make_store, inventory_in)
    bench = machine.benches["container-2"]
    inventory = HostInventory(replace(read_configuration(), worker_id="container-2"), list)
    for _ in range(2):
        inventory.log_contested(bench.store.snapshot())
    text = f"container-1/{GPU} and container-2/{GPU} are one device"
    assert len([record for record in caplog.records if text in record.getMessage()]) == 1


def test_no_burn_in_runs_on_a_device_that_the_other_container_has_leased(make_store, inventory_in, monkeypatch):
    machine = Machine(make_store, inventory_in)
    machine.queue("container-1", "a")
    machine.beat("container-1")
    begun = []
    monkeypatch.setattr(host_health, "BurnInRuns", lambda id_, *_: begun.append(id_) or SimpleNamespace(device_id=id_))
    health = HostHealth("container-2")
    health.take_inventory(inventory_in("container-2"), machine.clock.now())
    store = machine.benches["container-2"].store
    health.start_burn_in([GPU], fresh(store))
    assert begun == []
    machine.finish("container-1", "a")
    machine.beat("container-1")
    health.start_burn_in([GPU], fresh(store))
    assert begun == [GPU]


def test_a_container_that_restarts_under_a_new_name_gets_the_gpu_when_the_old_one_is_lost(make_store, inventory_in):
    machine = Machine(make_store, inventory_in)
    machine.queue("container-1", "a")
    machine.beat("container-1")
    assert machine.users == {"a"}
    machine.queue("container-2", "b")
    new = machine.benches["container-2"]
    lost_at = machine.clock.now() + timedelta(seconds=180)
    while "b" not in machine.users and machine.clock.now() < lost_at + timedelta(seconds=30):
        if machine.clock.now() > lost_at:
            new.engine.liveness = lambda use: Liveness.GONE  # as the local engine says of a lost host
        machine.clock.advance(9)
        machine.report("container-2", inventory_in("container-2").worker)
        machine.beat("container-2")
        assert "b" not in machine.users or machine.clock.now() > lost_at
    assert "b" in machine.users
    states = {worker.id: str(worker.state) for worker in new.store.snapshot().workers}
    assert states == {"container-1": "lost", "container-2": "online"}
