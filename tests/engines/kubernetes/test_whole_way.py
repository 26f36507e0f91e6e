"""A device task through dispatcher, store, engine and cluster; only Airflow's own tables are stood in for."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState

from hetero_airflow.clock import SystemClock
from hetero_airflow.contract.envelope import pack_request, read_lease
from hetero_airflow.engines.engine import EngineContext
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.leases import lease_keeper, recovery
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.testing import a_signer
from tests.engines.kubernetes.fake_api import OOM_KILLED, a_node, eventually, executor_options, running_api
from tests.executor.conftest import StandInTasks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Way:
    """What HeteroExecutor joins, but for Airflow's tables."""

    def __init__(self, api):
        self.api, self.store, self.tasks, self.engine = api, MemoryStore(), StandInTasks(), KubernetesEngine(8)
        self.notes, self.reports = [], []
        configuration = Configuration("priority", "p", "hetero", 60, 1e6, 10, 180, 604800, 30, 60, 300, {}, "scheduler")
        callbacks = SchedulerCallbacks(
            report=lambda *report: self.reports.append(report),
            note=lambda key, text: self.notes.append(text),
            renew_token=lambda workload, valid_s: None,
        )
        self.dispatcher = Dispatcher(
            configuration, self.store, PriorityPolicy(), self.engine, tasks=self.tasks, callbacks=callbacks,
            edges=SimpleNamespace(refresh=lambda dag_ids: {}), clock=SystemClock(), queued_timeout_s=600,
            signer=a_signer(),
        )  # fmt: skip
        self.keeper = self.dispatcher.keeper
        self.engine.start(EngineContext("way", None, None, dict, self.dispatcher.workers.current))

    def hold(self, name, device, request_id=None, **asked):
        request_id = request_id or str(uuid4())
        ti = {
            "id": request_id, "dag_version_id": str(uuid4()), "task_id": name, "dag_id": "dag", "run_id": "run",
            "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "default", "priority_weight": 1,
        }  # fmt: skip
        told = {"ti": ti, "dag_rel_path": Path("d.py"), "token": "t", "log_path": None}
        workload = ExecuteTask.model_validate({**told, "bundle_info": {"name": "b", "version": None}})
        workload.ti.executor_config = {"hetero": pack_request([{"device": device, **asked}])}
        self.tasks.rows[request_id] = TaskProcess("queued")
        self.dispatcher.queue.add(workload, DeviceRequest.parse(device, **asked), datetime.now(UTC))
        return workload.key, request_id

    def beat(self):
        for key, (state, _) in self.engine.collect().items():
            if state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                self.keeper.end(key, "the task ended")
        now = datetime.now(UTC)
        self.dispatcher.place_tasks(now)
        self.engine.heartbeat()
        self.dispatcher.maintain(now)

    def until(self, holds):
        return eventually(lambda: self.beat() or holds())

    def started(self, request_id):
        """The pod of a task, which has a node and has begun."""
        pod = self.until(lambda: next((one for one in self.api.pods() if one["status"]["phase"] == "Pending"), None))
        name = pod["metadata"]["name"]
        self.api.bind(name, "gpu-1")
        self.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
        self.api.set_status(name, {"phase": "Running"})
        return pod


