"""What counts of the ends that an engine reports."""

from dataclasses import replace

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.executor import HeteroExecutor
from hetero_airflow.executor.leases import recovery

SUCCESS, FAILED = TaskInstanceState.SUCCESS, TaskInstanceState.FAILED


@pytest.fixture(autouse=True)
def no_task_state_store(monkeypatch):
    monkeypatch.setattr(recovery, "read_states", lambda keys, name: {})
    monkeypatch.setattr(recovery, "write_state", lambda key, name, text: None)


@pytest.fixture
def executor(bench, monkeypatch):
    """The executor, whose engine reports ends without saying of which run."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    executor = HeteroExecutor(parallelism=4)
    bench.engine.traits = replace(bench.engine.traits, names_runs=False)
    bench.store.invalidate = lambda: None
    executor._engine = bench.engine
    executor._use(bench.dispatcher)
    bench.pass_on = executor._report
    return executor


def hand_over(bench):
    id_ = bench.hold("a")
    bench.beat()
    return id_, bench.lease(id_)


def lose(bench, id_):
    """The process of the run is gone; Airflow schedules the task again, with the same try."""
    bench.engine.alive.clear()
    bench.beat(5, times=4)
    assert bench.tasks.sent_back == [id_]
    bench.tasks.rows[id_] = replace(bench.tasks.rows[id_], state="scheduled")


def run_again(bench, id_):
    """The task is placed for its second run, which has not begun: Airflow's row still names the first one."""
    row = bench.tasks.rows[id_]
    bench.hold("a")
    bench.tasks.rows[id_] = replace(row, state="queued")
    bench.beat(1)
    assert bench.started == ["a", "a"]


def is_over(bench):
    """Whether a report of a failure counts."""
    return bench.end("a", FAILED)[1]


def ends(executor):
    """The states that Airflow's scheduler gets."""
    return {key: state for key, (state, _) in executor.get_event_buffer().items()}


def test_a_failure_report_of_a_task_that_runs_all_the_same_is_not_believed(bench):
    """A copy that a dead scheduler had dispatched got there first; ours was turned away by Airflow."""
    id_, lease = hand_over(bench)
    bench.run(id_)
    assert not is_over(bench)
    bench.engine.alive.clear()
    assert not is_over(bench), "its supervisor failed; the next looks find out what is left"
    bench.engine.alive = {lease.id: [100]}
    bench.tasks.rows[id_] = TaskProcess("failed", 100, "here", bench.clock.now())
    assert is_over(bench)


def test_a_pod_that_failed_runs_no_more(bench):
    id_, _ = hand_over(bench)
    bench.run(id_)
    bench.on_a_cluster({})
    assert is_over(bench)


@pytest.mark.parametrize("state", [SUCCESS, FAILED])
def test_the_report_of_a_run_that_was_lost_does_not_end_the_next_one(bench, executor, state):
    """A worker was frozen, and wakes up at any time of the task's second run."""
    id_, _ = hand_over(bench)
    bench.run(id_)
    lose(bench, id_)
    executor._process_ends({"a": (state, None)}, bench.clock.now())
    assert ends(executor) == {}, "Airflow would fail the task that it is about to queue"
    run_again(bench, id_)
    assert not executor._process_ends({"a": (state, None)}, bench.clock.now()), "before the second run has begun"
    bench.clock.advance(1)
    bench.run(id_)
    bench.engine.alive.clear()  # no heartbeat of the worker's agent has named it yet
    assert not executor._process_ends({"a": (state, None)}, bench.clock.now()), "after it has begun"
    assert (ends(executor), list(bench.runs.leased)) == ({}, ["a"])


def test_a_report_that_was_not_believed_counts_as_soon_as_airflow_agrees(bench, executor):
    """EdgeExecutor reports a task once: the end of the second run comes without a report."""
    id_, _ = hand_over(bench)
    bench.run(id_)
    assert not executor._process_ends({"a": (FAILED, None)}, bench.clock.now())
    assert not executor._process_ends({}, bench.clock.now())
    bench.tasks.rows[id_] = TaskProcess("success", 100, "here", bench.clock.now())
    assert executor._process_ends({}, bench.clock.now())
    assert bench.runs.leased == {}
    assert ends(executor) == {"a": FAILED}, "Airflow ignores it: the task has its state"


def test_the_report_of_another_schedulers_run_is_judged_alike(bench, executor, make_bench):
    """The scheduler that saw the first run died: the next one knows nothing of it."""
    id_, lease = hand_over(bench)
    bench.run(id_)
    heir = make_bench(bench.store, clock=bench.clock, engine=bench.engine, tasks=bench.tasks)
    executor._use(heir.dispatcher)
    heir.take_over("a", lease)
    assert not executor._process_ends({"a": (FAILED, None)}, bench.clock.now())
    assert list(heir.runs.leased) == ["a"]


def test_a_task_that_was_rescheduled_and_queued_at_once_is_over(bench, executor):
    """As with a sensor that pokes again soon: the report of its first leg comes when the next one waits."""
    id_, lease = hand_over(bench)
    bench.run(id_)
    row = bench.tasks.rows[id_]
    bench.hold("a")
    bench.tasks.rows[id_] = replace(row, state="queued")
    bench.engine.alive.clear()
    assert executor._process_ends({"a": (SUCCESS, None)}, bench.clock.now())
    assert ends(executor) == {}
    bench.beat(1)
    assert bench.started == ["a", "a"]
    assert bench.lease(id_).token > lease.token


def test_ends_that_never_come_do_not_pile_up(bench, monkeypatch):
    monkeypatch.setattr("hetero_airflow.executor.run_index.MAX_REMEMBERED", 2)
    for name in ("a", "b", "c"):
        id_ = bench.start(name)
        bench.engine.alive.clear()
        bench.tasks.rows[id_] = TaskProcess("success", 100, "here", bench.clock.now())
        bench.beat(5, times=3)
    assert list(bench.runs.unreported) == ["b", "c"]
