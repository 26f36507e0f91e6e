"""Chains of tasks on few devices: the next task waits for the devices of the one before it, not for other work.

A process outlives its task by some hundred milliseconds: Airflow has queued the next task of the chain by then.
"""

import random
from datetime import timedelta

import pytest

from hetero_airflow.executor import command_runner
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.policies import load_policy
from hetero_airflow.testing import a_device, a_worker


@pytest.fixture(autouse=True)
def _without_state_store(monkeypatch):
    monkeypatch.setattr(command_runner, "write_state", lambda key, name, text: None)


@pytest.fixture(params=["assignment", "priority"])
def bench(request, make_bench):
    """One with three devices."""
    devices = tuple(a_device(f"GPU-{number}") for number in range(3))
    bench = make_bench(policy=load_policy(request.param), worker=a_worker(devices=devices))
    yield bench
    bench.dispatcher.resolver.close()


def preempted(bench):
    return [lease.request_id for lease in bench.store.snapshot().leases if lease.state is LeaseState.PREEMPTED]


def end(bench, request_id, name):
    """Airflow knows that the task has ended. Its process is still there."""
    bench.tasks.rows[request_id] = TaskProcess("success", 100, "here", bench.clock.now())


def leave(bench, request_id, name):
    """The process is gone, and the engine reports the end."""
    bench.engine.alive.pop(bench.lease(request_id).id)
    bench.end(name)


def end_a_training(bench):
    """A high task on two devices has just ended, and a low one runs on the third; the request ids of both."""
    train = bench.start("train", "gpu:2", priority="high")
    low = bench.start("low", "gpu", priority="low")
    bench.beat(400)
    end(bench, train, "train")
    return train, low


def test_the_next_task_of_a_chain_waits_for_the_devices_of_the_one_before(bench):
    train, low = end_a_training(bench)
    evaluate = bench.hold("evaluate", "gpu", priority="high")
    bench.beat(0.1)
    assert preempted(bench) == []
    leave(bench, train, "train")
    bench.beat(0.1)
    assert bench.lease(evaluate).state is LeaseState.GRANTED
    assert bench.lease(low).state is LeaseState.ACTIVE


def test_a_process_that_stays_does_not_hold_up_the_next_task_for_long(bench):
    train, low = end_a_training(bench)
    bench.hold("evaluate", "gpu", priority="high")
    bench.beat(0.1)
    bench.tasks.rows[train] = TaskProcess("success", 100, "here", bench.clock.now() - timedelta(seconds=31))
    bench.beat(31)
    assert preempted(bench) == [low]


def test_a_task_that_needs_more_than_what_ends_preempts(bench):
    train, low = end_a_training(bench)
    bench.hold("evaluate", "gpu:3", priority="high")
    bench.beat(0.1)  # with the lease of the task that has ended
    leave(bench, train, "train")
    bench.beat(0.1)
    assert preempted(bench) == [low]


@pytest.mark.parametrize("seed", range(20))
def test_no_chain_preempts_for_what_its_last_task_gives_back(bench, seed):
    rng = random.Random(seed)
    first_size = rng.choice([1, 2])
    running = bench.start("task-0", f"gpu:{first_size}", priority="high")
    for number in range(3 - first_size):
        bench.start(f"low-{number}", "gpu", priority="low")
    name, size = "task-0", first_size
    for step in (1, 2):
        bench.beat(rng.uniform(301, 900))
        end(bench, running, name)
        next_name, size = f"task-{step}", rng.randint(1, size)
        following = bench.hold(next_name, f"gpu:{size}", priority="high")
        for _ in range(rng.randint(1, 5)):
            bench.beat(rng.uniform(0.05, 0.4))
        assert preempted(bench) == []
        leave(bench, running, name)
        bench.beat(rng.uniform(0.05, 0.4))
        bench.run(following)
        running, name = following, next_name
    assert preempted(bench) == []


@pytest.mark.parametrize("policy", ["assignment", "priority"])
def test_the_notice_names_the_priority_where_it_is_the_reason(make_bench, policy):
    bench = make_bench(policy=load_policy(policy), worker=a_worker(devices=(a_device("GPU-0"),)))
    low = bench.start("low", "gpu", priority="low")
    bench.beat(400)
    bench.hold("urgent", "gpu", priority="urgent")
    bench.beat(0.1)
    assert preempted(bench) == [low]
    ((_, text),) = bench.notes
    assert "dag.urgent (run) has the priority urgent, this task has low" in text
    bench.dispatcher.resolver.close()
