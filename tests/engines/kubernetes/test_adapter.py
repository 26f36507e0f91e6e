from types import SimpleNamespace

import pytest

from hetero_airflow.engines.engine import LeasedProcess, Liveness, TerminationCause
from hetero_airflow.engines.kubernetes.adapter import UNSCHEDULABLE_TIMEOUT_S, ClusterAdapter
from hetero_airflow.engines.kubernetes.states.causes import PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState
from hetero_airflow.engines.kubernetes.unseen_pods import ASK_AFTER_S, UnseenPods
from hetero_airflow.engines.kubernetes.watch.leased_pods import DeletedPods, LeasedPod
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.testing import a_lease

LEASE = a_lease("r", "gpu-1")
WAITS_FOR_CLAIM = (
    'pod "ns/p": ResourceClaim not created yet',
    '0/1 nodes are available: 1 waiting for dynamic resource controller to create the resourceclaim "p-d".',
)
"""Messages of Kubernetes' scheduler: of 1.28 and later, and before that."""
QUOTA = "exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1, used: …=1, limited: …=1"


class StandInCluster:
    site = None

    def claim_notes(self, _):
        return []

    def __init__(self):
        self.is_synced, self.there, self.deleted, self.lost = True, {}, DeletedPods(), set()

    def is_lost(self, worker_id):
        return worker_id in self.lost

    def worker_id(self, node):
        return node

    def pods(self):
        return self.there

    def find_pods(self, api, lease_id):
        return []


class StandInCalls:
    """Answers at once, if the cluster answers."""

    def __init__(self):
        self.keys, self.answers, self.api = [], True, None

    def put(self, key, make, on_answer=None, again_after_s=0.0, **options):
        if again_after_s == float("inf") and key in self.keys:
            return
        self.keys.append(key)
        if self.answers:
            on_answer(make(self.api))


class StandInApi:
    def __init__(self):
        self.ended_pods, self.deleted_names = [], []

    def delete(self, pod, grace_s=None):
        self.ended_pods.append((pod.name, grace_s))

    def delete_namespaced_pod(self, name, namespace):
        self.deleted_names.append((namespace, name))


class StandInExecutor:
    def __init__(self):
        self.running, self.queued_tasks, self.calls, self.kube_client = set(), {}, StandInCalls(), StandInApi()

    def is_publishing(self, key):
        return key in self.running or key in self.queued_tasks


class Bench:
    def __init__(self):
        self.cluster, self.executor, self.now = StandInCluster(), StandInExecutor(), 0.0
        self.deleter = self.executor.kube_client
        self.adapter = ClusterAdapter(self.cluster, self.executor, 600, lambda: self.now)

    def hand_over(self, key="k"):
        self.adapter.note_handed_over(key, LEASE.id)
        self.executor.running.add(key)

    def put(self, cause=PodCause.RUNNING, exit_code=None, message="", **fields):
        state = PodState(cause, message, exit_code=exit_code)
        self.cluster.there[LEASE.id] = LeasedPod(LEASE.id, "p", "ns", "u", "gpu-1", state, **fields)

    def refuse_claim(self, why):
        """The cluster has an event of the pod."""
        event = SimpleNamespace(message=f'PodResourceClaim d: create ResourceClaim : "p-d-x" is forbidden: {why}')
        self.executor.calls.api = SimpleNamespace(
            list_namespaced_event=lambda namespace, field_selector: SimpleNamespace(items=[event])
        )

    def drop(self):
        self.cluster.deleted.add(self.cluster.there.pop(LEASE.id))

    def delete_marked_pods(self):
        """Those that were deleted so far, with their grace times."""
        self.adapter.delete_marked_pods()
        return self.deleter.ended_pods

    def termination_cause(self):
        return self.adapter.status(LEASE.id).termination_cause

    def look(self, state="running", is_ours=True):
        return self.adapter.liveness(LeasedProcess(LEASE, state, is_ours=is_ours))


@pytest.fixture
def bench():
    return Bench()


def test_a_pod_that_is_there_lives_and_one_that_has_ended_is_gone(bench):
    bench.hand_over()
    for cause in (PodCause.STARTING, PodCause.RUNNING, PodCause.IMAGE):
        bench.put(cause)
        assert bench.look() is Liveness.ALIVE
    bench.put(PodCause.SUCCEEDED, is_over=True)
    assert bench.look() is Liveness.GONE
    assert (bench.adapter.handed_over, bench.executor.running) == ({}, set())


def test_a_deleted_pod_counts_as_running_until_it_has_ended(bench):
    bench.put(PodCause.DELETED, is_ending=True)
    assert bench.look() is Liveness.ALIVE
    bench.drop()
    assert bench.look() is Liveness.GONE


def test_the_liveness_in_a_cluster_that_does_not_answer_is_unknown(bench):
    bench.hand_over()
    bench.cluster.is_synced = False
    assert bench.look() is Liveness.UNKNOWN


