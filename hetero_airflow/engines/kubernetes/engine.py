"""The engine for Kubernetes: Airflow's KubernetesExecutor, wrapped, with a pod on the decided node for each task."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk.configuration import conf
from airflow.utils.state import TaskInstanceState
from kubernetes.client import ApiException  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.engine import (
    EngineContext,
    EngineTraits,
    LeasedProcess,
    Liveness,
    TerminationCause,
    WorkerChanges,
)
from hetero_airflow.engines.kubernetes.adapter import ClusterAdapter
from hetero_airflow.engines.kubernetes.clients import ClusterAddress
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.engines.kubernetes.options import cluster_options
from hetero_airflow.engines.kubernetes.pods.pod_deleter import PodDeleter
from hetero_airflow.engines.kubernetes.pods.pod_override import lease_override, lease_parts, requested_priority
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.engines.kubernetes.watch.nodes import ENGINE
from hetero_airflow.errors import shorten
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Reason
from hetero_airflow.model.worker import Worker

FIRST_READ_TIMEOUT_S = 15.0
"""What the first reading of the clusters gets before the scheduler goes on without it."""

_KILL_GRACE_S = 1
"""At once, but confirmed by the node: with 0 the API forgets a pod whose processes may still run."""

log = logging.getLogger(__name__)


class KubernetesEngine:
    """Runs what it is given as pods, each on the node of its lease; what asks for no device, in the first cluster."""

    traits = EngineTraits(is_cluster=True)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        self._arguments = (parallelism, team_name)
        self.executor = self._make(ClusterAddress())
        self._adapters: list[ClusterAdapter] = []
        self._outages: dict[str, str] = {}

    def start(self, surroundings: EngineContext) -> None:
        """Start KubernetesExecutor, once for each cluster, and read the clusters.

        :raises SettingsError: an option that can't be read
        """
        self._surroundings = surroundings
        self._options = cluster_options(lambda section, name, default: conf.get(section, name, fallback=default))
        addresses = [ClusterAddress(site, conn_id) for site, conn_id in self._options.clusters.items()]
        token_s = conf.getfloat("scheduler", "task_queued_timeout")
        executors = [self._make(address) for address in addresses or [ClusterAddress()]]
        self.executor = executors[0]
        for executor in executors:  # all that fork come before all that begin threads
            surroundings.apply_to(executor)
            executor.start()
        for executor in executors:
            address = executor.address
            cluster = ClusterView(address.site, address.connect, executor.pod_namespace, self._options.resources)
            self._adapters.append(ClusterAdapter(cluster, PodDeleter(address.connect), executor, token_s))
        end = time.monotonic() + FIRST_READ_TIMEOUT_S
        for site in self._adapters:
            site.start()
        for site in self._adapters:
            in_time = site.cluster.wait(max(0.0, end - time.monotonic()))
            if not in_time and site.cluster.problem is not None:
                log.warning("A cluster was not read within %g s: %s.", FIRST_READ_TIMEOUT_S, site.cluster.problem)

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device, exactly as KubernetesExecutor alone would."""
        self.executor.queue_workload(workload, session)

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a node; its pod is made at the next `heartbeat`."""
        site = self._adapter_at(worker.id)
        if site is None:
            self.executor.fail(workload.key, f"{worker.id} is in no cluster of [hetero] kubernetes_clusters")
            return
        site.note_handed_over(workload.key, lease.id)
        pod = site.pod(lease.id)
        if pod is not None and not pod.is_over:
            self._adopt(site, workload.key, pod.namespace, pod.name)
            return
        config = dict(workload.ti.executor_config or {})
        try:
            own = PodGenerator.from_obj(config)
            classes = self._options.priority_classes
            made = lease_override(
                PodGenerator.serialize_pod(site.executor.base_pod(workload)),
                PodGenerator.serialize_pod(own) if own else None,
                lease_parts(lease, worker, classes.get(requested_priority(config, workload.ti.map_index))),
                worker.host,
            )
            config["pod_override"] = PodGenerator.deserialize_model_dict(made)
        except Exception as error:  # noqa: BLE001  whatever Airflow and the client raise for an author's override
            site.executor.fail(workload.key, f"Its pod can't be made: {type(error).__name__}: {error}")
            return
        # a copy: where the task is placed anew, its pod is made from what its author wrote
        bound = workload.ti.model_copy(update={"executor_config": config})
        site.executor.queued_tasks[workload.key] = workload.model_copy(update={"ti": bound})

    def follow(self, key: Any, lease: Lease) -> None:
        """Tell the pod of a lease that another scheduler made from those of the same task before and after it."""
        site = self._adapter_at(lease.worker_id)
        if site is not None:
            site.note_handed_over(key, lease.id)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that was held and needs no device; its pod is made at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task whose pod does not run yet, and let the pod end; whether that could be done."""
        for site in self._adapters:
            handed = site.handed.get(key)
            if handed is None:
                continue
            return site.withdraw(key, handed.lease_id)
        return self.executor.queued_tasks.pop(key, None) is not None

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call. A pod of which a `loss` is known has not: `look` finds it gone."""
        events: dict[Any, tuple[Any, Any]] = {}
        for site in self._adapters:
            if site.cluster.is_synced:
                self._tolerate_outage(site, site.executor.sync)
            events |= _finished_events(site)
        return events

    def heartbeat(self) -> None:
        """Make the pods of what was taken. A cluster that does not answer gets none, and fails none."""
        for site in self._adapters:
            if site.cluster.is_synced:
                self._tolerate_outage(site, site.executor.heartbeat)
                site.sweep()

    def has_task(self, task_instance: Any) -> bool:
        """Whether KubernetesExecutor still has the task."""
        return any(site.executor.has_task(task_instance) for site in self._adapters)

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Watch the pods that another scheduler made; tasks that have none are returned."""
        for site in self._adapters:
            if task_instances:
                task_instances = site.executor.try_adopt_task_instances(task_instances)
        return task_instances

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self.executor.fail_connection_test(key)

    @property
    def occupied_slots(self) -> int:
        """Workloads that KubernetesExecutor counts as its own, without device tasks."""
        return sum(int(site.executor.slots_occupied) - site.occupied_slots for site in self._adapters)

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker is a node of a configured cluster."""
        return worker.engine == ENGINE and self._adapter_at(worker.id) is not None

    def open_slots(self) -> int:
        """How many more pods KubernetesExecutor would make at once; none while no cluster answers."""
        return max(
            0, sum(int(site.executor.slots_available) for site in self._adapters if site.cluster.problem is None)
        )

    def look(self, uses: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, by what the API said of its pod."""
        found = {}
        for use in uses:
            site = self._adapter_at(use.lease.worker_id)
            found[use.lease.id] = Liveness.UNKNOWN if site is None else site.liveness(use)
        return found

    def signal(self, use: LeasedProcess, number: int) -> None:
        """Delete the pod of a lease: with its own grace time, or at once."""
        site = self._adapter_at(use.lease.worker_id)
        if site is not None and number in (signal.SIGTERM, signal.SIGKILL):
            site.delete(use.lease.id, _KILL_GRACE_S if number == signal.SIGKILL else None)

    def poll(self) -> WorkerChanges:
        """What is new of the nodes."""
        known, now = self._surroundings.workers(), time.monotonic()
        news = [site.cluster.poll(known, now) for site in self._adapters]
        return WorkerChanges(
            tuple(worker for one in news for worker in one.seen),
            tuple(id_ for one in news for id_ in one.alive),
            tuple(id_ for one in news for id_ in one.lost),
        )

    def wait_reason(self, lease_id: str) -> Reason | None:
        """Why the pod of a lease does not run yet, in our terms and the cluster's words."""
        pod = self._pod(lease_id)
        return None if pod is None or pod.is_over else pod.state.reason(f"a container in {pod.namespace}/{pod.name}")

    def task_log(self, task_instance: Any, try_number: int) -> tuple[list[str], list[str]]:
        """What the pod of a task has written so far, of the cluster of ``[kubernetes_executor]``."""
        return self.executor.get_task_log(task_instance, try_number)

    def loss(self, lease_id: str) -> TerminationCause | None:
        """What ended the pod of a lease, if it was evicted, preempted, refused, deleted, or killed for its memory."""
        return next((loss for site in self._adapters if (loss := site.loss(lease_id)) is not None), None)

    def words(self, lease_id: str) -> str | None:
        """How the pod of a lease stands, in the words of the cluster."""
        return next((words for site in self._adapters if (words := site.words(lease_id)) is not None), None)

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave what runs to the next scheduler, as KubernetesExecutor does; what had ended."""
        events: dict[Any, tuple[Any, Any]] = {}
        for site in self._adapters:
            site.stop()
            self._tolerate_outage(site, site.executor.end)
            events |= _finished_events(site)
        return events

    def terminate(self) -> None:
        """Stop without waiting."""
        for site in self._adapters:
            site.stop()
            site.executor.terminate()  # type: ignore[no-untyped-call]

    def _make(self, address: ClusterAddress) -> LeasingKubernetesExecutor:
        executor = LeasingKubernetesExecutor(*self._arguments)  # type: ignore[no-untyped-call]
        executor.address = address
        return executor

    def _adapter_at(self, worker_id: str) -> ClusterAdapter | None:
        return next((site for site in self._adapters if site.has(worker_id)), None)

    def _pod(self, lease_id: str) -> LeasedPod | None:
        return next((pod for site in self._adapters if (pod := site.pod(lease_id)) is not None), None)

    def _adopt(self, site: ClusterAdapter, key: Any, namespace: str, name: str) -> None:
        try:
            site.executor.adopt(key, namespace, name)
        except (ApiException, HTTPError) as error:  # its end is seen all the same, if not at once
            log.warning("Pod %s/%s can't be marked as this scheduler's: %s", namespace, name, shorten(str(error), 200))

    def _tolerate_outage(self, site: ClusterAdapter, step: Callable[[], object]) -> None:
        """A cluster or a database that does not answer costs one warning, not the scheduler's loop."""
        name = site.cluster.site or "the cluster"
        try:
            step()
        except (ApiException, HTTPError, OSError, SQLAlchemyError) as error:
            text = f"{type(error).__name__}: {shorten(str(error), 300)}"
            if text != self._outages.get(name):
                log.warning("KubernetesExecutor of %s: %s. What runs runs on.", name, text)
            self._outages[name] = text
        else:
            self._outages.pop(name, None)


def _finished_events(site: ClusterAdapter) -> dict[Any, tuple[Any, Any]]:
    """What the executor reports, in the words that are expected of one that runs device tasks.

    Of those it says how their task instances stand in the database, which may be queued anew by then.
    """
    events = dict(site.executor.get_event_buffer())
    for key, handed in list(site.handed.items()):
        if key in site.executor.queued_tasks or key in site.executor.running:
            continue
        if key not in events:
            continue  # no pod was made, since Airflow wanted it no more, or one is that another scheduler made
        state, info = events.pop(key)
        if state != TaskInstanceState.FAILED:
            events[key] = (TaskInstanceState.SUCCESS, None)
            site.end_lease(handed.lease_id)
        elif site.loss(handed.lease_id) is not None:
            log.warning("%s was lost: %s. The recovery rules say what follows.", key, site.pod(handed.lease_id))
        else:
            events[key] = (state, str(info or site.pod(handed.lease_id) or "its pod failed"))
            site.handed.pop(key)
    return events
