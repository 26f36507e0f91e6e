"""What is simulated, and ended task instances of a migrated Airflow, as a workload and as durations."""

import shutil
import sqlite3
from argparse import Namespace
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.simulation.simulate import read_experiment, run_experiment, simulate_report
from hetero_airflow.cli.simulation.task_history import history_workload, plain_durations
from hetero_airflow.errors import HeteroError, TraceError
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import RunEnd
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options, usual_restart_s
from hetero_airflow.simulator.reports.figures import MeasuredWindow, measure
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import a_cpu, a_pending, a_place, a_worker
from tests.cli.conftest import _insert

NAMES = ("trace", "traces", "cluster", "policy", "compare", "restart_cost", "jobs", "until", "cycle", "uptime")
JOBS = tuple(Job(f"j{n}", float(n), DeviceRequest.parse("gpu"), 1.0) for n in range(10))


class Installation:
    """What it is asked for."""

    def __init__(self, *workers) -> None:
        self.workers = workers
        self.arguments: tuple[float, Collection[str]] | None = None

    def history(self, days: float, classes: Collection[str]) -> Workload:
        self.arguments = (days, classes)
        return Workload("history", JOBS)

    def read(self, **options):
        given = dict.fromkeys((*NAMES, "repair", "checkpoint")) | {"history": 30, "knowledge": "speeds", "seed": 0}
        given["no_preemption"] = False
        return read_experiment(Namespace(**given | options), "fifo", self.history, lambda: self.workers)


def test_without_options_the_history_runs_on_the_known_workers():
    workers = parse_cluster("v100=2")
    installation = Installation(*workers)
    experiment, window = installation.read()
    assert installation.arguments == (30, {"nvidia/v100", "generic/x86-64"})
    assert (experiment.workload.name, experiment.workers, experiment.policies) == ("history", workers, ("fifo",))
    assert (experiment.options, window) == (Options(measured=(0, 10)), MeasuredWindow(0, 10))


def test_options_say_what_is_simulated():
    experiment, window = Installation().read(
        cluster="v100=2", policy="priority", compare="fifo,priority,round_robin", restart_cost="90", jobs="2..4",
        until="2h", cycle="5s", uptime="1d", repair="10m", checkpoint="0", seed=7, knowledge="oracle",
        no_preemption=True,
    )  # fmt: skip
    assert experiment.policies == ("priority", "fifo", "round_robin")
    assert window == MeasuredWindow(2, 5)
    options = experiment.options
    assert [options.restart_s(n) for n in (1, 8, 9)] == [90.0, 90.0, 90.0]
    assert (options.cycle_s, options.mean_uptime_s, options.repair_s) == (5.0, 86400.0, 600.0)
    assert (options.checkpoint_s, options.until_s, options.seed) == (0.0, 7200.0, 7)
    assert (options.knowledge, options.measured, options.can_preempt) == (Knowledge.ORACLE, (2, 5), False)


def test_the_usual_restart_costs_more_for_more_devices():
    assert Installation(*parse_cluster("v100=1")).read()[0].options.restart_s is usual_restart_s


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "simulate 'history'; found no cluster"),
        ({"history": float("nan")}, "--history nan can't be used; found a number out of range"),
        ({"history": 1e300}, "--history 1e+300 can't be used; found a number out of range"),
        ({"history": -1.0}, "--history -1 can't be used; found a number out of range"),
        ({"cluster": "v100"}, "Cluster 'v100' can't be used; found 'v100'. Write it as"),
        (
            {"cluster": "v100=1", "jobs": "5..99"},
            "--jobs '5..99' can't be used; found no range within the 10 jobs. Write the first",
        ),
        ({"cluster": "v100=1", "jobs": "5..4"}, "--jobs '5..4' can't be used; found no range"),
        (
            {"cluster": "v100=1", "restart_cost": "-1"},
            "--restart-cost=-1.0 can't be used; found a time that is not above 0 s",
        ),
        ({"cluster": "v100=1", "restart_cost": "nan"}, "--restart-cost=nan"),
        ({"cluster": "v100=1", "until": "soon"}, "--until='soon' can't be used; found no duration"),
        ({"trace": "nonsense"}, "The trace 'nonsense' can't be used; found no name of a trace"),
    ],
)
def test_bad_options_are_errors_that_say_so(options, error):
    with pytest.raises(HeteroError) as caught:
        Installation().read(**options)
    assert error in str(caught.value)


