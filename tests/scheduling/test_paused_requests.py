from __future__ import annotations

from dataclasses import replace

from sqlalchemy import NullPool, create_engine

from hetero_airflow.model.plan import PAUSED, Place, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.paused_requests import decide_without_paused
from hetero_airflow.scheduling.validation import ValidatedPolicy, plan_faults
from hetero_airflow.store import tables
from hetero_airflow.store.queue_changes import Pause
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_pending, a_worker


def paused(name, *args, **kwargs):
    return replace(a_pending(name, *args, **kwargs), is_paused=True)


def test_a_paused_request_waits_behind_all_others_and_reserves_nothing():
    pending = (paused("first", "gpu:2", priority="urgent"), a_pending("second", at_s=1), a_pending("third", "h100"))
    snapshot = Snapshot(1, (a_worker(),), pending=pending)
    plan = ValidatedPolicy(PriorityPolicy()).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    assert [place.request_id for place in plan.places] == ["second"]
    last = plan.decisions[-1]
    assert (last.request_id, last.reason, isinstance(last, Wait)) == ("first", PAUSED, True)


def test_a_gang_waits_for_its_paused_member():
    members = (
        replace(a_pending("a", "gpu"), gang="g", gang_size=2),
        replace(paused("b", "gpu"), gang="g", gang_size=2),
    )
    plan = decide_without_paused(PriorityPolicy().decide, Snapshot(1, (a_worker(),), pending=members), EPOCH)
    assert not any(isinstance(decision, Place) for decision in plan.decisions)


def test_a_paused_request_wants_no_worker():
    snapshot = Snapshot(1, (a_worker(),), pending=(paused("a", "gpu:2"), paused("b", "gpu:2")))
    assert (wanted_workers(snapshot).waiting, sum(row.workers for row in wanted_workers(snapshot).types)) == (0, 0)


def test_a_cycle_places_a_request_once_it_is_unpaused(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a"))], EPOCH)
    store.change_queue([Pause("a")])
    cycle = Cycle(store, PriorityPolicy(), FakeEngine(), 60)
    assert [wait.reason for wait in cycle.run(EPOCH).waiting] == [PAUSED]
    store.change_queue([Pause("a", is_paused=False)])
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["a"]
