"""Airflow's KubernetesExecutor, extended for pods of leases. Its calls to the cluster are made in another thread.

Only this module, `pod_scheduler` and `engine` know KubernetesExecutor's internals: its queues, keys and publishing.
"""

import copy
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_types import ADOPTED
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_utils import get_base_pod_from_template
from airflow.providers.cncf.kubernetes.kube_client import _get_executor_kube_client
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import annotations_to_key
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.utils.state import TaskInstanceState
from kubernetes.client import ApiException, CoreV1Api  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.kubernetes.calls import ClusterCalls, error_text, is_delayed, is_passing
from hetero_airflow.engines.kubernetes.claims.claim_client import make_claimed
from hetero_airflow.engines.kubernetes.clients import ClusterAddress, client_from_connection, one_try_client
from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.engines.kubernetes.paused_jobs import PausedJobs
from hetero_airflow.engines.kubernetes.pod_scheduler import LeasingPodScheduler
from hetero_airflow.engines.kubernetes.pods.plain_pods import PlainPods
from hetero_airflow.engines.kubernetes.pods.pod_creation import labels_of, lease_of, make_pod, pod_name, run_of
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL, seal_pod
from hetero_airflow.engines.kubernetes.queued_api import QueuedApi
from hetero_airflow.model.grant import GrantSigner

if TYPE_CHECKING:
    from hetero_airflow.engines.kubernetes.adapter import ClusterAdapter