NOW = datetime(2026, 6, 1, tzinfo=UTC)
CLASSES = {"nvidia/a100-sxm4-40gb", "nvidia/k80"}
DEVICE, PLAIN, OLD = (UUID(int=number) for number in (1, 2, 3))


@pytest.fixture
def engine(installation, tmp_path):
    """Two task instances that ended within a day, one long ago; the first held a device."""
    path = shutil.copy(installation.home / "airflow.db", tmp_path / "airflow.db")
    spans = {DEVICE: (-7200, -7100, -6500), PLAIN: (-3600, -3590, -3560), OLD: (-9e6, -9e6, -8.9e6)}
    with sqlite3.connect(path) as connection:
        for id_, seconds in spans.items():
            queued, start, end = ((NOW + timedelta(seconds=s)).isoformat(" ") for s in seconds)
            times = {"queued_dttm": queued, "start_date": start, "end_date": end, "priority_weight": 3}
            whose = {"dag_id": "dag", "run_id": "run", "task_id": f"task{id_.int}", "map_index": -1}
            _insert(connection, "task_instance", id=id_.hex, state="success", **whose, **times)
    connection.close()
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    store, at = SqlStore(engine), NOW - timedelta(seconds=7100)
    store.record([WorkerSeen(a_worker("history")), RequestSubmitted(a_pending(str(DEVICE), "a100"))], at)
    place = a_place(str(DEVICE), "history", **{"GPU-0": 1000})
    (lease,) = store.commit(Plan((place,)), at, NOW).leases
    ended = at + timedelta(seconds=600)
    store.renew([(lease.id, lease.token)], NOW)
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, "", RunEnd.FINISHED)], ended)
    yield engine
    engine.dispose()


def test_ended_task_instances_arrive_when_they_were_queued_and_take_as_long_as_they_ran(engine):
    workload = history_workload(engine, SqlStore(engine), 1, NOW, CLASSES)
    device, plain = workload.jobs
    assert [(job.id, job.arrival_s, job.work, job.group, job.weight) for job in workload.jobs] == [
        (str(DEVICE), 0.0, 600.0, "dag", 3),
        (str(PLAIN), 3600.0, 30.0, "dag", 3),
    ]
    assert (device.request, plain.request) == (DeviceRequest.parse("a100"), DeviceRequest.parse("cpu"))
    assert device.speed("nvidia/a100-sxm4-40gb") == 1.0
    assert device.speed("nvidia/k80") < 0.5
    assert plain.speed("nvidia/k80") == plain.speed("generic/x86-64") == 1.0


def test_a_span_in_which_nothing_ended_is_an_error(engine):
    with pytest.raises(TraceError, match="no ended task instance"):
        history_workload(engine, SqlStore(engine), 0.01, NOW, CLASSES)


def test_durations_are_of_successful_runs(engine):
    known = plain_durations(engine, "dag")
    assert {task: interval.middle for task, interval in known.items()} == {
        ("dag", "task1"): 600.0,
        ("dag", "task2"): 30.0,
        ("dag", "task3"): 1e5,
    }
    assert plain_durations(engine, "other") == {}


def test_a_history_of_cpu_tasks_says_on_what_it_is_simulated(render):
    jobs = tuple(Job(f"j{n}", float(n), DeviceRequest.parse("cpu:2"), 60.0) for n in range(10))
    experiment, window = Installation(a_worker(devices=(a_cpu(),))).read()
    records = run_experiment(replace(experiment, workload=Workload("history", jobs)), lambda _: lambda *_: None)
    text = render(simulate_report([measure(record, window) for record in records], []))
    assert text.startswith("Simulated: history on CPU cores only\n10 jobs; ")
