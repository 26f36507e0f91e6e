"""A cluster as its API shows it: nodes as workers, the pods of our leases, and the pods of others."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.client import CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.engine import WorkerChanges
from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL, sealed_lease
from hetero_airflow.engines.kubernetes.selectors.node_conditions import REGISTER
from hetero_airflow.engines.kubernetes.slices.dra_view import DraView
from hetero_airflow.engines.kubernetes.watch.informer import Informer, model_of
from hetero_airflow.engines.kubernetes.watch.leased_pods import DeletedPods, LeasedPod, read_pod
from hetero_airflow.engines.kubernetes.watch.node_usage import (
    ForeignPod,
    NodeUsage,
    node_usages,
    read_foreign_pod,
    without_usage,
)
from hetero_airflow.engines.kubernetes.watch.nodes import with_slice_devices, worker_of
from hetero_airflow.errors import shorten
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.memory import with_host_memory
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.worker import Worker, WorkerState

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 5.0
"""How often an unchanged node is reported as alive."""

NODE_GRACE_S = 50.0
"""After an outage, nodes that do not seem ready get this time: their reports did not reach the cluster either.

It is Kubernetes' default time without reports (``--node-monitor-grace-period``).
"""

_AWAY_AFTER_S = 5.0
"""A cluster that does not answer for this long offers no devices until it is back."""

_AWAY = "its cluster does not answer"

_MIN_READ_INTERVAL_S = 1.0
"""The nodes are read at most this often, however much changes in the cluster."""

_ReadNode = tuple[Mapping[str, Any], NodeUsage, tuple[Device, ...], Worker | None]
"""What a worker was last made from, and the worker; None if the node can't be read."""


