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

from hetero_airflow.clock import Clock
from hetero_airflow.contract.envelope import pack_request, read_lease
from hetero_airflow.engines.engine import EngineContext
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.executor import observer
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.build import Outside, make_dispatcher
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.events import Adopted, Read
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.priority import PriorityPolicy
from tests.engines.kubernetes.fake_api import OOM_KILLED, SIGNER, a_node, executor_options, running_api
from tests.executor.conftest import StandInTasks, recorded_failures
from tests.sqlite_store import SqliteStore
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def an_api_that_answers():
    watch = ExecutionApiWatch(lambda: None, Clock())
    watch.ask()
    return watch


class Bench:
    """What HeteroExecutor joins, but for Airflow's tables."""

    def __init__(self, api, parallelism=8, lease_timeout_s=60, tasks=None, store=None, job="way"):
        self.api, self.engine = api, KubernetesEngine(parallelism)
        self.store, self.tasks = store or SqliteStore(), tasks or StandInTasks()
        self.notes, self.reports, self.ends = [], [], []
        configuration = Configuration(
            "priority", "p", "hetero", lease_timeout_s, 1e6, 10, 180, 604800, 30, 60, 300, {}, "scheduler"
        )
        callbacks = SchedulerCallbacks(
            report=self.report,
            note=lambda key, text: self.notes.append(text),
            renew_token=lambda workload, valid_s: None,
        )
        edges, self.runs = SimpleNamespace(refresh=lambda dag_ids: {}), Runs()
        api_watch = an_api_that_answers()
        outside = Outside(self.store, self.engine, self.tasks, edges, api_watch, callbacks, Clock(), SIGNER)
        self.dispatcher = make_dispatcher(configuration, PriorityPolicy(), self.runs, outside, 600)
        self.engine.start(EngineContext(job, None, None, dict, self.dispatcher.store.workers, SIGNER))
        self.engine.cluster.watch()

    def report(self, key, state, info, is_noted):
        """What is reported by itself; `ends` has what the engine reports."""
        if type(state) is str:
            self.reports.append((key, state, info))

    def workload(self, name, request_id):
        """A task that Airflow has queued."""
        ti = {
            "id": request_id, "dag_version_id": str(uuid4()), "task_id": name, "dag_id": "dag", "run_id": "run",
            "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "default", "priority_weight": 1,
        }  # fmt: skip
        workload_fields = {"ti": ti, "dag_rel_path": Path("d.py"), "token": "t", "log_path": None}
        self.tasks.rows[request_id] = TaskProcess("queued")
        return ExecuteTask.model_validate({**workload_fields, "bundle_info": {"name": "b", "version": None}})

    def hold(self, name, device, request_id=None, **fields):
        request_id = request_id or str(uuid4())
        workload = self.workload(name, request_id)
        workload.ti.executor_config = {"hetero": pack_request([{"device": device, **fields}])}
        task = PendingTask(workload, DeviceRequest.parse(device, **fields), datetime.now(UTC))
        run = self.runs.arrive(workload.key, request_id, workload)
        self.dispatcher.commands.apply([(run, Read(task))], task.since)
        return workload.key, request_id

    def take_over(self, key, lease):
        """Airflow gives this scheduler a task that runs."""
        run = self.runs.arrive(key, lease.request_id, None)
        self.dispatcher.commands.apply([(run, Adopted(lease, is_live=True))], datetime.now(UTC))

    def beat(self):
        now, events = datetime.now(UTC), self.engine.collect()
        self.ends += [(key, state) for key, (state, _) in events.items() if state in ("success", "failed")]
        self.dispatcher.take_reports(events, now)
        self.dispatcher.place_tasks(now)
        self.engine.heartbeat()
        self.dispatcher.maintain(now)

    def until(self, holds):
        return eventually(lambda: self.beat() or holds())

    def started(self, request_id):
        """The pod of a task, which has a node and has begun."""
        pod = self.until(lambda: next((pod for pod in self.api.pods() if pod["status"]["phase"] == "Pending"), None))
        name = pod["metadata"]["name"]
        self.api.bind(name, "gpu-1")
        self.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
        self.api.set_status(name, {"phase": "Running"})
        return pod


