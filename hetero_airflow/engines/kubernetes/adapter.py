"""One cluster with the KubernetesExecutor that makes pods there, and what is known of the leases on its nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_airflow.engines.engine import LeasedProcess, Liveness, TerminationCause
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.engines.kubernetes.pods.pod_deleter import PodDeleter
from hetero_airflow.engines.kubernetes.states.pod_state import PodCause
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.model.run import RunEnd

UNSCHEDULABLE_TIMEOUT_S = 60.0
"""A pod that finds no room on its node for so long is taken back, and its task is placed anew."""

POD_VISIBLE_TIMEOUT_S = 30.0
"""A pod that was made is seen by then."""

_START_FRACTION = 0.7
"""Of the life of a token, a quarter of which may be over at the hand-over: a task that begins later is refused."""

_MAX_FINISHED = 10_000
"""Leases of which it is remembered that they are over."""

_LOST_ENDS = (RunEnd.LOST, RunEnd.PAUSED)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandedOverTask:
    """What was handed over and has not ended."""

    lease_id: str
    at: float


class ClusterAdapter:
    """All that is known and done of the leases in one cluster. For the scheduler's loop alone.

    :param token_s: for how long a task may begin once it was queued
    """

    def __init__(
        self,
        cluster: ClusterView,
        deleter: PodDeleter,
        executor: LeasingKubernetesExecutor,
        token_s: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.executor = executor
        executor.is_current = self._is_current
        executor.is_of_earlier_lease = self._is_of_earlier_lease
        self.handed: dict[Any, HandedOverTask] = {}
        self._deleter = deleter
        self._start_s = _START_FRACTION * token_s
        self._now = now
        self._over: dict[str, None] = {}
        """Leases of which nothing runs, and for which no pod is made any more."""
        self._marked_for_deletion: dict[str, None] = {}
        """Leases whose pods are to end."""
        self._stuck: dict[str, float] = {}
        """Lease → since when its pod finds no room."""

    def has(self, worker_id: str) -> bool:
        """Whether a worker is a node of this cluster."""
        return self.cluster.site is None or worker_id.startswith(f"{self.cluster.site}/")

    def start(self) -> None:
        """Begin to watch. KubernetesExecutor has to be started before, since its processes are forks of this one."""
        self.cluster.start()
        self._deleter.start()

    def stop(self) -> None:
        """Stop watching; pods that run run on."""
        self.cluster.stop()
        self._deleter.stop()

    def note_handed_over(self, key: Any, lease_id: str) -> None:
        """From now on a pod may be made for the lease."""
        self._over.pop(lease_id, None)
        self.handed[key] = HandedOverTask(lease_id, self._now())

    def pod(self, lease_id: str) -> LeasedPod | None:
        """The pod of a lease, as it is, or as it was last."""
        return self.cluster.pods().get(lease_id) or self.cluster.gone.get(lease_id)

    def words(self, lease_id: str) -> str | None:
        """How the pod of a lease stands, or stood last, in the words of the cluster."""
        pod = self.pod(lease_id)
        if pod is None or pod.is_over or pod.node is None:
            return None if pod is None else str(pod)
        worker_id = pod.node if self.cluster.site is None else f"{self.cluster.site}/{pod.node}"
        return f"node {pod.node} was lost, and with it {pod}" if self.cluster.is_lost(worker_id) else str(pod)

    def liveness(self, use: LeasedProcess) -> Liveness:
        """Whether a process of a lease runs, or may still.

        Of a lease on a node that is lost nothing has to be waited for: its pod is told to end, the cluster counts its
        devices until it has, and the node offers them to no one before.
        """
        lease_id = use.lease.id
        if lease_id in self._over:
            return Liveness.GONE
        if not self.cluster.is_synced:
            return Liveness.UNKNOWN
        pod = self.cluster.pods().get(lease_id)
        if pod is not None and not pod.is_over:
            if not self.cluster.is_lost(use.lease.worker_id):
                self._check_start(pod)
                return Liveness.ALIVE
            self.mark_for_deletion(lease_id)
        elif pod is None and self.cluster.gone.get(lease_id) is None and self._may_still_be_made(use):
            return Liveness.UNKNOWN
        self.end_lease(lease_id)
        return Liveness.GONE

    def _is_of_earlier_lease(self, key: Any, namespace: str, name: str) -> bool:
        handed = self.handed.get(key)
        if handed is None:
            return False
        known = (*self.cluster.pods().values(), *self.cluster.gone.values())
        leases = {pod.lease_id for pod in known if (pod.namespace, pod.name) == (namespace, name)}
        if leases:
            return handed.lease_id not in leases
        return self.pod(handed.lease_id) is not None  # it has another name

    def end_lease(self, lease_id: str) -> None:
        """From now on no pod is made for the lease."""
        self._over[lease_id] = None
        if len(self._over) > _MAX_FINISHED:
            del self._over[next(iter(self._over))]
        self._stuck.pop(lease_id, None)
        for key in [key for key, handed in self.handed.items() if handed.lease_id == lease_id]:
            del self.handed[key]
            self.executor.running.discard(key)

    def withdraw(self, key: Any, lease_id: str) -> bool:
        """Let go of what does not run yet; whether it did not. Its pod, where there is one, is told to end."""
        pod = self.cluster.pods().get(lease_id)
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
        """Slots of the executor that device tasks have."""
        return sum(key in self.executor.running or key in self.executor.queued_tasks for key in self.handed)

    def mark_for_deletion(self, lease_id: str) -> None:
        """Let the pod of a lease end, now or as soon as the cluster answers."""
        self._marked_for_deletion[lease_id] = None

    def delete(self, lease_id: str, grace_s: int | None) -> None:
        """Tell the pod of a lease to end; where it was not made yet, it is not made."""
        pod = self.cluster.pods().get(lease_id)
        if pod is not None and not pod.is_over:
            self._deleter.delete(pod, grace_s)
        elif pod is None and self.cluster.is_synced:
            self.end_lease(lease_id)

    def sweep(self) -> None:
        """End the pods that are to end."""
        pods = self.cluster.pods()
        for lease_id in list(self._marked_for_deletion):
            pod = pods.get(lease_id)
            if pod is not None and not pod.is_over:
                self._deleter.delete(pod)
            elif self.cluster.is_synced:
                del self._marked_for_deletion[lease_id]

    def loss(self, lease_id: str) -> TerminationCause | None:
        """What ended a pod, if that was done to it from outside, or the kernel killed all that ran in it for memory.

        Where the kernel killed the task alone, its supervisor has told of it before the pod ended.
        """
        pod = self.pod(lease_id)
        if pod is None:
            return None
        if pod.state.end in _LOST_ENDS:
            return TerminationCause()
        # without an exit code it was a container that prepares the pod, whose memory is not the task's
        is_killed = pod.state.cause is PodCause.OOM_KILLED and pod.state.exit_code not in (None, 0)
        return TerminationCause(is_out_of_memory=True, host_memory_bytes=pod.memory_bytes) if is_killed else None

    def _is_current(self, lease_id: str) -> bool:
        if lease_id in self._over or not any(handed.lease_id == lease_id for handed in self.handed.values()):
            return False
        pod = self.cluster.pods().get(lease_id)
        return pod is None or pod.is_over

    def _may_still_be_made(self, use: LeasedProcess) -> bool:
        """Whether a pod that was never seen may still be made."""
        if use.state != "queued":
            return False
        handed = next((one for one in self.handed.values() if one.lease_id == use.lease.id), None)
        if handed is None:
            return not use.is_ours
        return self._now() - handed.at < POD_VISIBLE_TIMEOUT_S or self.executor.is_publishing()

    def _check_start(self, pod: LeasedPod) -> None:
        """Take a pod back that finds no room, or comes too late for its token."""
        if not pod.is_waiting or pod.lease_id in self._marked_for_deletion:
            return
        now, words = self._now(), ""
        if pod.state.cause is PodCause.UNSCHEDULABLE:
            if now - self._stuck.setdefault(pod.lease_id, now) >= UNSCHEDULABLE_TIMEOUT_S:
                words = f"finds no room on its node for {UNSCHEDULABLE_TIMEOUT_S:g} s"
        else:
            self._stuck.pop(pod.lease_id, None)
        handed = next((one for one in self.handed.values() if one.lease_id == pod.lease_id), None)
        if handed is not None and now - handed.at >= self._start_s:
            words = f"has not begun within {self._start_s:g} s, and its token is soon no longer good"
        if words:
            log.warning("%s %s: its task is placed anew.", str(pod), words)
            self.mark_for_deletion(pod.lease_id)
