from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.engines.engine import LeaseStatus, WorkerChanges
from hetero_airflow.executor.leases.cluster_events import STARTING_TIME, ClusterEvents
from hetero_airflow.model.plan import Place, Plan, Reason, ReasonCode
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore

LATER = EPOCH + STARTING_TIME
FULL = Reason(ReasonCode.BUSY, "a container", "0/1 nodes are available")


class StandInCluster:
    def __init__(self):
        self.changes, self.reasons = WorkerChanges(), {}

    def poll(self):
        changes, self.changes = self.changes, WorkerChanges()
        return changes

    def status(self, lease_id):
        return LeaseStatus(wait_reason=self.reasons.get(lease_id))


class Bench:
    def __init__(self):
        self.store, self.engine, self.notes = SqliteStore(), StandInCluster(), []
        self.cluster_events = ClusterEvents(self.store, self.engine, lambda key, text: self.notes.append((key, text)))

    def reason(self):
        return self.store.request_history("dag", "run", "r1").decisions[0]["reason"]


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def lease(bench):
    bench.store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r1"))], EPOCH)
    plan = Plan((a_place("r1", **{"GPU-0": 1000}),))
    assert isinstance(plan.decisions[0], Place)
    return bench.store.commit(plan, EPOCH, EPOCH + timedelta(hours=1)).leases[0]


def test_nodes_come_and_go_in_the_store(bench):
    ready, unready = a_worker("a"), a_worker("b").model_copy(update={"state": WorkerState.LOST})
    bench.engine.changes = WorkerChanges((ready, unready), lost=("b",))
    bench.cluster_events.record_workers(EPOCH)
    assert {worker.id: worker.state for worker in bench.store.snapshot().workers} == {"a": "online", "b": "lost"}
    bench.engine.changes = WorkerChanges(alive=("a",))
    bench.cluster_events.record_workers(LATER)
    assert bench.store.last_seen()["a"] == LATER


def test_why_a_pod_waits_is_explained_and_noted_once_until_it_runs(bench, lease):
    bench.engine.reasons[lease.id] = FULL
    bench.cluster_events.record_wait_reasons([("k", lease)], LATER - timedelta(seconds=1))
    assert (bench.reason(), bench.notes) == (None, [])
    for _ in range(3):
        bench.cluster_events.record_wait_reasons([("k", lease)], LATER)
    assert bench.reason()["found"] == FULL.found
    assert bench.notes == [("k", "Placed on worker-a, but it does not run yet: 0/1 nodes are available")]
    bench.engine.reasons[lease.id] = replace(FULL, code=ReasonCode.RUNTIME, found="Back-off pulling image")
    bench.cluster_events.record_wait_reasons([("k", lease)], LATER)
    assert (bench.reason()["code"], len(bench.notes)) == ("runtime", 2)
    bench.engine.reasons.clear()
    bench.cluster_events.record_wait_reasons([("k", lease)], LATER)
    assert bench.reason() is None


def test_an_engine_without_a_cluster_is_not_asked(bench):
    events = ClusterEvents(bench.store, None, lambda key, text: None)
    events.record_workers(EPOCH)
    events.record_wait_reasons([("k", None)], EPOCH)
