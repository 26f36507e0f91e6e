"""The engine for Kubernetes: Airflow's KubernetesExecutor, with one pod on the chosen node for each task."""

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk.configuration import conf
from airflow.utils.state import TaskInstanceState
from kubernetes.client import ApiException  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.engine import (
    AirflowEngine,
    EngineContext,
    EngineTraits,
    LeasedProcess,
    LeaseStatus,
    Liveness,
    WorkerChanges,
)
from hetero_airflow.engines.kubernetes.adapter import ClusterAdapter
from hetero_airflow.engines.kubernetes.clients import ClusterAddress
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.engines.kubernetes.options import cluster_options
from hetero_airflow.engines.kubernetes.pods.pod_override import lease_override, lease_parts, requested_priority
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.nodes import ENGINE
from hetero_airflow.errors import shorten
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

FIRST_READ_TIMEOUT_S = 5.0
"""The scheduler's loop waits this long for the first reading of the clusters, then goes on without it."""

_KILL_GRACE_S = 1
"""At once, but the node confirms it. With 0 the API forgets a pod whose processes may still run."""

log = logging.getLogger(__name__)


class KubernetesEngine(AirflowEngine):
    """Runs each device task as a pod on the node of its lease. Workloads without a device run in the first cluster.

    The nodes of its clusters are workers without agents. No call about them but `watch` blocks.
    """

    traits = EngineTraits()
    executor: LeasingKubernetesExecutor

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        self._arguments = (parallelism, team_name)
        super().__init__(self._make_executor(ClusterAddress()))
        self.cluster = self
        self.adapters: Sequence[ClusterAdapter] = ()
        self._workers: Callable[[], Mapping[str, Worker]] = dict
        self._outages: dict[str, str] = {}

    def start(self, context: EngineContext) -> None:
        """Start one KubernetesExecutor for each cluster. The clusters are read when their `watch` is called.

        :raises SettingsError: an option can't be read
        """
        self._options = cluster_options(lambda section, name, default: conf.get(section, name, fallback=default))
        addresses = [ClusterAddress(site, conn_id) for site, conn_id in self._options.clusters.items()]
        token_s = conf.getfloat("scheduler", "task_queued_timeout")
        executors = [self._make_executor(address) for address in addresses or [ClusterAddress()]]
        self.executor = executors[0]
        for executor in executors:
            context.apply_to(executor)
            executor.signer = context.signer
            executor.start()
        self.adapters = [self._adapter_for(executor, token_s) for executor in executors]
        self._workers = context.workers

    def watch(self) -> None:
        """Start the threads of all clusters, and wait some seconds for their first readings."""
        end = time.monotonic() + FIRST_READ_TIMEOUT_S
        for adapter in self.adapters:
            adapter.start()
        for adapter in self.adapters:
            in_time = adapter.view.wait(max(0.0, end - time.monotonic()))
            if not in_time and adapter.view.problem is not None:
                log.warning("A cluster was not read within %g s: %s.", FIRST_READ_TIMEOUT_S, adapter.view.problem)

    def adapter_at(self, worker_id: str) -> ClusterAdapter | None:
        """The cluster of a node; None if no configured cluster has it."""
        return next((adapter for adapter in self.adapters if adapter.has_worker(worker_id)), None)

    def poll(self) -> WorkerChanges:
        """The changes to the nodes."""
        workers, now = self._workers(), time.monotonic()
        changes = [adapter.poll(workers, now) for adapter in self.adapters]
        return WorkerChanges(
            tuple(worker for change in changes for worker in change.seen),
            tuple(id_ for change in changes for id_ in change.alive),
            tuple(id_ for change in changes for id_ in change.lost),
        )

    def follow(self, key: Any, lease: Lease) -> None:
        """Follow the pod of a lease that another scheduler made, and no earlier or later pod of the same task."""
        adapter = self.adapter_at(lease.worker_id)
        if adapter is not None:
            adapter.follow(key, lease.id)

    def status(self, lease_id: str) -> LeaseStatus:
        """What the cluster of a lease reports about its pod."""
        for adapter in self.adapters:
            if (status := adapter.status(lease_id)) is not None:
                return status
        return LeaseStatus()

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a node; its pod is made at the next `heartbeat`."""
        adapter = self.adapter_at(worker.id)
        if adapter is None:
            self.executor.fail(workload.key, f"{worker.id} is in no cluster of [hetero] kubernetes_clusters")
            return
        adapter.note_handed_over(workload.key, lease.id)
        pod = adapter.pod(lease.id)
        if pod is not None and not pod.is_over:
            adapter.executor.adopt(workload.key, pod.namespace, pod.name)
            return
        try:
            config = self._config_with_pod(adapter, workload, lease, worker)
        except Exception as error:  # noqa: BLE001  Airflow and the client raise many types for an author's override
            adapter.executor.fail(workload.key, f"Its pod can't be made: {type(error).__name__}: {error}")
            return
        # a copy: if the task is placed again, its pod is made from the author's own override
        task_instance = workload.ti.model_copy(update={"executor_config": config})
        adapter.executor.queued_tasks[workload.key] = workload.model_copy(update={"ti": task_instance})

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that waited and needs no device; its pod is made at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task whose pod does not run yet, and end the pod. Returns whether that was possible."""
        for adapter in self.adapters:
            task = adapter.handed_over.get(key)
            if task is not None:
                return adapter.withdraw(key, task.lease_id)
        return self.executor.withdraw(key)

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call, without those whose pods have a termination cause.

        For those, `liveness_of` reports that the pod is gone.
        """
        events: dict[Any, tuple[Any, Any]] = {}
        for adapter in self.adapters:
            self._tolerate_outage(adapter, adapter.executor.sync)
            events |= _finished_events(adapter)
        return events

    def heartbeat(self) -> None:
        """Send the pods of the tasks that were handed over. A cluster that does not answer gets and fails none."""
        for adapter in self.adapters:
            self._tolerate_outage(adapter, adapter.executor.heartbeat)
            adapter.delete_marked_pods()

    def has_task(self, task_instance: Any) -> bool:
        """Whether KubernetesExecutor still has the task."""
        return any(adapter.executor.has_task(task_instance) for adapter in self.adapters)

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Watch the pods that another scheduler made. Returns the tasks that have none.

        If a cluster does not answer, no task is returned: Airflow would start it again beside its pod. Only this waits
        for an answer, since Airflow does.
        """
        running = {key for adapter in self.adapters for key in adapter.executor.running}
        task_instances = [ti for ti in task_instances if ti.key not in running]
        try:
            for adapter in self.adapters:
                if task_instances and adapter.problem is not None:
                    raise ConnectionError(adapter.problem)
                if task_instances:
                    task_instances = adapter.executor.try_adopt_task_instances(task_instances)
        except (ApiException, HTTPError, OSError) as error:
            text = shorten(str(error), 200)
            log.warning("Tasks of another scheduler are left as they are, since a cluster does not answer: %s", text)
            return []
        return task_instances

    @property
    def occupied_slots(self) -> int:
        """Workloads that KubernetesExecutor counts as its own, without device tasks."""
        return sum(int(adapter.executor.slots_occupied) - adapter.occupied_slots for adapter in self.adapters)

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker is a node of a configured cluster."""
        return worker.engine == ENGINE and self.adapter_at(worker.id) is not None

    def open_slots(self) -> int:
        """How many more pods KubernetesExecutor would make at once; 0 if no cluster answers."""
        reachable = [adapter for adapter in self.adapters if adapter.problem is None]
        return max(0, sum(int(adapter.executor.slots_available) for adapter in reachable))

    def liveness_of(self, processes: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, from the API's last report about its pod."""
        liveness = {}
        for process in processes:
            adapter = self.adapter_at(process.lease.worker_id)
            liveness[process.lease.id] = Liveness.UNKNOWN if adapter is None else adapter.liveness(process)
        return liveness

    def signal(self, process: LeasedProcess, number: int) -> None:
        """Delete the pod of a lease: with its own grace time for SIGTERM, at once for SIGKILL."""
        adapter = self.adapter_at(process.lease.worker_id)
        if adapter is not None and number in (signal.SIGTERM, signal.SIGKILL):
            adapter.delete(process.lease.id, _KILL_GRACE_S if number == signal.SIGKILL else None)

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave running pods to the next scheduler, as KubernetesExecutor does. Returns the tasks that had ended."""
        events: dict[Any, tuple[Any, Any]] = {}
        for adapter in self.adapters:
            self._tolerate_outage(adapter, adapter.executor.end)
            events |= _finished_events(adapter)
            adapter.stop()
        return events

    def terminate(self) -> None:
        """Stop without waiting."""
        for adapter in self.adapters:
            adapter.stop()
            adapter.executor.terminate()  # type: ignore[no-untyped-call]

    def _make_executor(self, address: ClusterAddress) -> LeasingKubernetesExecutor:
        executor = LeasingKubernetesExecutor(*self._arguments)
        executor.address = address
        return executor

    def _adapter_for(self, executor: LeasingKubernetesExecutor, token_s: float) -> ClusterAdapter:
        view = ClusterView(
            executor.address.site,
            executor.connect,
            executor.pod_namespace,
            self._options.resources,
            executor.signer,
            executor.outage,
        )
        return ClusterAdapter(view, executor, token_s)

    def _config_with_pod(
        self, adapter: ClusterAdapter, workload: ExecuteTask, lease: Lease, worker: Worker
    ) -> dict[str, Any]:
        """The task's ``executor_config`` with the ``pod_override`` that binds its pod to the lease."""
        config = dict(workload.ti.executor_config or {})
        authored = PodGenerator.from_obj(config)
        priority_class = self._options.priority_classes.get(requested_priority(config, workload.ti.map_index))
        override = lease_override(
            PodGenerator.serialize_pod(adapter.executor.base_pod(workload)),
            PodGenerator.serialize_pod(authored) if authored else None,
            lease_parts(lease, worker, adapter.view.node_uid(worker.host), priority_class),
            worker.host,
        )
        return config | {"pod_override": PodGenerator.deserialize_model_dict(override)}

    def _tolerate_outage(self, adapter: ClusterAdapter, step: Callable[[], object]) -> None:
        """Run a step. If a database does not answer, log one warning and keep the scheduler's loop."""
        name = adapter.view.site or "the cluster"
        try:
            step()
        except (OSError, SQLAlchemyError) as error:
            text = f"{type(error).__name__}: {shorten(str(error), 300)}"
            if text != self._outages.get(name):
                log.warning("KubernetesExecutor of %s: %s. Running tasks go on.", name, text)
            self._outages[name] = text
        else:
            self._outages.pop(name, None)


