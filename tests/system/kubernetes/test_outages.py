"""The API server of a real control plane is away, restarted or frozen, during 60 tasks on 32 GPUs and 10 without.

``HETERO_AIRFLOW_OUTAGE_S=300 pytest -s -m fleet tests/system/kubernetes`` has longer outages. The kubelets are
simulated: a thread reports that pods run, and that they end after a second. Dispatcher, store, engine and
KubernetesExecutor are real; Airflow's tables are stood in for.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState
from kubernetes import client
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from tests.engines.kubernetes.test_whole_way import Bench
from tests.system.kubernetes.leasing import ACCOUNT, grant, options
from tests.system.overlaps import overlaps
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

TASKS, NODES, GPUS = 60, 4, 8
PLAIN_TASKS = 10
"""Tasks without a device that are queued when the outage begins."""
BODY_S = 1.0
BEAT_S = 0.5
OUTAGE_S = float(os.environ.get("HETERO_AIRFLOW_OUTAGE_S", "40"))
"""How long the API server is away; 300 tests what outlives tokens, leases and caches."""
LONGEST_BEAT_S = 5.0
"""The interval of Airflow's heartbeats: the loop stays below twice the normal age."""
MAX_LOG_LINES = 20
MAX_CALLS = 2.5


class Kubelets:
    """Runs each pod that is bound to a node for a while, and removes those that are to be deleted."""

    def __init__(self, nodes, rows):
        self._nodes, self._rows = nodes, rows
        self.runs = {}
        """Id of a pod → what ran."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def _run(self):
        while not self._stopped.wait(0.2):
            for run in self.runs.values():  # the processes go on, whatever the cluster does
                if run["end"] == float("inf") and time.time() - run["start"] >= BODY_S:
                    run["end"] = time.time()
                    self._tell(run["task"], "success")
            with suppress(client.ApiException, HTTPError):
                for pod in self._nodes.api.list_namespaced_pod("airflow", _request_timeout=(2, 5)).items:
                    self._step(pod)

    def _step(self, pod):
        name, node = pod.metadata.name, pod.spec.node_name
        if node is None:
            return
        if pod.metadata.uid not in self.runs:
            task = json.loads(pod.spec.containers[0].args[-1])["ti"]["id"]
            ids = [f"{node}/{slot}" for slot in slots_of(pod)]
            use = {"ids": ids, "kind": "gpu", "milli": 1000, "start": time.time(), "end": float("inf"), "task": task}
            self.runs[pod.metadata.uid] = use
            self._tell(task, "running")
        is_over = self.runs[pod.metadata.uid]["end"] < float("inf")
        if is_over and pod.status.phase != "Succeeded":
            self._nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
        elif not is_over and pod.status.phase == "Pending":
            self._nodes.put(name, "airflow", "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        if pod.metadata.deletion_timestamp is not None:
            self._nodes.drop(name, "airflow")

    def _tell(self, task, state):
        """What the task's supervisor tells Airflow, whose server is not that of the cluster."""
        self._rows[task] = TaskProcess(state, 7, "pod", datetime.now(UTC))


def slots_of(pod):
    """The slots of its node that a pod's lease has; none without a lease."""
    return filter(None, pod.metadata.annotations.get(DEVICES_ANNOTATION, "").split(","))


def away(plane, bench):
    plane.kill_api_server()
    bench.add_plain_tasks()
    bench.beat_for(OUTAGE_S)
    plane.start_api_server()


def frozen(plane, bench):
    with plane.frozen_api_server():
        bench.add_plain_tasks()
        bench.beat_for(OUTAGE_S + 5)


def restarted(plane, bench):
    """The versions of the watches are too old for the new server."""
    plane.kill_api_server()
    plane.start_api_server()
    bench.beat_for(1)


