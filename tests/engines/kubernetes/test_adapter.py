import pytest

from hetero_airflow.engines.engine import LeasedProcess, Liveness, TerminationCause
from hetero_airflow.engines.kubernetes.adapter import POD_VISIBLE_TIMEOUT_S, UNSCHEDULABLE_TIMEOUT_S, ClusterAdapter
from hetero_airflow.engines.kubernetes.states.causes import PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState
from hetero_airflow.engines.kubernetes.watch.leased_pods import DeletedPods, LeasedPod
from hetero_airflow.testing import a_lease

LEASE = a_lease("r", "gpu-1")


class StandInCluster:
    site = None

    def __init__(self):
        self.is_synced, self.there, self.deleted, self.lost = True, {}, DeletedPods(), set()

    def is_lost(self, worker_id):
        return worker_id in self.lost

    def worker_id(self, node):
        return node

    def pods(self):
        return self.there


class StandInExecutor:
    def __init__(self):
        self.running, self.queued_tasks, self.publishing = set(), {}, False

    def is_publishing(self):
        return self.publishing


class StandInDeleter:
    def __init__(self):
        self.ended_pods = []

    def delete(self, pod, grace_s=None):
        self.ended_pods.append((pod.name, grace_s))


class Bench:
    def __init__(self):
        self.cluster, self.executor, self.deleter, self.now = StandInCluster(), StandInExecutor(), StandInDeleter(), 0.0
        self.adapter = ClusterAdapter(self.cluster, self.deleter, self.executor, 600, lambda: self.now)

    def hand_over(self, key="k"):
        self.adapter.note_handed_over(key, LEASE.id)
        self.executor.running.add(key)

    def put(self, cause=PodCause.RUNNING, exit_code=None, **fields):
        state = PodState(cause, exit_code=exit_code)
        self.cluster.there[LEASE.id] = LeasedPod(LEASE.id, "p", "ns", "u", "gpu-1", state, **fields)

    def drop(self):
        self.cluster.deleted.add(self.cluster.there.pop(LEASE.id))

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
    assert bench.look("queued") is Liveness.UNKNOWN
    bench.now = POD_VISIBLE_TIMEOUT_S + 1
    bench.executor.publishing = True
    assert bench.look("queued") is Liveness.UNKNOWN
    bench.executor.publishing = False
    assert bench.look("queued") is Liveness.GONE
    assert not bench.executor.is_current(LEASE.id), "what is gone must not be made any more"


def test_a_pod_that_was_never_seen_is_gone_when_its_task_is_over(bench):
    bench.hand_over()
    assert bench.look("success") is Liveness.GONE


def test_the_liveness_of_a_dead_schedulers_queued_task_is_unknown(bench):
    assert bench.look("queued", is_ours=False) is Liveness.UNKNOWN
    assert bench.look("running", is_ours=False) is Liveness.GONE


def test_on_a_node_that_is_lost_nothing_is_waited_for_and_its_pod_ends_when_it_comes_back(bench):
    bench.hand_over()
    bench.put()
    bench.cluster.lost.add("gpu-1")
    assert bench.look() is Liveness.GONE
    for _ in range(2):
        bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == [("p", None)] * 2
    bench.drop()
    bench.adapter.delete_marked_pods()
    assert len(bench.deleter.ended_pods) == 2


def test_a_pod_is_made_once(bench):
    assert not bench.executor.is_current(LEASE.id)
    bench.hand_over()
    assert bench.executor.is_current(LEASE.id)
    bench.put(PodCause.UNASSIGNED)
    assert not bench.executor.is_current(LEASE.id)
    bench.put(PodCause.FAILED, is_over=True)
    assert bench.executor.is_current(LEASE.id)
    bench.adapter.end_lease(LEASE.id)
    assert not bench.executor.is_current(LEASE.id)
    bench.hand_over()
    assert bench.executor.is_current(LEASE.id), "handed over again, as after an adoption"


def test_a_waiting_pod_can_be_withdrawn_and_a_running_one_can_not(bench):
    bench.hand_over()
    bench.put(PodCause.RUNNING)
    assert not bench.adapter.withdraw("k", LEASE.id)
    bench.put(PodCause.IMAGE)
    assert bench.adapter.withdraw("k", LEASE.id)
    bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == [("p", None)]
    assert bench.look("scheduled") is Liveness.ALIVE, "until it is gone"
    bench.drop()
    assert bench.look("scheduled") is Liveness.GONE


def test_a_pod_that_is_not_created_yet_is_withdrawn_at_once(bench):
    bench.hand_over()
    assert bench.adapter.withdraw("k", LEASE.id)
    assert not bench.executor.is_current(LEASE.id)
    assert bench.look("queued") is Liveness.GONE


def test_a_pod_that_finds_no_room_is_taken_back_after_a_while(bench, caplog):
    bench.hand_over()
    for cause, at in ((PodCause.UNSCHEDULABLE, 0), (PodCause.UNASSIGNED, 50), (PodCause.UNSCHEDULABLE, 55)):
        bench.now = at
        bench.put(cause)
        assert bench.look("queued") is Liveness.ALIVE
    bench.now = 55 + UNSCHEDULABLE_TIMEOUT_S - 1
    bench.look("queued")
    bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == []
    bench.now += 1
    bench.look("queued")
    bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == [("p", None)]
    assert "has been unschedulable" in caplog.text


def test_a_pod_that_is_too_late_for_its_token_is_created_again(bench, caplog):
    bench.hand_over()
    bench.put(PodCause.IMAGE)
    bench.now = 419
    bench.look("queued")
    bench.put(PodCause.RUNNING)
    bench.now = 10_000
    bench.look()
    bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == []
    bench.put(PodCause.STARTING)
    assert bench.look("queued") is Liveness.ALIVE
    bench.adapter.delete_marked_pods()
    assert bench.deleter.ended_pods == [("p", None)]
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
    assert bench.termination_cause() == (TerminationCause() if cause in lost else None)


def test_a_pod_that_the_kernel_killed_for_memory_tells_how_much_it_might_use_also_once_it_is_gone(bench):
    bench.put(PodCause.OOM_KILLED, 137, is_over=True, memory_bytes=2**30)
    assert bench.termination_cause() == TerminationCause(is_out_of_memory=True, host_memory_bytes=2**30)
    bench.drop()
    assert bench.termination_cause() == TerminationCause(is_out_of_memory=True, host_memory_bytes=2**30)


@pytest.mark.parametrize("exit_code", [None, 0])
def test_the_memory_of_a_container_beside_the_tasks_own_is_not_the_tasks_matter(bench, exit_code):
    bench.put(PodCause.OOM_KILLED, exit_code, is_over=True, memory_bytes=2**30)
    assert bench.termination_cause() is None
