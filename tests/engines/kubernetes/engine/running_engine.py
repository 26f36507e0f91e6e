"""A running engine with a real KubernetesExecutor and its processes, against an API server over real HTTP."""

from itertools import count
from pathlib import Path
from uuid import uuid4

from airflow.executors.workloads import ExecuteTask
from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.envelope import pack_request
from hetero_airflow.engines.engine import EngineContext, LeasedProcess
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import a_lease
from tests.engines.kubernetes.fake_api import SIGNER
from tests.waiting import eventually

NUMBERS = count(1)
DONE = {"phase": "Succeeded", "containerStatuses": []}


class Cluster:
    """A running engine, its API server, and a store that records what the engine reports."""

    def __init__(self, api, engine):
        self.api, self.engine, self.workers, self.states, self.reported = api, engine, {}, {}, {}

    def begin(self, engine, job="job"):
        engine.start(EngineContext(job, None, None, dict, lambda: self.workers, SIGNER))
        engine.cluster.watch()
        self.learn(engine)

    def learn(self, engine=None):
        changes = (engine or self.engine).cluster.poll()
        for worker in changes.seen:
            self.workers[worker.id] = worker.model_copy(update={"state": WorkerState.ONLINE})
        for id_ in changes.lost:
            self.workers[id_] = self.workers[id_].model_copy(update={"state": WorkerState.LOST})
        return self.workers

    def placed(self, gpu=0, config=None, lease=None, name=None, node="gpu-1"):
        """The workload of a device task, and its lease of one GPU."""
        number = next(NUMBERS)
        request_id = str(uuid4())
        ti = {
            "id": request_id, "dag_version_id": str(uuid4()), "task_id": name or f"t{number}", "dag_id": "d",
            "run_id": "r", "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "hetero", "priority_weight": 1,
        }  # fmt: skip
        workload = ExecuteTask.model_validate(
            {"ti": ti, "dag_rel_path": Path("d.py"), "token": "t", "log_path": None,
             "bundle_info": {"name": "b", "version": None}}
        )  # fmt: skip
        packed = pack_request([{"device": "gpu", "priority": "high"}])
        workload.ti.executor_config = {"hetero": packed, **(config or {})}
        claims = (Claim(f"nvidia.com/gpu/{gpu}", 1000),)
        return workload, lease or a_lease(request_id, node).model_copy(update={"claims": claims})

    def plain(self, **arguments):
        """A task without a device, handed to the engine; its key."""
        workload, _ = self.placed(**arguments)
        workload.ti.executor_config = {}
        self.engine.hand_over_unplaced(workload)
        return workload.key

    def pods_of(self, key):
        """The pods of a task, in the order of their names."""
        pods = (pod for pod in self.api.pods() if pod["metadata"]["annotations"]["task_id"] == key.task_id)
        return sorted(pods, key=lambda pod: pod["metadata"]["name"])

    def hand_over(self, *, engine=None, **arguments):
        """A device task on one GPU, handed to the engine; its key and lease."""
        workload, lease = self.placed(**arguments)
        (engine or self.engine).hand_over(workload, lease, self.workers[lease.worker_id])
        return workload.key, lease

    def pod(self, lease):
        """Its pod, once it is made."""
        pods = (pod for pod in self.api.pods() if pod["metadata"]["labels"].get(LEASE_LABEL) == lease.id)
        return next(pods, None)

    def made(self, lease):
        """Its pod; the calls of a heartbeat are made in another thread."""
        return eventually(lambda: self.engine.heartbeat() or self.pod(lease))

    def run(self, lease):
        """Its pod runs; the pod's name."""
        name = self.made(lease)["metadata"]["name"]
        self.api.bind(name, "gpu-1")
        self.api.set_status(name, {"phase": "Running"})
        eventually(lambda: self.status(lease).message == f"pod default/{name} (running)")
        return name

    def started(self, **arguments):
        """A task whose pod runs."""
        key, lease = self.hand_over(**arguments)
        return key, lease, self.run(lease)

    def later_lease(self, key, earlier):
        """The next lease of a task whose lease has ended; the engine has got it."""
        self.engine.cluster.adapters[0].end_lease(earlier.id)
        later = earlier.model_copy(update={"id": f"{earlier.request_id}.later", "token": earlier.token + 1})
        assert self.hand_over(lease=later, name=key.task_id)[0] == key
        return later

    def succeed(self, key, name):
        """The pod of a task ends well, and that is reported."""
        self.states[key] = TaskInstanceState.SUCCESS
        self.api.set_status(name, DONE)
        assert self.ends(key) == (TaskInstanceState.SUCCESS, None)

    def look(self, lease, state="running"):
        return self.engine.liveness_of([LeasedProcess(lease, state, is_ours=True)])[lease.id]

    def status(self, lease):
        return self.engine.cluster.status(lease.id)

    def beat(self):
        """One heartbeat; notes the ends that are reported."""
        self.engine.heartbeat()
        ends = (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)
        self.reported |= {key: event for key, event in self.engine.collect().items() if event[0] in ends}

    def until(self, holds):
        """Beat until it holds."""
        return eventually(lambda: self.beat() or holds())

    def ends(self, key):
        """What is reported of a task, in the end."""
        return self.until(lambda: self.reported.get(key))
