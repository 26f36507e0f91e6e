"""Ended task instances of a migrated Airflow, as a workload and as durations."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.simulation.task_history import history_workload, plain_durations
from hetero_airflow.errors import TraceError
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import a_pending, a_place, a_worker
from tests.cli.conftest import _insert

pytestmark = pytest.mark.system

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
