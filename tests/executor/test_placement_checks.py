"""Placement checks wait like device tasks, and start with an answer but never with a lease."""

from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.contract.placement_check import PlacementAnswer, read_answer
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.placement_checks import RECHECK, PlacementChecker, answer_of
from hetero_airflow.model.plan import Place, Refuse, Wait
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_pending, a_worker


@pytest.fixture
def ask(bench):
    """Adds a placement check of that name; returns its request id."""
    return bench.ask


@pytest.fixture
def busy(bench):
    """A task that runs on all devices."""
    bench.start("train", "gpu:2")


def answers(bench):
    answers_by_key = {workload.key: read_answer(workload.ti.context_carrier) for workload in bench.engine.started}
    return {key: answer for key, answer in answers_by_key.items() if answer}


def test_a_probe_waits_for_room_and_takes_none(bench, ask):
    bench.hold("train", "gpu:2")
    bench.beat()
    ask("room", "gpu:2")
    bench.beat(times=3)
    assert (list(bench.runs.checking), answers(bench)) == (["room"], {})
    bench.end("train")
    bench.beat(1)
    answer = answers(bench)["room"]
    assert (answer.worker_id, answer.device_ids, answer.problem) == ("worker-a", ("GPU-0", "GPU-1"), "")
    assert bench.started == ["train", "room"]
    assert bench.runs.checking == {}
    snapshot = bench.store.snapshot()
    assert (snapshot.leases, snapshot.pending) == ((), ())


def test_a_task_that_needs_the_device_comes_before_the_question(bench, ask):
    ask("room", "gpu:2")
    bench.hold("train", "gpu")
    bench.beat()
    assert bench.started == ["train"]
    assert list(bench.runs.checking) == ["room"]


def test_a_check_that_has_waited_too_long_is_answered(bench, ask, busy):
    ask("room", "gpu", wait_timeout="1m")
    bench.beat()
    bench.beat(61)
    assert "asked to wait at most 60 s" in answers(bench)["room"].problem
    assert bench.reports == []


@pytest.mark.parametrize("device", ["h100:8", "nvidia/b200:8"])
def test_a_check_for_devices_that_do_not_exist_is_refused_at_once(bench, ask, device):
    ask("room", device)
    bench.beat()
    answer = answers(bench)["room"]
    assert answer.is_final
    assert "No known worker can ever run this" in answer.problem


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_probe_that_airflow_does_not_want_any_more_is_forgotten(bench, ask, state):
    bench.hold("train", "gpu:2")
    id_ = ask("room")
    bench.beat()
    bench.tasks.rows[id_] = TaskProcess(state)
    bench.beat(2)
    assert (bench.runs.checking, answers(bench)) == ({}, {})


def test_a_probe_is_kept_fresh_and_gets_a_new_token(bench, ask, busy):
    id_ = ask("room")
    bench.beat(50, times=4)
    assert id_ in bench.tasks.refreshed[-1][0]
    bench.finish("train")
    bench.beat(1)
    assert (list(answers(bench)), bench.tokens) == (["room"], ["train", "room"])


def test_a_check_with_a_template_is_answered_once_that_is_rendered(bench, ask):
    for name, device in {"room": "gpu:{{ params.n }}", "wrong": "gpu:-{{ params.n }}"}.items():
        ask(name)
        bench.runs.checking[name].task.requested = {"device": device}
    bench.beat_until(lambda: len(answers(bench)) == 2)
    assert answers(bench)["room"].device_ids == ("GPU-0", "GPU-1")
    assert "can't be read" in answers(bench)["wrong"].problem
    assert answers(bench)["wrong"].is_final


FREE = Snapshot(1, (a_worker("here"),))
HALF = replace(FREE, sequence=2, usage={("here", "GPU-0"): DeviceUsage(1000)})
FULL = replace(FREE, sequence=3, usage={("here", "GPU-0"): DeviceUsage(1000), ("here", "GPU-1"): DeviceUsage(1000)})