class ClusterView:
    """One cluster. Its threads only watch; the scheduler's loop calls the methods, which never send a request.

    :param site: name of the cluster among several; None for the only one
    :param connect: makes a client
    :param namespace: of the pods that KubernetesExecutor makes; None for any
    :param resources: device part of a request → extended resource, in addition to the built-in rows
    :param signer: knows the pods that this Airflow has made for leases; all others are foreign
    :param outage: of the cluster
    """

    def __init__(
        self,
        site: str | None,
        connect: Callable[[], CoreV1Api],
        namespace: str | None,
        resources: Mapping[str, str],
        signer: GrantSigner,
        outage: Outage | None = None,
    ) -> None:
        self.site = site
        self.deleted = DeletedPods()
        self._resources = resources
        self._namespace, self._signer = namespace, signer
        cluster = f"the cluster {site}" if site else "the cluster"
        where, outage = f"of {cluster}", outage or Outage(cluster)
        self._nodes: Informer[Mapping[str, Any]] = Informer(
            f"nodes {where}", connect, lambda api: api.list_node, _read_node, outage=outage
        )
        self._pods = Informer[LeasedPod](
            f"pods of leases {where}",
            connect,
            lambda api: api.list_namespaced_pod if namespace else api.list_pod_for_all_namespaces,
            lambda item, before: read_pod(item, signer),
            query={"label_selector": LEASE_LABEL} | ({"namespace": namespace} if namespace else {}),
            on_delete=self.deleted.add,
            outage=outage,
        )
        self._foreign_pods = Informer[ForeignPod](
            f"other pods {where}",
            connect,
            lambda api: api.list_pod_for_all_namespaces,
            lambda item, before: None if self._is_leased(item) else read_foreign_pod(item, before),
            query={"field_selector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
            outage=outage,
        )
        self._informers = (self._nodes, self._pods, self._foreign_pods)
        self._dra = DraView(where, connect, outage)
        self._read: dict[str, _ReadNode] = {}
        self._reported: dict[str, Worker] = {}
        """Worker id → worker, as last reported to the store."""
        self._by_lease: tuple[int, dict[str, LeasedPod]] = (-1, {})
        self._seen_changes: tuple[int, ...] = ()
        self._read_at, self._alive_at = float("-inf"), float("-inf")
        self._unready: set[str] = set()
        """Ids of workers that are not ready and whose grace time after an outage is not over."""
        self._outages, self._grace_until = 0, float("-inf")
        self._is_away, self._problem_since = False, float("inf")

    def start(self) -> None:
        """Begin to watch; returns at once."""
        for informer in self._informers:
            informer.start()
        self._dra.start()

    def stop(self) -> None:
        """Stop watching."""
        for informer in self._informers:
            informer.stop()
        self._dra.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything was read once. Returns whether that was in time."""
        end = time.monotonic() + timeout_s
        is_in_time = all(informer.wait(max(0.0, end - time.monotonic())) for informer in self._informers)
        return self._dra.wait(max(0.0, end - time.monotonic())) and is_in_time

    @property
    def is_synced(self) -> bool:
        """Whether the known pods are up to date."""
        return self._pods.is_listed and self._pods.problem is None

    @property
    def problem(self) -> str | None:
        """Why nothing can start in the cluster now; None if tasks can start."""
        for informer in (self._pods, self._nodes):
            if informer.problem is not None:
                return f"the {informer.name} can't be watched: {informer.problem}"
        return None if self._pods.is_listed and self._nodes.is_listed else "it was not read yet"

    def worker_id(self, node: str) -> str:
        """The id of the worker that a node is."""
        return node if self.site is None else f"{self.site}/{node}"

    def node_uid(self, node: str) -> str:
        """The cluster's id of a node, which another node of the same name does not have; empty if it has none."""
        return str(self._read[node][0]["metadata"]["uid"]) if node in self._read else ""

    def is_lost(self, worker_id: str) -> bool:
        """Whether the cluster reports that a node is gone or does not answer. False if the cluster does not answer."""
        worker = self._reported.get(worker_id)
        is_known = self.problem is None and self._read_at > float("-inf")
        return is_known and (worker is None or worker.state is WorkerState.LOST)

    def pods(self) -> Mapping[str, LeasedPod]:
        """Lease id → its pod. If a lease has several, the one that is not over."""
        changes = self._pods.changes
        if changes != self._by_lease[0]:
            pods = sorted(self._pods.values(), key=lambda pod: not pod.is_over)
            self._by_lease = (changes, {pod.lease_id: pod for pod in pods})
        return self._by_lease[1]

    def find_pods(self, api: CoreV1Api, lease_id: str) -> list[Any]:
        """Ask the cluster for the pods of a lease. Sends a request."""
        query = {"label_selector": f"{LEASE_LABEL}={lease_id}"}
        found = (
            api.list_pod_for_all_namespaces(**query)
            if self._namespace is None
            else api.list_namespaced_pod(self._namespace, **query)
        )
        return [pod for pod in found.items if sealed_lease(pod.metadata.to_dict(), self._signer) == lease_id]

    def poll(self, stored: Mapping[str, Worker], now_s: float, problem: str | None = None) -> WorkerChanges:
        """The changes to the nodes. A cluster that does not answer keeps the nodes that it had, and offers none.

        :param stored: worker id → worker, as the store has them
        :param now_s: time of a clock that never goes back
        :param problem: why the cluster gives no answers, if `problem` can't know
        """
        if not (self._nodes.is_listed and self._pods.is_listed):
            return WorkerChanges()
        changed: list[Worker] = []
        deleted: list[str] = []
        was_away, grace_is_over = self._is_away, bool(self._unready) and now_s >= self._grace_until
        is_in_outage = self.problem is not None  # before the outages are read: it ends after they are counted
        self._note_outages(problem or self.problem, now_s)
        changes = (*(informer.changes for informer in self._informers), *self._dra.changes)
        is_due = changes != self._seen_changes and now_s - self._read_at >= _MIN_READ_INTERVAL_S
        if is_due or grace_is_over or was_away != self._is_away:
            self._seen_changes, self._read_at = changes, now_s
            changed, deleted = self._read_nodes(in_grace=is_in_outage or now_s < self._grace_until)
        alive: list[str] = []
        if now_s - self._alive_at >= HEARTBEAT_INTERVAL_S:
            self._alive_at = now_s
            for id_, worker in self._reported.items():
                state = stored[id_].state if id_ in stored else None
                if worker.state is WorkerState.ONLINE and state is WorkerState.ONLINE:
                    alive.append(id_)
                elif state is not worker.state and self.problem is None and worker not in changed:
                    changed.append(worker)  # the store has another state, or its answer was lost
        lost = [worker.id for worker in changed if worker.state is WorkerState.LOST]
        return WorkerChanges(tuple(changed), tuple(alive), (*lost, *deleted))

    def _note_outages(self, problem: str | None, now_s: float) -> None:
        outages = self._nodes.outages + self._pods.outages
        if self._outages != outages:
            self._outages, self._grace_until = outages, now_s + NODE_GRACE_S
        self._problem_since = float("inf") if problem is None else min(self._problem_since, now_s)
        self._is_away = now_s - self._problem_since >= _AWAY_AFTER_S

    def _read_nodes(self, *, in_grace: bool) -> tuple[list[Worker], list[str]]:
        """The workers that are new or changed, and the ids of deleted ones."""
        self._unready = set()
        usages = node_usages(self._foreign_pods.values(), self._pods.values())
        slice_devices = self._dra.devices_by_node(self._pods.values())
        read: dict[str, _ReadNode] = {}
        workers: dict[str, Worker] = {}
        for node in self._nodes.values():
            name, usage = node["metadata"]["name"], usages.get(node["metadata"]["name"], NodeUsage())
            read_node, devices = self._read.get(name), slice_devices.get(name, ())
            if read_node is None or read_node[0] is not node or read_node[1] != usage or read_node[2] != devices:
                read_node = (node, usage, devices, self._worker(node, usage, devices))
            read[name] = read_node
            if read_node[3] is not None:
                workers[read_node[3].id] = self._as_reported(read_node[3], in_grace=in_grace)
        changed = [
            worker
            for id_, worker in workers.items()
            if worker is not self._reported.get(id_) and worker != self._reported.get(id_)
        ]
        deleted = [id_ for id_ in self._reported if id_ not in workers]
        self._read, self._reported = read, workers
        return changed, deleted

    def _as_reported(self, worker: Worker, *, in_grace: bool) -> Worker:
        """The worker, kept by its grace time, and without devices to offer if its cluster is away."""
        before = self._reported.get(worker.id)
        if in_grace and worker.state is WorkerState.LOST and before and before.state is WorkerState.ONLINE:
            self._unready.add(worker.id)
            worker = worker.model_copy(update={"state": WorkerState.ONLINE})  # not ready: its devices are not offered
        if not self._is_away:
            return worker
        devices = [device.model_copy(update={"leasable": False, "problem": _AWAY}) for device in worker.devices]
        return worker.model_copy(update={"devices": tuple(devices), "problems": (_AWAY,)})

    def claim_notes(self, lease_id: str) -> list[str]:
        """What the claims of a lease's pod have, and what is wrong with them."""
        pod = self.pods().get(lease_id)
        if pod is None:
            return []
        allocations = self._dra.allocations(pod.uid)
        problems = [*(allocation.problem for allocation in allocations), self._dra.claims_problem(pod)]
        return [", ".join(allocation.devices) for allocation in allocations] + [text for text in problems if text]

    def _worker(self, node: Mapping[str, Any], usage: NodeUsage, devices: tuple[Device, ...]) -> Worker | None:
        try:
            worker = with_slice_devices(worker_of(model_of(node, "V1Node"), self.site, self._resources), devices)
            worker = worker.model_copy(update={"devices": with_host_memory(worker.devices)})
            return without_usage(worker, usage)
        except Exception as error:  # noqa: BLE001  one odd node must not stop the scheduler's loop
            log.warning("Node %s can't be read: %s", shorten(node["metadata"]["name"]), shorten(str(error), 300))
            return None

    def _is_leased(self, item: Mapping[str, Any]) -> bool:
        metadata = item["metadata"]
        return self._namespace in (None, metadata["namespace"]) and sealed_lease(metadata, self._signer) is not None


def _read_node(item: Mapping[str, Any], before: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The parts of a node that make its worker. Returns the same object again if they have not changed."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    names = ("type", "status", "reason", "message")
    node = {
        "metadata": {
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "labels": metadata.get("labels") or {},
            "annotations": {name: "" for name in metadata.get("annotations") or () if REGISTER.search(name)},
        },
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {
            **{name: status[name] for name in ("allocatable", "capacity") if name in status},
            "conditions": [{name: c[name] for name in names if name in c} for c in status.get("conditions") or ()],
        },
    }
    return before if before == node else node
