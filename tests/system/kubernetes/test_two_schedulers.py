"""Two schedulers share a cluster, and one of them is killed: 200 tasks on 64 GPUs of an API server that is played.

Dispatchers, store, engines and KubernetesExecutors are real, and the kubelets are played. Airflow's tables are stood in
for, and what Airflow does with the tasks of a dead scheduler.
"""

import itertools
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION, LEASE_LABEL
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from tests.engines.kubernetes.fake_api import a_node, executor_options, running_api
from tests.engines.kubernetes.test_whole_way import Bench
from tests.executor.conftest import StandInTasks
from tests.sqlite_store import SqliteStore
from tests.system.overlaps import overlaps
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

TASKS, NODES, GPUS = 200, 8, 8
BODY_BEATS = 3


class Kubelets:
    """Run each pod on the node that its lease names, for some beats of the schedulers."""

    def __init__(self, api, rows):
        self._api, self._rows = api, rows
        self._beats = itertools.count()
        self.runs = {}
        """Uid of a pod → what ran. The time is the number of the beat."""

    def step(self):
        now = next(self._beats)
        for pod in self._api.pods():
            name, uid, body = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["containers"][0]["args"][-1]
            if uid not in self.runs:
                self._begin(pod, now)
            elif now - self.runs[uid]["start"] >= BODY_BEATS and self.runs[uid]["end"] == float("inf"):
                self.runs[uid]["end"] = now
                self._rows[self.runs[uid]["task"]] = TaskProcess("success", 7, name, datetime.now(UTC))
                self._api.set_status(name, {"phase": "Succeeded"})
            assert self.runs[uid]["task"] in body

    def _begin(self, pod, now):
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        (node,) = term["matchFields"][0]["values"]
        ids = [f"{node}/{slot}" for slot in metadata["annotations"][DEVICES_ANNOTATION].split(",")]
        task = metadata["labels"][LEASE_LABEL].rpartition(".")[0]
        use = {"ids": ids, "kind": "gpu", "milli": 1000, "start": now, "end": float("inf"), "task": task}
        self.runs[metadata["uid"]] = use
        self._rows[task] = TaskProcess("running", 7, name, datetime.now(UTC))
        self._api.bind(name, node)
        self._api.set_status(name, {"phase": "Running"})


@pytest.fixture
def schedulers(tmp_path, monkeypatch):
    """Two that share a store, and the API server."""
    with running_api() as (api, host), ExitStack() as stack:
        for name, value in executor_options(host, tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: TaskInstanceState.SUCCESS
        )
        monkeypatch.setattr(KubernetesExecutor, "_should_create_pod_for_job", lambda self, task: True)
        for number in range(NODES):
            api.put("nodes", a_node(f"gpu-{number}", gpus=GPUS))
        tasks, store, benches = StandInTasks(), SqliteStore(), []
        for job in "12":
            benches.append(Bench(api, TASKS, tasks=tasks, store=store, job=job))
            stack.callback(benches[-1].engine.end)
            stack.callback(benches[-1].dispatcher.close)
        yield benches


def kill(bench):
    """Stop its threads where they are; nothing of what it knows is told to anybody."""
    for adapter in bench.engine.cluster.adapters:
        adapter.stop()


def take_over(dead, heir, held):
    """What Airflow and the executor do with the tasks of a dead scheduler: see `Adoption`."""
    leases = {lease.request_id: lease for lease in heir.store.snapshot().leases}
    for key, request_id in held:
        state = heir.tasks.rows[request_id].state
        if state == "queued":
            heir.hold(key.task_id, "gpu", request_id)
        elif state == "running":
            heir.take_over(key, leases[request_id])


def test_a_scheduler_that_is_killed_leaves_no_second_pod_and_no_overlap(schedulers):
    doomed, heir = schedulers
    rows = doomed.tasks.rows
    kubelets = Kubelets(doomed.api, rows)
    held = {bench: [bench.hold(f"t{n}-{bench is heir}", "gpu") for n in range(TASKS // 2)] for bench in schedulers}

    def beat(*benches):
        for bench in benches:
            bench.beat()
        kubelets.step()

    eventually(lambda: beat(doomed, heir) or len(kubelets.runs) >= TASKS // 4)
    kill(doomed)
    take_over(doomed, heir, held[doomed])
    eventually(lambda: beat(heir) or all(row.state == "success" for row in rows.values()))
    eventually(lambda: beat(heir) or not heir.store.snapshot().leases)
    runs = list(kubelets.runs.values())
    assert len(runs) == TASKS == len({run["task"] for run in runs})
    assert overlaps(runs) == []
    assert [*heir.tasks.sent_back, *(end for end in heir.ends if end[1] == TaskInstanceState.FAILED)] == []