class OutageBench(Bench):
    """Notes how long its heartbeats take."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.longest_beat_s = 0.0

    def beat(self):
        time.sleep(BEAT_S)
        began = time.monotonic()
        super().beat()
        self.longest_beat_s = max(self.longest_beat_s, time.monotonic() - began)

    def add_plain_tasks(self):
        for number in range(PLAIN_TASKS):
            self.engine.hand_over_unplaced(self.workload(f"plain{number}", str(uuid4())))

    def is_idle(self):
        """Whether all tasks have ended for Airflow, and no lease is left."""
        are_over = all(process.state == "success" for process in self.tasks.rows.values())
        return are_over and not self.store.snapshot().leases

    def beat_for(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.beat()


@pytest.fixture
def bench(plane, nodes, tmp_path, monkeypatch):
    grant(plane, tmp_path / "credentials")
    for name, value in options(plane, tmp_path / "credentials", tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: TaskInstanceState.SUCCESS
    )
    monkeypatch.setattr(KubernetesExecutor, "_should_create_pod_for_job", lambda self, task: True)
    for number in range(NODES):
        nodes.add(f"gpu-{number}", GPUS, amounts={"nvidia.com/gpu": str(GPUS), "cpu": "64", "memory": "256Gi"})
    bench = OutageBench(nodes.api, parallelism=2 * TASKS, lease_timeout_s=15)
    bench.until(lambda: len(bench.store.snapshot().workers) == NODES)
    yield bench
    bench.dispatcher.close()
    bench.engine.end()


@pytest.mark.parametrize("outages", [(away, restarted, restarted), (frozen,)], ids=["away_and_restarted", "frozen"])
def test_an_outage_makes_no_second_pod_and_stops_no_heartbeat(bench, plane, nodes, caplog, outages):
    caplog.set_level(logging.INFO)
    before = len(plane.requests(ACCOUNT))
    with Kubelets(nodes, bench.tasks.rows) as kubelets:
        for number in range(TASKS):
            bench.hold(f"t{number}", "gpu")
        bench.until(lambda: len(kubelets.runs) >= TASKS // 4)
        for outage in outages:
            _cause(outage, plane, bench, caplog)
        eventually(lambda: bench.beat() or bench.is_idle())
    runs = list(kubelets.runs.values())
    calls = Counter(
        event["verb"]
        for event in plane.requests(ACCOUNT)[before:]
        if event.get("objectRef", {}).get("resource") == "pods"
    )
    retries = [*bench.tasks.sent_back, *(end for end in bench.ends if end[1] == TaskInstanceState.FAILED)]
    tasks = TASKS + PLAIN_TASKS
    print(f"{tasks} tasks: {len(runs)} pods, {len(overlaps(runs))} overlaps, {len(retries)} retries, {dict(calls)}")
    assert len(runs) == tasks == len({run["task"] for run in runs})
    assert overlaps(runs) == []
    assert retries == []
    assert sum(calls[verb] for verb in ("create", "delete", "patch", "get")) <= MAX_CALLS * tasks, calls


def _cause(outage, plane, bench, caplog):
    """An outage, until the cluster is seen again."""
    bench.longest_beat_s, logged = 0.0, len(caplog.records)
    (adapter,) = bench.engine.cluster.adapters
    outage(plane, bench)
    eventually(lambda: bench.beat() or adapter.problem is None)
    lines = [record.getMessage() for record in caplog.records[logged:] if _is_ours(record)]
    print(f"{outage.__name__}: longest heartbeat {bench.longest_beat_s:.2f} s, {len(lines)} lines of log")
    assert bench.longest_beat_s < LONGEST_BEAT_S
    assert len(lines) <= MAX_LOG_LINES, lines


def _is_ours(record):
    """Whether the scheduler logs it as a warning. Simulated kubelets have threads without a name."""
    is_kubelet = record.threadName.startswith("Thread-")
    return record.levelno >= logging.WARNING and not is_kubelet and "task_state_store" not in record.getMessage()
