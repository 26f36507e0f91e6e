"""A supervised task without Airflow: a real process, and the Execution API by hand."""

import gc
import json
import signal
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from http import HTTPStatus
from uuid import uuid4

import httpx
import pytest
from airflow.executors.workloads.base import BundleInfo
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.sdk.api.client import Client

from hetero_airflow.engines.host.lease_files import recorded_lease
from hetero_airflow.supervisor.coordinator import DeviceSupervisor
from hetero_airflow.supervisor.run_processes import RunProcesses
from hetero_airflow.testing import a_task_lease

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Api:
    """Airflow's Execution API as far as one run of a task needs it."""

    def __init__(self):
        self.heartbeat = HTTPStatus.NO_CONTENT
        self.reports = []
        """The reported ends of the task."""
        self.states = {}
        """The task state store."""

    def answer(self, request):
        what = request.url.path.rpartition("/")[2]
        if what == "run":
            run = {
                "dag_id": "dag", "run_id": "run", "logical_date": None, "start_date": NOW.isoformat(),
                "run_after": NOW.isoformat(), "run_type": "manual", "state": "running", "consumed_asset_events": [],
                **dict.fromkeys(("data_interval_start", "data_interval_end", "end_date", "partition_key")),
            }  # fmt: skip
            return httpx.Response(200, json={"dag_run": run, "max_tries": 0, "should_retry": False})
        if what == "heartbeat":
            return httpx.Response(self.heartbeat, json={"detail": {"reason": "running_elsewhere"}})
        if what == "state":
            self.reports.append(request.read().decode())
            return httpx.Response(204)
        if request.method == "PUT" and "/store/" in request.url.path:
            self.states[what] = json.loads(request.read())["value"]
            return httpx.Response(204)
        return httpx.Response(404, json={"detail": {"reason": "not_found"}})


def waits_for(path):
    """What a process does that ends once this file is there."""

    def waits():
        while not path.exists():
            time.sleep(0.01)

    return waits


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def start(api, tmp_path, monkeypatch):
    """Starts a leased task whose process does what is given, and nothing Airflow's would."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started, records = [], ExitStack()

    def _start(target):
        ti = TaskInstanceDTO(
            id=uuid4(), task_id="t", dag_id="dag", run_id="run", try_number=1, dag_version_id=uuid4(), queue="q",
            pool_slots=1, priority_weight=1,
        )  # fmt: skip
        process = DeviceSupervisor.start(
            what=ti,
            dag_rel_path="dag.py",
            bundle_info=BundleInfo(name="dags", version=None),
            client=Client(base_url=None, dry_run=True, token="", transport=httpx.MockTransport(api.answer)),
            target=target,
        )
        started.append(process)
        record = records.enter_context(recorded_lease(str(ti.id), "worker-a"))
        run = RunProcesses(a_task_lease(simulated=True), record, None)
        run.begin(process.pid)
        process.attach_lease(a_task_lease(), tmp_path, run)
        return process

    yield _start
    for process in started:
        process.kill(signal.SIGKILL)
    records.close()
    started.clear()
    gc.collect()  # Airflow's supervisor leaves it to this to close its sockets
