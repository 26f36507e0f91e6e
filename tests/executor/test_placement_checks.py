"""Placement checks wait like device tasks, and start with an answer but never with a lease."""

import pytest

from hetero_airflow.contract.placement_check import read_answer
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess


@pytest.fixture
def ask(bench):
    """Adds a placement check of that name; returns its request id."""

    def _ask(name, device="gpu", **arguments):
        id_ = bench.hold(name, device, **arguments)
        task = bench.dispatcher.queue.tasks.pop(name)
        bench.dispatcher.checks.add(task.workload, task.requested, task.since)
        return id_

    return _ask


@pytest.fixture
def busy(bench):
    """A task that runs on all devices."""
    id_ = bench.hold("train", "gpu:2")
    bench.beat()
    bench.run(id_)


def answers(bench):
    answers_by_key = {workload.key: read_answer(workload.ti.context_carrier) for workload in bench.engine.started}
    return {key: answer for key, answer in answers_by_key.items() if answer}


def test_a_probe_waits_for_room_and_takes_none(bench, ask):
    bench.hold("train", "gpu:2")
    bench.beat()
    ask("room", "gpu:2")
    bench.beat()
    assert (list(bench.dispatcher.checks.tasks), answers(bench)) == (["room"], {})
    bench.keeper.end("train", "the task ended")
    bench.beat(1)
    assert answers(bench)["room"].device_ids == ("GPU-0", "GPU-1")
    assert bench.dispatcher.checks.tasks == {}
    snapshot = bench.store.snapshot()
    assert (snapshot.leases, snapshot.pending) == ((), ())


def test_a_task_that_needs_the_device_comes_before_the_question(bench, ask):
    ask("room", "gpu:2")
    bench.hold("train", "gpu")
    bench.beat()
    assert bench.started == ["train"]
    assert list(bench.dispatcher.checks.tasks) == ["room"]


def test_a_check_that_has_waited_too_long_is_answered(bench, ask, busy):
    ask("room", "gpu", wait_timeout="1m")
    bench.beat()
    bench.beat(61)
    assert "asked to wait at most 60 s" in answers(bench)["room"].problem
    assert bench.reports == []


def test_a_check_for_devices_that_do_not_exist_is_refused_at_once(bench, ask):
    ask("room", "h100:8")
    bench.beat()
    answer = answers(bench)["room"]
    assert answer.is_final
    assert "No known worker can ever run this" in answer.problem


def test_a_probe_that_airflow_does_not_want_any_more_is_forgotten(bench, ask):
    bench.hold("train", "gpu:2")
    id_ = ask("room")
    bench.beat()
    bench.tasks.rows[id_] = TaskProcess("failed")
    bench.beat(2)
    assert (bench.dispatcher.checks.tasks, answers(bench)) == ({}, {})


def test_a_probe_is_kept_fresh_and_gets_a_new_token(bench, ask, busy):
    id_ = ask("room")
    for _ in range(4):
        bench.beat(50)
    assert id_ in bench.tasks.refreshed[-1][0]
    bench.engine.alive.clear()
    bench.keeper.end("train", "the task ended")
    bench.beat(1)
    assert (list(answers(bench)), bench.tokens) == (["room"], ["train", "room"])


def test_a_check_with_a_template_is_answered_once_that_is_rendered(bench, ask):
    for name, device in {"room": "gpu:{{ params.n }}", "wrong": "gpu:-{{ params.n }}"}.items():
        ask(name)
        bench.dispatcher.checks.tasks[name].requested = {"device": device}
    bench.beat_until(lambda: len(answers(bench)) == 2)
    assert answers(bench)["room"].device_ids == ("GPU-0", "GPU-1")
    assert "can't be read" in answers(bench)["wrong"].problem
    assert answers(bench)["wrong"].is_final