@pytest.fixture
def bench(tmp_path, monkeypatch):
    with running_api() as (api, host):
        for name, value in executor_options(host, tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(observer, "_WATCH_EVERY_S", 0.1)
        monkeypatch.setattr(
            KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: TaskInstanceState.SUCCESS
        )
        api.put("nodes", a_node("gpu-1", gpus=1))
        bench = Bench(api)
        yield bench
        bench.dispatcher.close()
        bench.engine.end()


def test_two_tasks_take_turns_on_the_one_gpu_of_a_node(bench):
    keys = [bench.hold(name, "gpu") for name in "ab"]
    for number, (key, request_id) in enumerate(keys):
        pod = bench.until(lambda: next((pod for pod in bench.api.pods() if pod["status"]["phase"] == "Pending"), None))
        assert json.loads(pod["spec"]["containers"][0]["args"][-1])["ti"]["id"] == request_id
        task_lease = read_lease(json.loads(pod["spec"]["containers"][0]["args"][-1])["ti"]["context_carrier"])
        assert (task_lease.id, task_lease.is_slot, task_lease.worker) == (
            pod["metadata"]["labels"][LEASE_LABEL],
            True,
            "gpu-1",
        )
        assert len(bench.store.snapshot().leases) == 1
        name = pod["metadata"]["name"]
        bench.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
        bench.api.bind(name, "gpu-1")
        bench.api.set_status(name, {"phase": "Running"})
        bench.until(lambda number=number: len(bench.runs.queued) == 1 - number)
        bench.tasks.rows[request_id] = TaskProcess("success", 7, name, datetime.now(UTC))
        bench.api.set_status(name, {"phase": "Succeeded"})
        bench.until(lambda key=key: key not in bench.runs.leased)
    bench.until(lambda: not bench.store.snapshot().leases)
    # a look may find the end of a process before KubernetesExecutor reports it
    assert all(state == "success" for _, state, _ in bench.reports)


def test_a_node_that_is_lost_frees_what_it_had(bench):
    key, request_id = bench.hold("a", "gpu")
    pod = bench.until(lambda: next(iter(bench.api.pods()), None))
    name = pod["metadata"]["name"]
    bench.api.bind(name, "gpu-1")
    bench.api.set_status(name, {"phase": "Running"})
    bench.tasks.rows[request_id] = TaskProcess("running", 7, name, datetime.now(UTC))
    (lease,) = bench.store.snapshot().leases
    # nodes and pods come by different watches
    bench.until(lambda: "(running)" in (bench.engine.cluster.status(lease.id).message or ""))
    bench.api.put("nodes", a_node("gpu-1", gpus=1, ready="Unknown"))
    bench.until(lambda: not bench.store.snapshot().leases)
    assert (
        bench.store.request_history("dag", "run", "a").cause
        == f"node gpu-1 was lost, and with it pod default/{name} (running)"
    )
    assert [report[0] for report in bench.reports] == [key], "left to its retries, since Airflow's tables are not there"
    bench.until(lambda: bench.api.deletions == [(name, None)])


@pytest.fixture
def failures(monkeypatch):
    """Key → the failures on record, in place of Airflow's task state store."""
    return recorded_failures(monkeypatch)


@pytest.mark.parametrize("quota_in", ["the request", "the template"])
@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_pod_that_is_killed_for_memory_comes_again_with_twice_as_much_and_the_same_try(
    bench, failures, tmp_path, quota_in, state
):
    """With and without a report of the start: the memory may not suffice even for that."""
    request_fields = {"quota": {"host_memory": "4GiB"}} if quota_in == "the request" else {}
    if quota_in == "the template":
        template = tmp_path / "template.yaml"
        template.write_text(template.read_text().replace("image: airflow", "image: airflow, " + _LIMIT))
    key, request_id = bench.hold("a", "gpu", **request_fields)
    first = bench.started(request_id)
    bench.tasks.rows[request_id] = TaskProcess(state, 7, first["metadata"]["name"], datetime.now(UTC))
    bench.api.set_status(first["metadata"]["name"], OOM_KILLED)
    bench.until(lambda: key not in bench.runs.leased)
    bench.until(lambda: not bench.store.snapshot().leases)
    assert (bench.tasks.sent_back, bench.reports) == ([request_id], [])
    (record,) = failures[key]
    assert (record["failure_class"], record["host_memory_bytes"]) == ("host_memory", 4 * 2**30)
    assert "requeued at once, for the 1st time of 3, without using a retry" in bench.notes[-1]
    assert bench.hold("a", "gpu", request_id, **request_fields)[0] == key, "as Airflow does once it is rescheduled"
    second = bench.started(request_id)
    task_instance = json.loads(second["spec"]["containers"][0]["args"][-1])["ti"]
    assert (task_instance["id"], task_instance["try_number"]) == (request_id, 1)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in (first, second)]
    assert limits == ["4Gi", "8Gi"]


def test_an_end_that_the_supervisor_reported_is_not_reported_again(bench, failures):
    _, request_id = bench.hold("a", "gpu", quota={"host_memory": "4GiB"})
    name = bench.started(request_id)["metadata"]["name"]
    bench.tasks.rows[request_id] = TaskProcess("up_for_reschedule", 7, name, datetime.now(UTC))
    bench.api.set_status(name, OOM_KILLED)
    bench.until(lambda: not bench.store.snapshot().leases)
    assert (failures, bench.tasks.sent_back, bench.reports) == ({}, [], []), "Airflow knows, and schedules it again"


def test_the_end_of_a_task_that_airflow_has_queued_again_is_not_reported(bench, failures):
    key, request_id = bench.hold("a", "gpu", quota={"host_memory": "4GiB"})
    name = bench.started(request_id)["metadata"]["name"]
    bench.until(lambda: not bench.runs.queued)
    bench.hold("a", "gpu", request_id, quota={"host_memory": "4GiB"})
    bench.api.set_status(name, OOM_KILLED)
    bench.until(lambda: len(bench.api.pods()) == 2)
    assert (failures, bench.tasks.sent_back, bench.reports) == ({}, [], [])
    assert list(bench.runs.leased) == [key]


_LIMIT = "resources: {limits: {memory: 4Gi}}"