class LeasingKubernetesExecutor(KubernetesExecutor):
    """Makes one pod for each lease, and only while the lease is current."""

    pods: "ClusterAdapter"
    kube_client: QueuedApi
    calls: ClusterCalls
    outage: Outage
    signer: GrantSigner
    address = ClusterAddress()
    """The address of its cluster."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._unhandled: list[Any] = []
        """Ends of pods that a database did not let us handle."""
        self._paused = PausedJobs()
        self._plain_pods = PlainPods(self.pod_launch_attempts)

    @property
    def pod_namespace(self) -> str | None:
        """The namespace of its pods; None for any."""
        return None if self.kube_config.multi_namespace_mode else str(self.kube_config.kube_namespace)

    def start(self) -> None:
        """Start KubernetesExecutor's processes. They are forks, so the thread of `calls` must start later."""
        if self.address.conn_id is not None:
            self.kube_config.kube_namespace = self.address.read().get("namespace") or self.kube_config.kube_namespace
        self._manager = multiprocessing.Manager()
        self.task_queue, self.result_queue = self._manager.JoinableQueue(), self._manager.JoinableQueue()
        self.scheduler_job_id = str(self.job_id)
        self.outage = Outage(f"the cluster {self.address.site}" if self.address.site else "the cluster")
        self.calls = ClusterCalls(self.connect, self.outage)
        self.kube_client = QueuedApi(self.calls, self.connect)
        self.kube_scheduler = LeasingPodScheduler(
            self._connect_of_watch,
            kube_config=self.kube_config,
            result_queue=self.result_queue,
            kube_client=self.kube_client,
            scheduler_job_id=self.scheduler_job_id,
            team_name=self.team_name,
            supports_task_instance_uuid=self.supports_task_instance_uuid,
        )

    def connect(self) -> CoreV1Api:
        """A client with the current credentials, which tries each call once."""
        return one_try_client(self._connect_of_watch()())

    def _connect_of_watch(self) -> Callable[[], CoreV1Api]:
        """What makes a client in another process, without reading a connection there."""
        if self.address.conn_id is None:
            return partial(_get_executor_kube_client, team_name=self.team_name)
        return partial(client_from_connection, self.address.read())

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
        if LEASE_LABEL in labels_of((executor_config or {}).get("pod_override")):
            self.pod_launch_attempts.pop(key, None)

    def is_publishing(self, key: Any) -> bool:
        """Whether the pod of a task still has to be made, or to end."""
        return key in self.queued_tasks or key in self.running

    def withdraw(self, key: Any) -> bool:
        """Take back a task without a device, and end its pod if one was sent or adopted. Returns whether it was here.

        KubernetesExecutor ignores the end of that pod, since Airflow may have queued the task again.
        """
        assert self.kube_scheduler is not None
        job, pod = self.pod_launch_attempts.pop(key, None), self._plain_pods.take(key)
        self._paused.forget(key)
        if pod is not None:
            self.kube_scheduler.patch_pod_revoked(namespace=pod[0], pod_name=pod[1])
            self.kube_scheduler.delete_pod(namespace=pod[0], pod_name=pod[1])
        is_sent = job is not None or pod is not None
        if is_sent:
            self.running.discard(key)
        return self.queued_tasks.pop(key, None) is not None or is_sent

    def adopt(self, key: Any, namespace: str, name: str) -> None:
        """Watch a pod that a dead scheduler made."""
        self.kube_client.patch_namespaced_pod(name, namespace, body=self._our_label())
        self.running.add(key)

    def sync(self) -> None:
        """Read the ends of pods and the answers of the cluster, and send the pods that wait."""
        assert self.result_queue is not None
        self.calls.handle_answers()
        for results in self._unhandled:
            self.result_queue.put(results)
        self._unhandled = []
        self._queue_again(self._paused.take_due())
        self._plain_pods.keep(self.running)
        super().sync()

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Take over the pods of schedulers that died. If the cluster refuses the credentials, read them again."""
        try:
            return super().try_adopt_task_instances(tis)
        except (ApiException, HTTPError, OSError) as error:
            self.kube_client.reconnect()
            if getattr(error, "status", None) != 401:
                raise
            return super().try_adopt_task_instances(tis)

    def adopt_launched_task(self, kube_client: Any, pod: Any, tis_to_flush_by_key: dict[Any, Any]) -> None:
        """Take over a pod that another scheduler made."""
        super().adopt_launched_task(kube_client, pod, tis_to_flush_by_key)
        self._plain_pods.note(annotations_to_key(pod.metadata.annotations), pod.metadata.namespace, pod.metadata.name)

    def _adopt_completed_pods(self, kube_client: Any) -> None:
        """Let the thread of calls look for ended pods of schedulers that died."""
        finder = copy.copy(self)
        finder.completed = {}

        def find(api: CoreV1Api) -> None:
            finder.kube_client = api
            KubernetesExecutor._adopt_completed_pods(finder, api)

        def take_over(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self.completed |= finder.completed

        self.calls.put("completed pods", find, take_over)

    def _create_pods_sequentially(self) -> None:
        """Send a batch of pods to the cluster. The answers come with a later `sync`."""
        assert self.task_queue is not None
        if self.calls.problem is not None:
            return
        with suppress(Empty):
            for _ in range(self.kube_config.worker_pods_creation_batch_size):
                task = self.task_queue.get_nowait()
                self.task_queue.task_done()
                lease_id = lease_of(task)
                if self._plain_pods.is_withdrawn(task) or (lease_id is not None and self.pods.has_pod(lease_id)):
                    continue  # has_pod: the cluster had taken an earlier call that got no answer
                if not self._should_create_pod_for_job(task):
                    self._paused.forget(task.key)
                    self._discard_stale_pod_creation_task(task)
                    continue
                try:
                    self._send_pod(task, lease_id)
                except Exception as error:  # noqa: BLE001  a hook for pods may raise anything
                    self._handle_pod_publish_error(task, error)

    _create_pods_concurrently = _create_pods_sequentially

    def _send_pod(self, task: Any, lease_id: str | None) -> None:
        assert self.kube_scheduler is not None
        pod = self.kube_scheduler._build_pod_request(task)
        pod.metadata.name = pod_name(pod.metadata.name, run_of(task), self._ended_pod(task))
        if lease_id is not None:
            seal_pod(pod.metadata, lease_id, self.signer)
            self.pods.unseen.note_sent(lease_id, pod.metadata.namespace, pod.metadata.name)
        else:
            self._plain_pods.note(task.key, pod.metadata.namespace, pod.metadata.name)
        body = self.kube_client.api_client.sanitize_for_serialization(pod)
        key = ("create", pod.metadata.namespace, pod.metadata.name)

        def make(api: CoreV1Api) -> Any:
            make_once = partial(make_pod, api, our_label=self._our_label())
            if lease_id is None:
                return None if self._plain_pods.is_withdrawn(task) else make_once(body)
            return make_claimed(api.api_client, body, make_once, self.pods.templates)

        self.calls.put(key, make, lambda answer: self._note_made(task, answer))

    def _ended_pod(self, task: Any) -> str:
        """The last pod of a task's run that has ended, so that its next pod gets another name; empty if none has."""
        lease_id, attempt = lease_of(task), self.pod_launch_attempts.get(task.key)
        if lease_id is not None:
            return self.pods.ended_pod_id(lease_id)
        return "" if attempt is None else attempt.requeued_for_pod or ""

    def _note_made(self, task: Any, answer: Any) -> None:
        lease_id = lease_of(task)
        if isinstance(answer, Exception):
            if lease_id is not None and not is_passing(answer):
                self.pods.unseen.note_refused(lease_id)
            if not self._plain_pods.is_withdrawn(task):
                self._handle_pod_publish_error(task, answer)
            return
        self.task_publish_retries.pop(task.key, None)
        self._paused.forget(task.key)
        if lease_id is not None:
            self.pods.unseen.note_made(lease_id)

    def _our_label(self) -> dict[str, Any]:
        return {"metadata": {"labels": {"airflow-worker": self._make_safe_label_value(str(self.job_id))}}}

    def _change_state(self, results: Any, **kwargs: Any) -> None:
        """Handle the end of a pod. KubernetesExecutor would try again in the same `sync` for as long as that fails."""
        try:
            self._handle_end(results, **kwargs)
        except Exception as error:  # noqa: BLE001  as KubernetesExecutor does
            self.log.warning("The end of pod %s waits: %s", results.pod_name, error_text(error))
            self._unhandled.append(results)

    def _handle_end(self, results: Any, **kwargs: Any) -> None:
        """Handle the end of an earlier pod of a task. KubernetesExecutor would take it for the current one's."""
        if not self.pods.is_of_earlier_lease(results.key, results.namespace, results.pod_name):
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
        lease_id = lease_of(task)
        return (lease_id is None or self.pods.is_current(lease_id)) and super()._should_create_pod_for_job(task)

    def _handle_pod_publish_error(self, task: Any, e: Exception) -> bool:
        """Let a pod wait that can't be made now; its task keeps its try.

        KubernetesExecutor alone would count the outages of a cluster, and would let all pods wait if one is refused.
        """
        if not is_passing(e) or self._is_refused_too_often(task, e):
            self._paused.forget(task.key)
            return super()._handle_pod_publish_error(task, e)
        self.log.debug("The pod of %s can't be made now; trying again: %s", task.key, error_text(e))
        if is_delayed(e):
            self._paused.pause(task, e)
        else:
            self._queue_again([task])
        return True

    def _is_refused_too_often(self, task: Any, error: Exception) -> bool:
        """Whether the cluster itself refused a pod, and Airflow's configuration allows no further try.

        That is not for the pods of leases, which end with the leases.
        """
        if lease_of(task) is not None or not is_delayed(error) or self.task_publish_max_retries == -1:
            return False
        retries = self.task_publish_retries[task.key]
        self.task_publish_retries[task.key] = min(retries + 1, self.task_publish_max_retries)
        return bool(retries >= self.task_publish_max_retries)

    def _queue_again(self, tasks: Iterable[Any]) -> None:
        assert self.task_queue is not None
        for task in tasks:
            self.task_queue.put(task)
