"""One cluster, the KubernetesExecutor that makes pods in it, and what is known about the leases on its nodes."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_airflow.engines.engine import LeasedProcess, LeaseStatus, Liveness, WorkerChanges
from hetero_airflow.engines.kubernetes.claims.claim_client import ClaimRefusals, KnownTemplates
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.engines.kubernetes.states.causes import PodCause
from hetero_airflow.engines.kubernetes.unseen_pods import UnseenPods
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.worker import Worker

UNSCHEDULABLE_TIMEOUT_S = 60.0
"""A pod that stays unschedulable on its node for this long is deleted, and its task is placed again."""

_CLAIM_TIMEOUT_S = 5.0
"""A pod that has waited for its claim for this long may have been refused it."""

_LATE_POD_AFTER_S = 10.0
"""A pod that runs for so long after its lease has ended is deleted. Our watch may see an end later than that."""

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

    It concludes that no process of a lease runs only from what the cluster has said: a pod ended or was deleted, its
    node is lost, or an answer to a question for the lease's pods names none. So an outage ends no lease.

    :param token_s: how long after it was queued a task may start
    """

    def __init__(
        self,
        view: ClusterView,
        executor: LeasingKubernetesExecutor,
        token_s: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = view
        self.executor = executor
        executor.pods = self
        self.handed_over: dict[Any, HandedOverTask] = {}
        self.early_ends: dict[Any, tuple[Any, Any]] = {}
        """Failures that KubernetesExecutor reported before our own watch has shown them."""
        self._start_timeout_s = _START_FRACTION * token_s
        self._now = now
        self._finished: dict[str, float] = {}
        """Lease → when it ended. Nothing of it runs, and no pod is made for it."""
        self.unseen = UnseenPods(executor.calls, view.find_pods, now)
        self.templates = KnownTemplates(now)
        self.refusals = ClaimRefusals(executor.calls)
        self._marked_for_deletion: dict[str, None] = {}
        """Leases whose pods must end."""
        self._unschedulable_since: dict[str, float] = {}
        """Lease → since when its pod is unschedulable, or waits for its claim."""

    @property
    def problem(self) -> str | None:
        """Why nothing can start in the cluster now; None if tasks can start."""
        return self.view.problem or self.executor.calls.problem

    def has_worker(self, worker_id: str) -> bool:
        """Whether a worker is a node of this cluster."""
        return self.view.site is None or worker_id.startswith(f"{self.view.site}/")

    def start(self) -> None:
        """Begin to watch. Start KubernetesExecutor first, because its processes are forks of this one."""
        self.view.start()
        self.executor.calls.start()

    def stop(self) -> None:
        """Stop watching. Running pods go on."""
        self.view.stop()
        self.executor.calls.stop()

    def poll(self, workers: Mapping[str, Worker], now_s: float) -> WorkerChanges:
        """The changes to the nodes; see `ClusterView.poll`."""
        if self.view.problem is not None:  # a pod gets its time to become schedulable from the end of an outage
            self._unschedulable_since.clear()
        return self.view.poll(workers, now_s, self.executor.calls.problem)

    def note_handed_over(self, key: Any, lease_id: str) -> None:
        """Allow a pod for the lease from now on."""
        self._finished.pop(lease_id, None)
        self.early_ends.pop(key, None)
        self.handed_over[key] = HandedOverTask(lease_id, self._now())

    def follow(self, key: Any, lease_id: str) -> None:
        """Follow the pod of a lease that another scheduler made."""
        self.note_handed_over(key, lease_id)
        pod = self.pod(lease_id)
        if pod is not None and not pod.is_over:
            self.executor.adopt(key, pod.namespace, pod.name)

    def take_early_ends(self) -> dict[Any, tuple[Any, Any]]:
        """Remove and return `early_ends`, without those of tasks that are withdrawn."""
        ends = {key: end for key, end in self.early_ends.items() if key in self.handed_over}
        self.early_ends = {}
        return ends

    def pod(self, lease_id: str) -> LeasedPod | None:
        """The pod of a lease as it is, or as it was last."""
        return self.view.pods().get(lease_id) or self.view.deleted.get(lease_id)

    def status(self, lease_id: str) -> LeaseStatus | None:
        """What the cluster reports about the pod of a lease; None if it knows no pod."""
        pod = self.pod(lease_id)
        if pod is None:
            return None
        message = "; ".join([str(pod), *self.view.claim_notes(lease_id)])
        if not pod.is_over and pod.node is not None and self.view.is_lost(self.view.worker_id(pod.node)):
            message = f"node {pod.node} was lost, and with it {pod}"
        reason = None if pod.is_over else pod.state.reason(f"a container in {pod.namespace}/{pod.name}")
        refusal = self.refusals.text(lease_id)
        if refusal and reason is not None:
            reason = Reason(ReasonCode.QUOTA, f"a claim for {pod.namespace}/{pod.name}", refusal)
        return LeaseStatus(message, reason, pod.termination_cause, refusal)

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
        elif pod is None and self.view.deleted.get(lease_id) is None and self._may_appear(process):
            return Liveness.UNKNOWN
        self.end_lease(lease_id)
        return Liveness.GONE

    def end_lease(self, lease_id: str) -> None:
        """Allow no pod for the lease from now on. One that was sent and never seen is told to end."""
        self._finished[lease_id] = self._now()
        if len(self._finished) > _MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        self._unschedulable_since.pop(lease_id, None)
        if self.pod(lease_id) is None:
            self._delete_unseen(lease_id)
        self.unseen.forget(lease_id)
        self._drop_task(lease_id)

    def withdraw(self, key: Any, lease_id: str) -> bool:
        """Take back a task that does not run yet, and end its pod if it has one. Returns whether it did not run."""
        pod = self.view.pods().get(lease_id)
        if pod is not None and not pod.is_waiting:
            return False
        self.executor.queued_tasks.pop(key, None)
        self.executor.running.discard(key)
        if pod is None:
            self._drop_unseen(lease_id)
        else:
            self.mark_for_deletion(lease_id)
        return True

    @property
    def occupied_slots(self) -> int:
        """Slots of the executor that device tasks occupy."""
        return sum(self.executor.is_publishing(key) for key in self.handed_over)

    def mark_for_deletion(self, lease_id: str) -> None:
        """Delete the pod of a lease at the next `delete_marked_pods`."""
        self._marked_for_deletion[lease_id] = None

    def delete(self, lease_id: str, grace_s: int | None) -> None:
        """Delete the pod of a lease now. A pod that does not exist yet is not made."""
        pod = self.view.pods().get(lease_id)
        if pod is not None and not pod.is_over:
            self.executor.kube_client.delete(pod, grace_s)
        elif pod is None and self.view.is_synced:
            self._drop_unseen(lease_id)

    def delete_marked_pods(self) -> None:
        """Delete the pods that are marked for it, and those that appeared after their leases had ended."""
        pods, late = self.view.pods(), self._now() - _LATE_POD_AFTER_S
        for lease_id in self._finished.keys() & pods.keys():
            if self._finished[lease_id] <= late and not pods[lease_id].is_over:
                self.mark_for_deletion(lease_id)
        for lease_id in list(self._marked_for_deletion):
            pod = pods.get(lease_id)
            if pod is not None and not pod.is_over:
                self.executor.kube_client.delete(pod)
            elif self.view.is_synced:
                del self._marked_for_deletion[lease_id]

    def is_current(self, lease_id: str) -> bool:
        """Whether a lease was handed over and was not withdrawn."""
        return lease_id not in self._finished and self._task_of(lease_id) is not None

    def has_pod(self, lease_id: str) -> bool:
        """Whether a lease has a pod that has not ended."""
        pod = self.view.pods().get(lease_id)
        return pod is not None and not pod.is_over

    def ended_pod_id(self, lease_id: str) -> str:
        """The id of the last pod of a lease that has ended; empty if there is none."""
        pod = self.pod(lease_id)
        return "" if pod is None else pod.uid

    def is_of_earlier_lease(self, key: Any, namespace: str, name: str) -> bool:
        """Whether a pod, given by task key, namespace and name, belongs to an earlier lease of the task."""
        task = self.handed_over.get(key)
        if task is None:
            return False
        pods = (*self.view.pods().values(), *self.view.deleted.values())
        leases = {pod.lease_id for pod in pods if (pod.namespace, pod.name) == (namespace, name)}
        if leases:
            return task.lease_id not in leases
        return self.pod(task.lease_id) is not None  # the current pod has another name

    def _drop_unseen(self, lease_id: str) -> None:
        """Make no pod for a lease. One that was sent may exist: it is deleted, and then the cluster is asked for it."""
        if self.unseen.sent(lease_id) is None:
            self.end_lease(lease_id)
        else:
            self._delete_unseen(lease_id)
            self._drop_task(lease_id)

    def _delete_unseen(self, lease_id: str) -> None:
        sent = self.unseen.sent(lease_id)
        if sent is not None:
            namespace, name = sent
            self.executor.kube_client.delete_namespaced_pod(name, namespace)

    def _drop_task(self, lease_id: str) -> None:
        for key in [key for key, task in self.handed_over.items() if task.lease_id == lease_id]:
            del self.handed_over[key]
            self.executor.running.discard(key)

    def _may_appear(self, process: LeasedProcess) -> bool:
        """Whether a pod that was never seen may exist, or may still be made."""
        lease_id = process.lease.id
        key, task = next(
            ((key, task) for key, task in self.handed_over.items() if task.lease_id == lease_id), (None, None)
        )
        if task is None and process.state == "queued" and not process.is_ours:
            return True  # its own scheduler may still make it
        if task is not None and not self.unseen.is_made(lease_id) and self.executor.is_publishing(key):
            return True
        return not self.unseen.is_absent(lease_id, float("-inf") if task is None else task.at)

    def _check_start(self, pod: LeasedPod) -> None:
        """Take a pod back that stays unschedulable, is refused its claim, or is too late for its token."""
        if not pod.is_waiting or pod.lease_id in self._marked_for_deletion:
            return
        now, problem = self._now(), ""
        may_lack_claim = pod.has_claim and pod.state.may_lack_claim
        if pod.state.cause is PodCause.UNSCHEDULABLE or may_lack_claim:
            waited_s = now - self._unschedulable_since.setdefault(pod.lease_id, now)
            if pod.state.cause is PodCause.UNSCHEDULABLE and waited_s >= UNSCHEDULABLE_TIMEOUT_S:
                problem = f"has been unschedulable on its node for {UNSCHEDULABLE_TIMEOUT_S:g} s"
                self.templates.forget()
            elif may_lack_claim and waited_s >= _CLAIM_TIMEOUT_S:
                problem = self._claim_problem(pod)
        else:
            self._unschedulable_since.pop(pod.lease_id, None)
        task = self._task_of(pod.lease_id)
        if task is not None and now - task.at >= self._start_timeout_s:
            problem = f"has not started within {self._start_timeout_s:g} s, and its token expires soon"
        if problem:
            log.warning("%s %s: its task is placed again.", str(pod), problem)
            self.mark_for_deletion(pod.lease_id)

    def _claim_problem(self, pod: LeasedPod) -> str:
        """Why a pod gets no claim; empty if no quota is known to refuse it."""
        if refusal := self.refusals.text(pod.lease_id):
            return f"is refused its claim ({refusal})"
        self.refusals.look(pod)
        return ""

    def _task_of(self, lease_id: str) -> HandedOverTask | None:
        return next((task for task in self.handed_over.values() if task.lease_id == lease_id), None)
