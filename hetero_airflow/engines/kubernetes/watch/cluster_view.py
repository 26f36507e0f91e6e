"""A cluster as its API shows it: its nodes as workers, the pods of our leases, and what else runs there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiClient, CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.engine import WorkerChanges
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.engines.kubernetes.watch.informer import Informer
from hetero_airflow.engines.kubernetes.watch.leased_pods import DeletedPods, LeasedPod, read_pod
from hetero_airflow.engines.kubernetes.watch.node_usage import (
    ForeignPod,
    NodeUsage,
    node_usages,
    read_foreign_pod,
    without_usage,
)
from hetero_airflow.engines.kubernetes.watch.nodes import worker_of
from hetero_airflow.errors import shorten
from hetero_airflow.model.worker import Worker, WorkerState

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 5.0
"""How often a node that is as it was is said to be there."""

_MIN_READ_INTERVAL_S = 1.0
"""Nodes are read at most so often, however much happens in the cluster."""


class ClusterView:
    """One cluster. Its threads only watch; `poll` and all others are for the scheduler's loop, and ask nothing.

    :param site: the name of the cluster among several; None for the only one
    :param connect: makes a client
    :param namespace: of the pods that KubernetesExecutor makes; None for any
    :param resources: what a request says of its device → extended resource, beside those that are known
    """

    def __init__(
        self,
        site: str | None,
        connect: Callable[[], CoreV1Api],
        namespace: str | None,
        resources: Mapping[str, str],
    ) -> None:
        self.site = site
        self._resources = resources
        where = f"of the cluster {site}" if site else "of the cluster"
        self.gone = DeletedPods()
        self._nodes: Informer[Mapping[str, Any]] = Informer(
            f"nodes {where}", connect, lambda api: api.list_node, _read_node
        )
        self._pods = Informer[LeasedPod](
            f"pods of leases {where}",
            connect,
            _pods_of(namespace),
            read_pod,
            query={"label_selector": LEASE_LABEL} | ({"namespace": namespace} if namespace else {}),
            gone=self.gone.add,
        )
        self._foreign_pods = Informer[ForeignPod](
            f"other pods {where}",
            connect,
            lambda api: api.list_pod_for_all_namespaces,
            lambda item, before: None if _is_leased(item, namespace) else read_foreign_pod(item, before),
            query={"field_selector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
        )
        self._read: dict[str, tuple[Mapping[str, Any], NodeUsage, Worker | None]] = {}
        """Node → what its worker was last made of, and the worker; None where it can't be read."""
        self._told: dict[str, Worker] = {}
        """Worker id → worker, as the store was last told."""
        self._by_lease: tuple[int, dict[str, LeasedPod]] = (-1, {})
        self._seen_changes, self._read_at, self._alive_at = (-1, -1, -1), float("-inf"), float("-inf")

    def start(self) -> None:
        """Begin to watch; returns at once."""
        for mirror in (self._nodes, self._pods, self._foreign_pods):
            mirror.start()

    def stop(self) -> None:
        """Stop watching."""
        for mirror in (self._nodes, self._pods, self._foreign_pods):
            mirror.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all has been read once; whether it was in time."""
        end = time.monotonic() + timeout_s
        return all(one.wait(max(0.0, end - time.monotonic())) for one in (self._nodes, self._pods, self._foreign_pods))

    @property
    def is_synced(self) -> bool:
        """Whether what is known of pods is up to date."""
        return self._pods.is_listed and self._pods.problem is None

    @property
    def problem(self) -> str | None:
        """Why nothing can be started there at the moment; None where it can."""
        for mirror in (self._pods, self._nodes):
            if mirror.problem is not None:
                return f"the {mirror.name} can't be watched: {mirror.problem}"
        return None if self._pods.is_listed and self._nodes.is_listed else "it was not read yet"

    def is_lost(self, worker_id: str) -> bool:
        """Whether the cluster says that a node is gone or does not answer; not while the cluster itself does not."""
        worker = self._told.get(worker_id)
        is_known = self.problem is None and self._read_at > float("-inf")
        return is_known and (worker is None or worker.state is WorkerState.LOST)

    def pods(self) -> Mapping[str, LeasedPod]:
        """Lease id → its pod, of those that are there; one that is not over, where there are several."""
        changes = self._pods.changes
        if changes != self._by_lease[0]:
            found = sorted(self._pods.values(), key=lambda pod: not pod.is_over)
            self._by_lease = (changes, {pod.lease_id: pod for pod in found})
        return self._by_lease[1]

    def poll(self, known: Mapping[str, Worker], now_s: float) -> WorkerChanges:
        """What is new of the nodes. A cluster that does not answer keeps those that it had.

        :param known: worker id → worker, as the store has them
        :param now_s: of a clock that never goes back
        """
        if not (self._nodes.is_listed and self._pods.is_listed):
            return WorkerChanges()
        changed: list[Worker] = []
        deleted: list[str] = []
        changes = (self._nodes.changes, self._pods.changes, self._foreign_pods.changes)
        if changes != self._seen_changes and now_s - self._read_at >= _MIN_READ_INTERVAL_S:
            self._seen_changes, self._read_at = changes, now_s
            changed, deleted = self._read_nodes()
        alive: list[str] = []
        if now_s - self._alive_at >= HEARTBEAT_INTERVAL_S:
            self._alive_at = now_s
            for id_, worker in self._told.items():
                state = known[id_].state if id_ in known else None
                if worker.state is WorkerState.ONLINE and state is WorkerState.ONLINE:
                    alive.append(id_)
                elif state is not worker.state and self.problem is None and worker not in changed:
                    changed.append(worker)  # the store was told otherwise, or its answer was lost
        lost = [worker.id for worker in changed if worker.state is WorkerState.LOST]
        return WorkerChanges(tuple(changed), tuple(alive), (*lost, *deleted))

    def _read_nodes(self) -> tuple[list[Worker], list[str]]:
        """The workers that are new or have changed, and the ids of those that are gone."""
        uses = node_usages(self._foreign_pods.values(), self._pods.values())
        read: dict[str, tuple[Mapping[str, Any], NodeUsage, Worker | None]] = {}
        told: dict[str, Worker] = {}
        for node in self._nodes.values():
            name, use = node["metadata"]["name"], uses.get(node["metadata"]["name"], NodeUsage())
            known = self._read.get(name)
            if known is None or known[0] is not node or known[1] != use:
                known = (node, use, self._worker(node, use))
            read[name] = known
            if known[2] is not None:
                told[known[2].id] = known[2]
        changed = [worker for id_, worker in told.items() if worker != self._told.get(id_)]
        deleted = [id_ for id_ in self._told if id_ not in told]
        self._read, self._told = read, told
        return changed, deleted

    def _worker(self, node: Mapping[str, Any], use: NodeUsage) -> Worker | None:
        try:
            model = _API.deserialize(SimpleNamespace(data=json.dumps(node)), "V1Node")
            return without_usage(worker_of(model, self.site, self._resources), use)
        except Exception as error:  # noqa: BLE001  one odd node must not stop the scheduler's loop
            log.warning("Node %s can't be read: %s", shorten(node["metadata"]["name"]), shorten(str(error), 300))
            return None


_API = ApiClient()


def _pods_of(namespace: str | None) -> Callable[[CoreV1Api], Callable[..., Any]]:
    return lambda api: api.list_namespaced_pod if namespace else api.list_pod_for_all_namespaces


def _is_leased(item: Mapping[str, Any], namespace: str | None) -> bool:
    metadata = item["metadata"]
    return LEASE_LABEL in (metadata.get("labels") or {}) and namespace in (None, metadata["namespace"])


def _read_node(item: Mapping[str, Any], before: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What of a node makes its worker; the same object again where nothing of that has changed."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    told = ("type", "status", "reason", "message")
    node = {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {
            **{name: status[name] for name in ("allocatable", "capacity") if name in status},
            "conditions": [{key: one[key] for key in told if key in one} for one in status.get("conditions") or ()],
        },
    }
    return before if before == node else node