@pytest.fixture
def way(tmp_path, monkeypatch):
    with running_api() as (api, host):
        for name, value in executor_options(host, tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(lease_keeper, "_WATCH_EVERY_S", 0.1)
        monkeypatch.setattr(
            KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: TaskInstanceState.SUCCESS
        )
        api.put("nodes", a_node("gpu-1", gpus=1))
        way = Way(api)
        yield way
        way.dispatcher.close()
        way.engine.end()


def test_two_tasks_take_turns_on_the_one_gpu_of_a_node(way):
    keys = [way.hold(name, "gpu") for name in "ab"]
    for number, (key, request_id) in enumerate(keys):
        pod = way.until(lambda: next((one for one in way.api.pods() if one["status"]["phase"] == "Pending"), None))
        assert json.loads(pod["spec"]["containers"][0]["args"][-1])["ti"]["id"] == request_id
        told = read_lease(json.loads(pod["spec"]["containers"][0]["args"][-1])["ti"]["context_carrier"])
        assert (told.id, told.is_slot, told.worker) == (pod["metadata"]["labels"][LEASE_LABEL], True, "gpu-1")
        assert len(way.store.snapshot().leases) == 1
        name = pod["metadata"]["name"]
        way.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
        way.api.bind(name, "gpu-1")
        way.api.set_status(name, {"phase": "Running"})
        way.until(lambda number=number: len(way.dispatcher.queue.tasks) == 1 - number)
        way.tasks.rows[request_id] = TaskProcess("success", 7, name, datetime.now(UTC))
        way.api.set_status(name, {"phase": "Succeeded"})
        way.until(lambda key=key: key not in way.keeper.running)
    way.until(lambda: not way.store.snapshot().leases)
    # the keeper may find the end of a process before KubernetesExecutor reports it
    assert all(state == "success" for _, state, _ in way.reports)


def test_a_node_that_is_lost_frees_what_it_had(way):
    key, request_id = way.hold("a", "gpu")
    pod = way.until(lambda: next(iter(way.api.pods()), None))
    name = pod["metadata"]["name"]
    way.api.bind(name, "gpu-1")
    way.api.set_status(name, {"phase": "Running"})
    way.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
    (lease,) = way.store.snapshot().leases
    # nodes and pods come by different watches
    way.until(lambda: "(running)" in (way.engine.cluster.status(lease.id).message or ""))
    way.api.put("nodes", a_node("gpu-1", gpus=1, ready="Unknown"))
    way.until(lambda: not way.store.snapshot().leases)
    assert (
        way.store.request_history("dag", "run", "a").cause
        == f"node gpu-1 was lost, and with it pod default/{name} (running)"
    )
    assert [told[0] for told in way.reports] == [key], "left to its retries, since Airflow's tables are not there"
    way.until(lambda: way.api.deletions == [(name, None)])


@pytest.fixture
def failures(monkeypatch):
    """Key → the failures on record, in place of Airflow's task state store."""
    kept = {}
    monkeypatch.setattr(
        recovery, "read_states", lambda keys, name: {key: json.dumps(kept[key]) for key in keys if key in kept}
    )
    monkeypatch.setattr(recovery, "write_state", lambda key, name, text: kept.__setitem__(key, json.loads(text)))
    return kept


@pytest.mark.parametrize("says", ["the request", "the template"])
@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_pod_that_is_killed_for_memory_comes_again_with_twice_as_much_and_the_same_try(
    way, failures, tmp_path, says, state
):
    """Whether Airflow had heard of its beginning or not: the memory may not even suffice for that."""
    asked = {"quota": {"host_memory": "4GiB"}} if says == "the request" else {}
    if says == "the template":
        template = tmp_path / "template.yaml"
        template.write_text(template.read_text().replace("image: airflow", "image: airflow, " + _LIMIT))
    key, request_id = way.hold("a", "gpu", **asked)
    first = way.started(request_id)
    way.tasks.rows[request_id] = TaskProcess(state, 7, first["metadata"]["name"], datetime.now(UTC))
    way.api.set_status(first["metadata"]["name"], OOM_KILLED)
    way.until(lambda: key not in way.keeper.running)
    way.until(lambda: not way.store.snapshot().leases)
    assert (way.tasks.sent_back, way.reports) == ([request_id], [])
    (record,) = failures[key]
    assert (record["failure_class"], record["host_memory_bytes"]) == ("host_memory", 4 * 2**30)
    assert "requeued at once, for the 1st time of 3, without using a retry" in way.notes[-1]
    assert way.hold("a", "gpu", request_id, **asked)[0] == key, "as Airflow does once it is rescheduled"
    second = way.started(request_id)
    told = json.loads(second["spec"]["containers"][0]["args"][-1])["ti"]
    assert (told["id"], told["try_number"]) == (request_id, 1)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in (first, second)]
    assert limits == ["4Gi", "8Gi"]


def test_of_a_task_whose_supervisor_lived_and_told_of_its_end_nothing_is_told_again(way, failures):
    key, request_id = way.hold("a", "gpu", quota={"host_memory": "4GiB"})
    name = way.started(request_id)["metadata"]["name"]
    way.tasks.rows[request_id] = TaskProcess("up_for_reschedule", 7, name, datetime.now(UTC))
    way.api.set_status(name, OOM_KILLED)
    way.until(lambda: not way.store.snapshot().leases)
    assert (failures, way.tasks.sent_back, way.reports) == ({}, [], [(key, "success", None)])


def test_of_one_that_airflow_has_queued_anew_by_then_neither(way, failures):
    key, request_id = way.hold("a", "gpu", quota={"host_memory": "4GiB"})
    name = way.started(request_id)["metadata"]["name"]
    way.until(lambda: not way.dispatcher.queue.tasks)
    way.hold("a", "gpu", request_id, quota={"host_memory": "4GiB"})
    way.api.set_status(name, OOM_KILLED)
    way.until(lambda: len(way.api.pods()) == 2)
    assert (failures, way.tasks.sent_back, way.reports) == ({}, [], [])
    assert list(way.keeper.running) == [key]


_LIMIT = "resources: {limits: {memory: 4Gi}}"
