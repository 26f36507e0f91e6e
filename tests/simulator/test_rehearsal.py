from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.heft import Heft
from hetero_airflow.simulator.rehearsal import Miss, PlannedTask, rehearse
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import Submitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

A100 = "nvidia/a100-sxm4-40gb"
GPU, GPUS = DeviceRequest.parse("gpu"), DeviceRequest.parse("gpu:2")
NOW = EPOCH + timedelta(seconds=100)
KNOWN = Estimates(
    {("dag", "train"): {A100: 1.0}, ("other", "long"): {A100: 2.0}},
    {("dag", "train"): Interval(50, 60, 90), ("other", "long"): Interval(360, 400, 600)},
)


def a_snapshot(*, running: bool = True, waiting: bool = False) -> Snapshot:
    """Two A100; one task has held one of them for 100 s; of 200 s, as is known."""
    store = MemoryStore()
    store.record([WorkerSeen(a_worker())], EPOCH)
    if running:
        store.record([Submitted(a_pending("r1", dag_id="other", task_id="long"))], EPOCH)
        store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, NOW)
    if waiting:
        store.record([Submitted(a_pending("r2", "gpu:2", 50, dag_id="other", task_id="long"))], NOW)
    return replace(store.snapshot(), estimates=KNOWN)


def test_tasks_run_in_their_order_and_what_stands_is_in_their_way():
    tasks = [
        PlannedTask("fetch", ("dag", "fetch"), None, duration_s=Interval(5, 10, 20)),
        PlannedTask("train", ("dag", "train"), GPUS, after=("fetch",)),
        PlannedTask("tell", ("dag", "tell"), None, after=("train",), duration_s=Interval(1, 1, 1)),
    ]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW)
    fetch, train, tell = rehearsal.tasks
    assert (fetch.start_s, fetch.end_s) == ((0, 0, 0), (5, 10, 20))
    assert train.ready_s == (5, 10, 20)
    assert train.start_s == pytest.approx((80, 100, 200))
    assert train.end_s == pytest.approx((130, 160, 290))
    assert (train.worker_id, train.device_class, train.is_assumed) == ("worker-a", A100, False)
    assert train.wait_s == pytest.approx(90)
    assert tell.end_s == rehearsal.end_s == pytest.approx((131, 161, 291))
    assert (rehearsal.misses, rehearsal.standing) == ((), 1)


def test_a_policy_knows_what_comes_after_what():
    """Of three tasks for one device, the last goes first, since another one waits for it."""
    names = ("a", "b", "c")
    tasks = [PlannedTask(name, ("dag", name), GPU) for name in names]
    tasks.append(PlannedTask("end", ("dag", "end"), GPU, after=("c",)))
    works = {("dag", name): Interval(10, 10, 10) for name in (*names, "end")}
    known = Estimates({name: {A100: 1.0} for name in works} | KNOWN.speeds, works | KNOWN.works)
    snapshot = replace(a_snapshot(), estimates=known)
    started = {policy: [task.id for task in rehearse(snapshot, tasks, policy(), NOW).tasks] for policy in (Fifo, Heft)}
    assert (started[Fifo][0], started[Heft][0]) == ("a", "c")


def test_who_waits_already_keeps_its_place():
    tasks = [PlannedTask("train", ("dag", "train"), GPU)]
    rehearsal = rehearse(a_snapshot(waiting=True), tasks, Fifo(), NOW)
    assert rehearsal.tasks[0].start_s.middle == pytest.approx(100 + 200)


def test_a_run_that_starts_later_is_told_of_from_its_own_start():
    tasks = [PlannedTask("train", ("dag", "train"), GPUS)]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW, starts_in_s=70)
    assert rehearsal.tasks[0].start_s == pytest.approx((10, 30, 130))


def test_an_unknown_duration_is_assumed_and_marked():
    tasks = [PlannedTask("train", ("dag", "new"), GPU), PlannedTask("fetch", ("dag", "fetch"), None)]
    told = {one.id: one for one in rehearse(a_snapshot(running=False), tasks, Fifo(), NOW, assumed_s=7).tasks}
    assert [(told[name].end_s.middle, told[name].is_assumed) for name in ("train", "fetch")] == [(7, True), (7, True)]


def test_what_would_go_wrong_is_told():
    hasty = DeviceRequest.parse("gpu:2", wait_timeout="1m")
    tasks = [
        PlannedTask("huge", ("dag", "huge"), DeviceRequest.parse("h100:8")),
        PlannedTask("after", ("dag", "after"), None, after=("huge",)),
        PlannedTask("hasty", ("dag", "train"), hasty),
        PlannedTask("short", ("dag", "train"), GPU, limit_s=30),
    ]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW, deadline_s=120)
    assert {miss.id for miss in rehearsal.misses} == {"huge", "after", "hasty", "short"}
    impossible = "no known worker could ever run 8 × nvidia/h100: model: asked nvidia/h100, found nvidia/a100-sxm4-40gb"
    assert Miss("huge", impossible) in rehearsal.misses
    assert Miss("after", "comes after huge, which would not end well") in rehearsal.misses
    assert Miss("hasty", "waits 100 s for 2 × gpu, longer than its 60 s") in rehearsal.misses
    assert Miss("short", "ends the run after 220 s, later than 120 s") in rehearsal.misses
    assert Miss("short", "runs 60 s, longer than its execution_timeout of 30 s") in rehearsal.misses
    assert [task.id for task in rehearsal.tasks] == ["hasty", "short"]


def test_a_planned_task_may_have_the_name_of_one_that_stands():
    tasks = [PlannedTask("r1", ("dag", "train"), GPU)]
    assert [task.id for task in rehearse(a_snapshot(), tasks, Fifo(), NOW).tasks] == ["r1"]


def test_a_run_that_takes_longer_than_its_estimate_can_explain_is_assumed_to_go_on():
    tasks = [PlannedTask("train", ("dag", "train"), GPUS)]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW + timedelta(days=9), assumed_s=50)
    assert rehearsal.tasks[0].start_s == (50, 50, 50)