def test_a_pod_that_is_still_to_be_made_may_start(bench):
    bench.hand_over()
    bench.now = 1000
    assert bench.look("queued") is Liveness.UNKNOWN
    bench.adapter.unseen.note_sent(LEASE.id, "ns", "p")
    assert bench.look("queued") is Liveness.UNKNOWN, "the call may be made again"
    bench.adapter.unseen.note_made(LEASE.id)
    bench.now += ASK_AFTER_S - 1
    assert bench.look("queued") is Liveness.UNKNOWN
    assert bench.executor.calls.keys == []


def test_a_pod_that_the_watch_does_not_show_is_gone_only_when_the_cluster_says_so(bench):
    bench.hand_over()
    bench.adapter.unseen.note_sent(LEASE.id, "ns", "p")
    bench.adapter.unseen.note_made(LEASE.id)
    bench.executor.calls.answers = False
    bench.now = 10 * ASK_AFTER_S
    for state in ("queued", "running", "success"):
        assert bench.look(state) is Liveness.UNKNOWN
    assert set(bench.executor.calls.keys) == {("find", LEASE.id)}
    bench.executor.calls.answers = True
    bench.look("queued")
    assert bench.look("queued") is Liveness.GONE
    assert not bench.adapter.is_current(LEASE.id), "what is gone must not be made any more"
    assert bench.deleter.deleted_names == [("ns", "p")], "and it is told to end"


def test_a_pod_that_was_never_sent_is_gone_when_its_task_is_over(bench):
    bench.hand_over()
    bench.executor.running.clear()
    bench.now = ASK_AFTER_S
    bench.look("success")
    assert bench.look("success") is Liveness.GONE
    assert bench.deleter.deleted_names == []


def test_a_pod_that_was_sent_is_deleted_when_its_task_is_withdrawn(bench):
    bench.hand_over()
    bench.adapter.unseen.note_sent(LEASE.id, "ns", "p")
    bench.executor.calls.answers = False
    assert bench.adapter.withdraw("k", LEASE.id)
    assert bench.deleter.deleted_names == [("ns", "p")]
    assert not bench.adapter.is_current(LEASE.id)
    assert bench.look("queued") is Liveness.UNKNOWN, "it may exist"
    bench.executor.calls.answers = True
    bench.look("queued")
    assert bench.look("queued") is Liveness.GONE


def test_a_pod_that_appears_after_its_lease_has_ended_is_deleted(bench):
    bench.hand_over()
    bench.adapter.end_lease(LEASE.id)
    bench.put()
    assert bench.delete_marked_pods() == [], "our watch may be late"
    bench.now = 60
    assert bench.delete_marked_pods() == [("p", None)]


def test_the_liveness_of_a_dead_schedulers_queued_task_is_unknown(bench):
    assert bench.look("queued", is_ours=False) is Liveness.UNKNOWN
    bench.look("running", is_ours=False)
    assert bench.look("running", is_ours=False) is Liveness.GONE, "the cluster was asked"


def test_on_a_node_that_is_lost_nothing_is_waited_for_and_its_pod_ends_when_it_comes_back(bench):
    bench.hand_over()
    bench.put()
    bench.cluster.lost.add("gpu-1")
    assert bench.look() is Liveness.GONE
    assert bench.delete_marked_pods() == [("p", None)]
    assert bench.delete_marked_pods() == [("p", None)] * 2
    bench.drop()
    bench.adapter.delete_marked_pods()
    assert len(bench.deleter.ended_pods) == 2


def test_a_pod_is_made_once(bench):
    assert not bench.adapter.is_current(LEASE.id)
    bench.hand_over()
    assert (bench.adapter.is_current(LEASE.id), bench.adapter.has_pod(LEASE.id)) == (True, False)
    bench.put(PodCause.UNASSIGNED)
    assert bench.adapter.has_pod(LEASE.id)
    bench.put(PodCause.FAILED, is_over=True)
    assert (bench.adapter.is_current(LEASE.id), bench.adapter.has_pod(LEASE.id)) == (True, False)
    assert bench.adapter.ended_pod_id(LEASE.id) == "u"
    bench.adapter.end_lease(LEASE.id)
    assert not bench.adapter.is_current(LEASE.id)
    bench.hand_over()
    assert bench.adapter.is_current(LEASE.id), "handed over again, as after an adoption"


def test_a_waiting_pod_can_be_withdrawn_and_a_running_one_can_not(bench):
    bench.hand_over()
    bench.put(PodCause.RUNNING)
    assert not bench.adapter.withdraw("k", LEASE.id)
    bench.put(PodCause.IMAGE)
    assert bench.adapter.withdraw("k", LEASE.id)
    assert bench.delete_marked_pods() == [("p", None)]
    assert bench.look("scheduled") is Liveness.ALIVE, "until it is gone"
    bench.drop()
    assert bench.look("scheduled") is Liveness.GONE


def test_a_pod_that_is_not_created_yet_is_withdrawn_at_once(bench):
    bench.hand_over()
    assert bench.adapter.withdraw("k", LEASE.id)
    assert not bench.adapter.is_current(LEASE.id)
    assert bench.look("queued") is Liveness.GONE


