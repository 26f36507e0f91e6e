"""Airflow's KubernetesExecutor, extended for pods of leases: it tolerates a cluster that does not answer for a while.

Only this module and `engine` know KubernetesExecutor's internals: its queues, keys and publishing.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_types import ADOPTED
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_utils import (
    AirflowKubernetesScheduler,
    KubernetesJobWatcher,
    get_base_pod_from_template,
)
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import TRANSIENT_CONNECTION_ERRORS
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.utils.state import TaskInstanceState
from kubernetes.client import ApiException, CoreV1Api  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError, ReadTimeoutError

from hetero_airflow.engines.kubernetes.clients import (
    CALL_LIMIT_S,
    ClusterAddress,
    OneTryClient,
    client_from_connection,
)
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.engines.silence import Silence

_RETRY_DELAY = timedelta(seconds=5)
"""Wait between two attempts to make pods while the cluster does not answer."""

_TRANSIENT_STATUSES = frozenset({401, 408, 429, 500, 502, 503, 504})
"""HTTP statuses that do not concern the pod itself and pass: credentials are renewed, servers come back."""


class LeasingKubernetesExecutor(KubernetesExecutor):
    """Makes one pod for each lease, and only while the lease is current."""

    is_current: Callable[[str], bool]
    """Whether a lease was handed over, was not withdrawn, and has no pod yet."""

    is_of_earlier_lease: Callable[[Any, str, str], bool]
    """Whether a pod, given by task key, namespace and name, belongs to an earlier lease of the task."""

    address = ClusterAddress()
    """The address of its cluster."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.silence = Silence("A cluster", "Tasks wait, and running ones go on.")
        self._unhandled: list[Any] = []
        """Ends of pods that the cluster did not let us handle."""

    @property
    def pod_namespace(self) -> str | None:
        """The namespace of its pods; None for any."""
        return None if self.kube_config.multi_namespace_mode else str(self.kube_config.kube_namespace)

    def start(self) -> None:
        """Start KubernetesExecutor's processes, with its own client or with the connection's."""
        if self.address.conn_id is None:
            super().start()
        else:
            self._start_with_connection()
        assert self.kube_client is not None
        self.use_client(self.kube_client)

    def use_client(self, client: CoreV1Api) -> None:
        """Call the cluster of this client from now on, each time once and with a time limit."""
        assert self.kube_scheduler is not None
        self.kube_client = CoreV1Api(OneTryClient(client.api_client.configuration, self.silence))
        self.kube_scheduler.kube_client = self.kube_client

    def _start_with_connection(self) -> None:
        connection = self.address.read()
        self.kube_config.kube_namespace = connection.get("namespace") or self.kube_config.kube_namespace
        self._manager = multiprocessing.Manager()
        self.task_queue, self.result_queue = self._manager.JoinableQueue(), self._manager.JoinableQueue()
        self.scheduler_job_id = str(self.job_id)
        self.kube_client = client_from_connection(connection)
        self.kube_scheduler = ConnectionPodScheduler(
            self.address,
            kube_config=self.kube_config,
            result_queue=self.result_queue,
            kube_client=self.kube_client,
            scheduler_job_id=self.scheduler_job_id,
            team_name=self.team_name,
            supports_task_instance_uuid=self.supports_task_instance_uuid,
        )

    def base_pod(self, workload: Any) -> Any:
        """The ``V1Pod`` that a task's pod is made from: the template with the author's override."""
        config = workload.ti.executor_config or {}
        extra = self._coordinator_extra(workload.ti.queue) or {}
        template = self._coordinator_pod_template_file(extra) or config.get("pod_template_file")
        base = get_base_pod_from_template(template, self.kube_config)
        return PodGenerator.reconcile_pods(base, PodGenerator.from_obj(config))

    def execute_async(
        self, key: Any, command: Any, queue: str | None = None, executor_config: Any | None = None
    ) -> None:
        """Queue a pod. KubernetesExecutor does not retry a leased pod that fails before its task starts.

        That retry would make the pod again on the same node, for a lease that may be over.
        """
        super().execute_async(key, command, queue, executor_config)
        if LEASE_LABEL in _labels((executor_config or {}).get("pod_override")):
            self.pod_launch_attempts.pop(key, None)

    def is_publishing(self) -> bool:
        """Whether pods still have to be made."""
        return bool(self.queued_tasks) or (self.task_queue is not None and not self.task_queue.empty())

    def adopt(self, key: Any, namespace: str, name: str) -> None:
        """Watch a pod that a dead scheduler made.

        :raises ApiException: the pod can't be marked as ours
        """
        label = self._make_safe_label_value(str(self.job_id))
        body = {"metadata": {"labels": {"airflow-worker": label}}}
        assert self.kube_client is not None
        self.kube_client.patch_namespaced_pod(name, namespace, body=body)
        self.running.add(key)

    def sync(self) -> None:
        """Read the ends of pods, and make the pods that wait. What the cluster did not let us handle is tried again."""
        assert self.result_queue is not None
        for results in self._unhandled:
            self.result_queue.put(results)
        self._unhandled = []
        super().sync()

    def _create_pods_concurrently(self) -> None:
        """Make a batch of pods through KubernetesExecutor's other client, with our time limit."""
        arguments = self.kube_config.kube_client_request_args
        self.kube_config.kube_client_request_args = {**arguments, "_request_timeout": CALL_LIMIT_S}
        try:
            super()._create_pods_concurrently()
        finally:
            self.kube_config.kube_client_request_args = arguments

    def _change_state(self, results: Any, **kwargs: Any) -> None:
        """Handle the end of a pod. KubernetesExecutor would try again in the same `sync` for as long as that fails."""
        try:
            self._handle_end(results, **kwargs)
        except (ApiException, HTTPError, OSError) as error:
            self.log.warning("The end of pod %s waits: %s", results.pod_name, _error_text(error))
            self._unhandled.append(results)

    def _handle_end(self, results: Any, **kwargs: Any) -> None:
        """Handle the end of an earlier pod of a task. KubernetesExecutor would take it for the current one's."""
        if not self.is_of_earlier_lease(results.key, results.namespace, results.pod_name):
            super()._change_state(results, **kwargs)
            return
        if results.state in (ADOPTED, TaskInstanceState.RUNNING):
            return
        self.log.info("Pod %s/%s belongs to an earlier lease of its task", results.namespace, results.pod_name)
        assert self.kube_scheduler is not None
        if not self.kube_config.delete_worker_pods:
            self.kube_scheduler.patch_pod_executor_done(pod_name=results.pod_name, namespace=results.namespace)
        elif results.state != TaskInstanceState.FAILED or self.kube_config.delete_worker_pods_on_failure:
            self.kube_scheduler.delete_pod(pod_name=results.pod_name, namespace=results.namespace)

    def _should_create_pod_for_job(self, task: Any) -> bool:
        lease_id = _lease_of(task)
        return (lease_id is None or self.is_current(lease_id)) and super()._should_create_pod_for_job(task)

    def _handle_pod_publish_error(self, task: Any, e: Exception) -> bool:
        is_transient = (
            e.status in _TRANSIENT_STATUSES
            if isinstance(e, ApiException)
            else isinstance(e, TRANSIENT_CONNECTION_ERRORS)
        )
        if _lease_of(task) is None or not is_transient:
            return super()._handle_pod_publish_error(task, e)
        self.log.warning("The pod of %s can't be made now; trying again: %s", task.key, _error_text(e))
        self.create_pods_after = datetime.now() + _RETRY_DELAY  # noqa: DTZ005  Airflow compares it with its naive now
        assert self.task_queue is not None
        self.task_queue.put(task)
        return True