class Counting:
    """A policy that counts its decisions."""

    def __init__(self, policy=None):
        self.policy = policy or PriorityPolicy()
        self.snapshots = []

    def decide(self, snapshot, now):
        self.snapshots.append(snapshot)
        return self.policy.decide(snapshot, now)


def checker(policy=None):
    return PlacementChecker(policy or PriorityPolicy(), lambda worker_id: worker_id == "here")


def decided(snapshot, *requests, policy=None):
    decisions = checker(policy).decide(requests, snapshot, EPOCH)
    return {id_: type(decision) for id_, decision in decisions.items()}


@pytest.mark.parametrize(
    ("snapshot", "device", "outcome"),
    [
        (FREE, "gpu:2", Place),
        (HALF, "gpu:2", Wait),
        (HALF, "gpu", Place),
        (FULL, "gpu", Wait),
        (FREE, "gpu:3", Refuse),
        (replace(FREE, workers=(a_worker("elsewhere"),)), "gpu", Wait),
    ],
)
def test_the_answer_is_what_the_policy_would_do_now(snapshot, device, outcome):
    assert decided(snapshot, a_pending("check", device)) == {"check": outcome}


def test_the_first_request_is_served_first():
    waiting = replace(HALF, pending=(a_pending("first", "gpu:2"),))
    assert decided(waiting, a_pending("check", "gpu", at_s=1), policy=Fifo()) == {"check": Wait}
    assert decided(waiting, a_pending("check", "gpu", at_s=-1), policy=Fifo()) == {"check": Place}


def test_nothing_is_taken_back_for_a_probe():
    policy = Counting()
    checker(policy).decide([a_pending("check")], replace(FULL, can_preempt=True), EPOCH)
    assert not policy.snapshots[0].can_preempt


def test_one_decision_a_round_and_none_while_nothing_changes():
    policy = Counting()
    checks = checker(policy)
    requests = [a_pending("a", "gpu"), a_pending("b", "gpu"), a_pending("c", "gpu:2")]
    rounds = [sorted(checks.decide(requests, FULL, EPOCH)) for _ in range(4)]
    assert rounds == [["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"]]
    assert len(policy.snapshots) == 2
    checks.decide(requests, replace(FULL, sequence=9), EPOCH)
    checks.decide(requests, replace(FULL, sequence=9), EPOCH + timedelta(seconds=1))
    assert len(policy.snapshots) == 4
    checks.decide(requests, replace(FULL, sequence=9), EPOCH + RECHECK)
    assert len(policy.snapshots) == 5


def test_each_kind_of_probe_gets_its_turn():
    checks, seen = checker(), set()
    requests = [a_pending(f"check {number}", f"gpu:{number}") for number in (1, 2)]
    for sequence in range(10, 14):
        decisions = checks.decide(requests, replace(FREE, sequence=sequence), EPOCH + timedelta(seconds=sequence))
        seen |= {id_ for id_, decision in decisions.items() if isinstance(decision, Place)}
    assert seen == {"check 1", "check 2"}


def test_probes_do_not_stand_in_each_others_way():
    policy = Counting()
    checks = checker(policy)
    requests = [a_pending("a", "gpu:2", dag_id="x"), a_pending("b", "gpu:2", dag_id="y")]
    checks.decide(requests, FREE, EPOCH)
    decisions = checks.decide(requests, FREE, EPOCH)
    assert [type(decisions[id_]) for id_ in "ab"] == [Place, Place]
    assert [len(snapshot.pending) for snapshot in policy.snapshots] == [1, 1]


def test_a_policy_that_raises_is_stood_in_for():
    class Broken:
        def decide(self, snapshot, now):
            raise ZeroDivisionError

    assert decided(FREE, a_pending("check"), policy=Broken()) == {"check": Place}


def test_the_answer_says_where():
    place = checker().decide([a_pending("check", "gpu")], HALF, EPOCH)["check"]
    assert answer_of(place) == PlacementAnswer(worker_id="here", device_ids=("GPU-1",))