def test_a_pod_that_finds_no_room_is_taken_back_after_a_while(bench, caplog):
    bench.hand_over()
    for cause, at in ((PodCause.UNSCHEDULABLE, 0), (PodCause.UNASSIGNED, 50), (PodCause.UNSCHEDULABLE, 55)):
        bench.now = at
        bench.put(cause)
        assert bench.look("queued") is Liveness.ALIVE
    bench.now = 55 + UNSCHEDULABLE_TIMEOUT_S - 1
    bench.look("queued")
    assert bench.delete_marked_pods() == []
    bench.now += 1
    bench.look("queued")
    assert bench.delete_marked_pods() == [("p", None)]
    assert "has been unschedulable" in caplog.text


@pytest.mark.parametrize("message", ["", *WAITS_FOR_CLAIM])
def test_a_pod_whose_claim_a_quota_refuses_is_taken_back_and_the_quota_is_named(bench, message):
    bench.hand_over()
    bench.refuse_claim(QUOTA)
    bench.put(PodCause.UNSCHEDULABLE if message else PodCause.UNASSIGNED, message=message, has_claim=True)
    bench.look("queued")
    assert bench.executor.calls.keys == [], "the event may come yet"
    for bench.now in (5, 10):
        assert bench.look("queued") is Liveness.ALIVE
    assert bench.adapter.status(LEASE.id).wait_reason == Reason(ReasonCode.QUOTA, "a claim for ns/p", QUOTA)
    assert bench.delete_marked_pods() == [("p", None)]
    bench.drop()
    assert (bench.look("queued"), bench.adapter.status(LEASE.id).refusal) == (Liveness.GONE, QUOTA)


@pytest.mark.parametrize(
    ("cause", "message", "has_claim", "reads"),
    [
        (PodCause.UNSCHEDULABLE, WAITS_FOR_CLAIM[0], True, 1),
        (PodCause.UNSCHEDULABLE, "cannot allocate all claims", True, 0),
        (PodCause.STARTING, "", True, 0),
        (PodCause.UNASSIGNED, "", False, 0),
    ],
)
def test_a_pod_that_no_quota_refuses_is_asked_about_once_at_most(bench, cause, message, has_claim, reads):
    bench.hand_over()
    bench.refuse_claim("no such template")
    bench.put(cause, message=message, has_claim=has_claim)
    for bench.now in (0, 5, 10, 59):
        bench.look("queued")
    assert (len(bench.executor.calls.keys), bench.adapter.status(LEASE.id).refusal) == (reads, "")
    assert bench.delete_marked_pods() == []


def test_a_pod_that_is_too_late_for_its_token_is_created_again(bench, caplog):
    bench.hand_over()
    bench.put(PodCause.IMAGE)
    bench.now = 419
    bench.look("queued")
    bench.put(PodCause.RUNNING)
    bench.now = 10_000
    bench.look()
    assert bench.delete_marked_pods() == []
    bench.put(PodCause.STARTING)
    assert bench.look("queued") is Liveness.ALIVE
    assert bench.delete_marked_pods() == [("p", None)]
    assert "has not started within 420 s" in caplog.text


def test_a_deletion_spares_what_has_ended_and_stops_what_is_to_be_made(bench):
    bench.hand_over()
    bench.adapter.delete(LEASE.id, 1)
    assert bench.look("queued") is Liveness.GONE
    bench.put()
    bench.adapter.delete(LEASE.id, 1)
    bench.put(is_over=True)
    bench.adapter.delete(LEASE.id, 1)
    assert bench.deleter.ended_pods == [("p", 1)]


@pytest.mark.parametrize("cause", PodCause)
def test_the_deletion_of_a_pod_is_no_failure_of_its_task(bench, cause):
    bench.put(cause, is_over=True)
    lost = {PodCause.EVICTED, PodCause.PREEMPTED, PodCause.NODE_LOST, PodCause.REFUSED, PodCause.DELETED}
    broken = TerminationCause(worker_problem="") if cause is PodCause.NODE_BROKEN else None
    assert bench.termination_cause() == (TerminationCause() if cause in lost else broken)


def test_a_pod_that_the_kernel_killed_for_memory_tells_how_much_it_might_use_also_once_it_is_gone(bench):
    bench.put(PodCause.OOM_KILLED, 137, is_over=True, memory_bytes=2**30)
    assert bench.termination_cause() == TerminationCause(is_out_of_memory=True, host_memory_bytes=2**30)
    bench.drop()
    assert bench.termination_cause() == TerminationCause(is_out_of_memory=True, host_memory_bytes=2**30)


@pytest.mark.parametrize("exit_code", [None, 0])
def test_the_memory_of_a_container_beside_the_tasks_own_is_not_the_tasks_matter(bench, exit_code):
    bench.put(PodCause.OOM_KILLED, exit_code, is_over=True, memory_bytes=2**30)
    assert bench.termination_cause() is None


def test_a_pod_that_was_made_is_not_absent():
    unseen = UnseenPods(None, None, now=lambda: 0.0)
    unseen.note_refused("l")
    assert unseen.is_absent("l", 0.0)
    unseen.note_made("l")
    assert not unseen.is_absent("l", 0.0)
