"""One cluster, the KubernetesExecutor that makes pods in it, and what is known about the leases on its nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_airflow.engines.engine import LeasedProcess, LeaseStatus, Liveness
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.engines.kubernetes.pods.pod_deleter import PodDeleter
from hetero_airflow.engines.kubernetes.states.causes import PodCause
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod

UNSCHEDULABLE_TIMEOUT_S = 60.0
"""A pod that stays unschedulable on its node for this long is deleted, and its task is placed again."""

POD_VISIBLE_TIMEOUT_S = 30.0
"""A new pod is visible in the watch after this time at most."""

_START_FRACTION = 0.7
"""Part of a token's life after which a task can't start. Up to a quarter of it is over at the hand-over."""

_MAX_FINISHED = 10_000
"""Number of finished leases that are remembered."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandedOverTask:
    """A task that was handed over and has not ended."""

    lease_id: str
    at: float


class ClusterAdapter:
    """Everything that is known and done about the leases in one cluster. Only the scheduler's loop may use it.

    :param token_s: how long after it was queued a task may start
    """

    def __init__(
        self,
        view: ClusterView,
        deleter: PodDeleter,
        executor: LeasingKubernetesExecutor,
        token_s: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = view
        self.executor = executor
        executor.is_current = self._is_current
        executor.is_of_earlier_lease = self._is_of_earlier_lease
        self.handed_over: dict[Any, HandedOverTask] = {}
        self._deleter = deleter
        self._start_timeout_s = _START_FRACTION * token_s
        self._now = now
        self._finished: dict[str, None] = {}
        """Leases of which nothing runs, and for which no pod is made."""
        self._marked_for_deletion: dict[str, None] = {}
        """Leases whose pods must end."""
        self._unschedulable_since: dict[str, float] = {}
        """Lease → since when its pod is unschedulable."""

    def has_worker(self, worker_id: str) -> bool:
        """Whether a worker is a node of this cluster."""
        return self.view.site is None or worker_id.startswith(f"{self.view.site}/")

    def start(self) -> None:
        """Begin to watch. Start KubernetesExecutor first, because its processes are forks of this one."""
        self.view.start()
        self._deleter.start()

    def stop(self) -> None:
        """Stop watching. Running pods go on."""
        self.view.stop()
        self._deleter.stop()

    def note_handed_over(self, key: Any, lease_id: str) -> None:
        """Allow a pod for the lease from now on."""
        self._finished.pop(lease_id, None)
        self.handed_over[key] = HandedOverTask(lease_id, self._now())

    def pod(self, lease_id: str) -> LeasedPod | None:
        """The pod of a lease as it is, or as it was last."""
        return self.view.pods().get(lease_id) or self.view.deleted.get(lease_id)

    def status(self, lease_id: str) -> LeaseStatus | None:
        """What the cluster reports about the pod of a lease; None if it knows no pod."""
        pod = self.pod(lease_id)
        if pod is None:
            return None
        message = str(pod)
        if not pod.is_over and pod.node is not None and self.view.is_lost(self.view.worker_id(pod.node)):
            message = f"node {pod.node} was lost, and with it {pod}"
        reason = None if pod.is_over else pod.state.reason(f"a container in {pod.namespace}/{pod.name}")
        return LeaseStatus(message, reason, pod.termination_cause)

    def liveness(self, process: LeasedProcess) -> Liveness:
        """Whether a process of a lease runs, or may still run.

        A lease on a lost node is over at once: its pod is deleted, the cluster counts its devices until it has
        ended, and the node offers them to no other task before that.
        """
        lease_id = process.lease.id
        if lease_id in self._finished:
            return Liveness.GONE
        if not self.view.is_synced:
            return Liveness.UNKNOWN
        pod = self.view.pods().get(lease_id)
        if pod is not None and not pod.is_over:
            if not self.view.is_lost(process.lease.worker_id):
                self._check_start(pod)
                return Liveness.ALIVE
            self.mark_for_deletion(lease_id)
        elif pod is None and self.view.deleted.get(lease_id) is None and self._may_still_be_made(process):
            return Liveness.UNKNOWN
        self.end_lease(lease_id)
        return Liveness.GONE

    def end_lease(self, lease_id: str) -> None:
        """Allow no pod for the lease from now on."""
        self._finished[lease_id] = None
        if len(self._finished) > _MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        self._unschedulable_since.pop(lease_id, None)
        for key in [key for key, task in self.handed_over.items() if task.lease_id == lease_id]:
            del self.handed_over[key]
            self.executor.running.discard(key)

    def withdraw(self, key: Any, lease_id: str) -> bool:
        """Take back a task that does not run yet, and end its pod if it has one. Returns whether it did not run."""
        pod = self.view.pods().get(lease_id)
        if pod is not None and not pod.is_waiting:
            return False
        self.executor.queued_tasks.pop(key, None)
        self.executor.running.discard(key)
        if pod is None:
            self.end_lease(lease_id)
        else:
            self.mark_for_deletion(lease_id)
        return True

    @property
    def occupied_slots(self) -> int:
        """Slots of the executor that device tasks occupy."""
        return sum(key in self.executor.running or key in self.executor.queued_tasks for key in self.handed_over)

    def mark_for_deletion(self, lease_id: str) -> None:
        """Delete the pod of a lease at the next `delete_marked_pods` that the cluster answers."""
        self._marked_for_deletion[lease_id] = None

    def delete(self, lease_id: str, grace_s: int | None) -> None:
        """Delete the pod of a lease now. A pod that does not exist yet is not made."""
        pod = self.view.pods().get(lease_id)
        if pod is not None and not pod.is_over:
            self._deleter.delete(pod, grace_s)
        elif pod is None and self.view.is_synced:
            self.end_lease(lease_id)

    def delete_marked_pods(self) -> None:
        """Delete the pods that are marked for it."""
        pods = self.view.pods()
        for lease_id in list(self._marked_for_deletion):
            pod = pods.get(lease_id)
            if pod is not None and not pod.is_over:
                self._deleter.delete(pod)
            elif self.view.is_synced:
                del self._marked_for_deletion[lease_id]

    def _is_current(self, lease_id: str) -> bool:
        if lease_id in self._finished or self._task_of(lease_id) is None:
            return False
        pod = self.view.pods().get(lease_id)
        return pod is None or pod.is_over

    def _is_of_earlier_lease(self, key: Any, namespace: str, name: str) -> bool:
        task = self.handed_over.get(key)
        if task is None:
            return False
        pods = (*self.view.pods().values(), *self.view.deleted.values())
        leases = {pod.lease_id for pod in pods if (pod.namespace, pod.name) == (namespace, name)}
        if leases:
            return task.lease_id not in leases
        return self.pod(task.lease_id) is not None  # the current pod has another name

    def _may_still_be_made(self, process: LeasedProcess) -> bool:
        """Whether a pod that was never seen may still appear."""
        if process.state != "queued":
            return False
        task = self._task_of(process.lease.id)
        if task is None:
            return not process.is_ours
        return self._now() - task.at < POD_VISIBLE_TIMEOUT_S or self.executor.is_publishing()

    def _check_start(self, pod: LeasedPod) -> None:
        """Take a pod back that stays unschedulable, or that is too late for its token."""
        if not pod.is_waiting or pod.lease_id in self._marked_for_deletion:
            return
        now, problem = self._now(), ""
        if pod.state.cause is PodCause.UNSCHEDULABLE:
            if now - self._unschedulable_since.setdefault(pod.lease_id, now) >= UNSCHEDULABLE_TIMEOUT_S:
                problem = f"has been unschedulable on its node for {UNSCHEDULABLE_TIMEOUT_S:g} s"
        else:
            self._unschedulable_since.pop(pod.lease_id, None)
        task = self._task_of(pod.lease_id)
        if task is not None and now - task.at >= self._start_timeout_s:
            problem = f"has not started within {self._start_timeout_s:g} s, and its token expires soon"
        if problem:
            log.warning("%s %s: its task is placed again.", str(pod), problem)
            self.mark_for_deletion(pod.lease_id)

    def _task_of(self, lease_id: str) -> HandedOverTask | None:
        return next((task for task in self.handed_over.values() if task.lease_id == lease_id), None)