def _finished_events(adapter: ClusterAdapter) -> dict[Any, tuple[Any, Any]]:
    """The executor's events, with SUCCESS or FAILED for each device task.

    For a device task KubernetesExecutor reports the state of the task instance in the database, which may be queued
    again by then. A failure waits until our own watch shows the pod's end, because only that tells the cause.
    """
    events = adapter.take_early_ends() | dict(adapter.executor.get_event_buffer())
    for key, task in list(adapter.handed_over.items()):
        if key in adapter.executor.queued_tasks or key in adapter.executor.running:
            continue
        if key not in events:
            continue  # Airflow no longer wanted the task, or another scheduler made its pod
        state, info = events.pop(key)
        pod = adapter.pod(task.lease_id)
        if state != TaskInstanceState.FAILED:
            events[key] = (TaskInstanceState.SUCCESS, None)
            adapter.end_lease(task.lease_id)
        elif not adapter.view.is_synced or (pod is not None and not pod.is_over and not pod.is_waiting):
            adapter.early_ends[key] = (state, info)
        elif pod is not None and pod.termination_cause is not None:
            log.warning("%s was lost: %s. The recovery rules decide what follows.", key, pod)
        else:
            events[key] = (state, str(info or pod or "its pod failed"))
            adapter.handed_over.pop(key)
    return events
