"""The engine with its real KubernetesExecutor on a real control plane, as the service account of docs/kubernetes/."""

import contextlib
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState
from kubernetes import client

from hetero_airflow.contract.envelope import pack_request
from hetero_airflow.engines.engine import EngineContext, LeasedProcess, LeaseStatus, Liveness
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.model.lease import Claim, Lease
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.testing import a_lease
from tests.control_plane import ControlPlane
from tests.engines.kubernetes.fake_api import SIGNER
from tests.waiting import eventually

ACCOUNT = "airflow-scheduler"
TEMPLATE = Path(__file__).parents[3] / "docs" / "kubernetes" / "pod-template.yaml"
ENDS = (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)

_NUMBERS = count(1)


@contextlib.contextmanager
def leasing(plane: ControlPlane, folder: Path, **more: str) -> "Iterator[Leasing]":
    """Start an engine, and end it after the block.

    :param more: environment variables
    """
    with pytest.MonkeyPatch.context() as patch:
        bench = Leasing(plane, folder / "credentials")
        for name, value in (options(plane, bench.credentials, folder) | more).items():
            patch.setenv(name, value)
        # these tests have no Airflow database
        patch.setattr(KubernetesExecutor, "_get_task_instance_state", lambda self, key, session: bench.states.get(key))
        bench.engine.start(EngineContext("job", None, None, dict, lambda: bench.workers, SIGNER))
        bench.engine.cluster.watch()
        try:
            yield bench
        finally:
            bench.engine.end()


def options(plane: ControlPlane, credentials: Path, folder: Path) -> dict[str, str]:
    """Environment variables of a scheduler outside the cluster. It gets its short-lived tokens from a program."""
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(credentials)]}
    config = plane.kubeconfig()
    config["users"][0]["user"] = {"exec": {**command, "interactiveMode": "Never"}}
    (folder / "kubeconfig").write_text(json.dumps(config))
    return {
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(folder / "kubeconfig"),
        "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": "airflow",
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(TEMPLATE),
        "AIRFLOW__KUBERNETES_EXECUTOR__WORKER_CONTAINER_REPOSITORY": "registry.example/hetero-airflow",
        "AIRFLOW__KUBERNETES_EXECUTOR__WORKER_CONTAINER_TAG": "1",
        "AIRFLOW__KUBERNETES_EXECUTOR__WORKER_PODS_CREATION_BATCH_SIZE": "16",
        "AIRFLOW__HETERO__KUBERNETES_PRIORITY_CLASSES": '{"urgent": "missing", "high": "gpu-high", "low": "gpu-low"}',
    }


def grant(plane: ControlPlane, credentials: Path) -> None:
    """Write what the program for credentials prints: a new token of the scheduler's account."""
    status = {"token": plane.token(ACCOUNT), "expirationTimestamp": "2020-01-01T00:00:00Z"}  # requested for each call
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    credentials.write_text(json.dumps(credential))


class Leasing:
    """An engine, and a store that records what the engine reports."""

    def __init__(self, plane: ControlPlane, credentials: Path) -> None:
        grant(plane, credentials)
        self.credentials = credentials
        self.api = client.CoreV1Api(plane.connect())
        self.engine = KubernetesEngine(32)
        self.workers: dict[str, Worker] = {}
        self.states: dict[Any, TaskInstanceState] = {}

    def learn(self) -> dict[str, Worker]:
        """Poll the engine for changes of nodes, and record them as a store does."""
        changes = self.engine.cluster.poll()
        for worker in changes.seen:
            self.workers[worker.id] = worker.model_copy(update={"state": WorkerState.ONLINE})
        for id_ in changes.lost:
            self.workers[id_] = self.workers[id_].model_copy(update={"state": WorkerState.LOST})
        return self.workers

    def knows(self, node: str = "gpu-1") -> Worker:
        """Wait until the devices of a node can be leased. Returns its worker."""

        def known_worker() -> Worker | None:
            worker = self.learn().get(node)
            return worker if worker and worker.state is WorkerState.ONLINE and worker.devices[-1].leasable else None

        return eventually(known_worker)

    def hand_over(self, node: str = "gpu-1", *, slots: int = 1, priority: str = "medium") -> tuple[Any, Lease]:
        """Hand over a device task on GPUs of a node. Returns its key and lease."""
        return self.hand_over_as(self.knows(node), slots, priority)

    def hand_over_as(self, worker: Worker, slots: int = 1, priority: str = "medium") -> tuple[Any, Lease]:
        """The same, with the node as it was when the plan was made."""
        request_id = str(uuid4())
        ti = {
            "id": request_id, "dag_version_id": str(uuid4()), "task_id": f"t{next(_NUMBERS)}", "dag_id": "d",
            "run_id": "r", "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "hetero", "priority_weight": 1,
        }  # fmt: skip
        workload_fields = {"ti": ti, "dag_rel_path": Path("d.py"), "token": "t", "log_path": None}
        workload = ExecuteTask.model_validate({**workload_fields, "bundle_info": {"name": "b", "version": None}})
        workload.ti.executor_config = {"hetero": pack_request([{"device": "gpu", "priority": priority}])}
        claims = tuple(Claim(f"nvidia.com/gpu/{slot}", 1000) for slot in range(slots))
        lease = a_lease(request_id, worker.id).model_copy(update={"claims": claims})
        self.engine.hand_over(workload, lease, worker)
        return workload.key, lease

    def pod(self, lease: Lease) -> client.V1Pod | None:
        """The pod of a lease, as it is in the cluster."""
        pods = self.api.list_namespaced_pod("airflow", label_selector=f"{LEASE_LABEL}={lease.id}").items
        assert len(pods) < 2
        return pods[0] if pods else None

    def bound(self, lease: Lease) -> str:
        """The name of a lease's pod, once the cluster's scheduler has placed it; it pauses after an outage."""

        def placed() -> str | None:
            self.engine.heartbeat()
            pod = self.pod(lease)
            return pod.metadata.name if pod is not None and pod.spec.node_name else None

        return eventually(placed)

    def status(self, lease: Lease) -> LeaseStatus:
        return self.engine.cluster.status(lease.id)

    def look(self, lease: Lease, state: str = "running") -> Liveness:
        """Whether a process of the lease runs, by the engine's answer."""
        return self.engine.liveness_of([LeasedProcess(lease, state, is_ours=True)])[lease.id]

    def end(self, key: Any) -> Any:
        """Wait for the end of a task. Returns its state and information."""

        def reported() -> Any:
            self.engine.heartbeat()
            event = self.engine.collect().get(key)
            return event if event and event[0] in ENDS else None

        return eventually(reported)