class ConnectionPodScheduler(AirflowKubernetesScheduler):
    """Airflow's pod scheduler, whose watchers use the cluster of a connection."""

    def __init__(self, address: ClusterAddress, **arguments: Any) -> None:
        self._address = address
        super().__init__(**arguments)

    def _make_kube_watcher(self, namespace: str) -> KubernetesJobWatcher:
        watcher = ConnectionPodWatcher(
            self._address.read(),
            namespace=namespace,
            watcher_queue=self.watcher_queue,
            resource_version="0",
            scheduler_job_id=self.scheduler_job_id,
            kube_config=self.kube_config,
            supports_task_instance_uuid=self.supports_task_instance_uuid,
        )
        watcher.start()
        return watcher


class ConnectionPodWatcher(KubernetesJobWatcher):
    """Airflow's pod watcher, for the cluster of a connection. It ends at an error, and Airflow makes a new one."""

    def __init__(self, connection: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connection = connection

    def run(self) -> None:
        """Watch until the process ends."""
        client = client_from_connection(self._connection)
        while True:
            try:
                self.resource_version = self._run(
                    client, self.resource_version, self.scheduler_job_id, self.kube_config
                )
            except ReadTimeoutError:
                time.sleep(1)


def _lease_of(task: Any) -> str | None:
    """The lease whose pod a job of KubernetesExecutor makes; None for a plain pod."""
    return _labels(task.kube_executor_config).get(LEASE_LABEL)


def _labels(pod: Any) -> Mapping[str, str]:
    return getattr(getattr(pod, "metadata", None), "labels", None) or {}


def _error_text(error: Exception) -> str:
    return f"{error.status} {error.reason}" if isinstance(error, ApiException) else f"{type(error).__name__}: {error}"
