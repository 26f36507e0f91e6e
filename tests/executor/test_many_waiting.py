"""What thousands of waiting tasks cost the scheduler's loop, in calls and not in seconds."""

import uuid
from collections import Counter
from dataclasses import replace

from hetero_airflow.executor import pending_task, wait_logs
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.wait_logs import WaitLogs
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Account, Reason, ReasonCode, Wait
from hetero_airflow.policies import load_policy

WAITING = 40
GPU = "nvidia/a100-sxm4-40gb"


def a_wait(position: int = 1, code: ReasonCode = ReasonCode.BUSY) -> Wait:
    return Wait("id", position, Reason(code, "2 × gpu", "none free"), Account("priority", "waits"))


def log_lines(monkeypatch) -> list[str]:
    """The lines in the logs of tasks."""
    lines: list[str] = []
    monkeypatch.setattr(pending_task, "write_task_log", lambda path, text, now: lines.append(text))
    return lines


def end_one(bench) -> None:
    """The oldest running task ends, so that the next one starts and all others move up."""
    key = next(iter(bench.runs.leased))
    lease = bench.runs.leased[key].lease
    bench.tasks.rows[lease.request_id] = TaskProcess("success")
    bench.finish(key)


def hold_many(bench) -> None:
    for number in range(WAITING):
        bench.hold(f"task-{number}")


def test_the_logs_of_many_new_tasks_do_not_delay_the_loop_and_all_say_in_the_end_why_they_wait(bench, monkeypatch):
    """There is no time for more than one line in a heartbeat, as on a busy disk."""
    lines = log_lines(monkeypatch)
    monkeypatch.setattr(wait_logs, "_LOG_S", 0.0)
    hold_many(bench)
    bench.beat()
    assert (bench.started, len(lines)) == (["task-0", "task-1"], 1)
    bench.beat(times=WAITING)
    assert [line.split("(")[-1] for line in lines] == [f"place {place} in the queue)" for place in range(1, 39)]


def test_a_heartbeat_writes_a_limited_number_of_lines(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    monkeypatch.setattr(wait_logs, "_LOG_LINES", 10)
    monkeypatch.setattr(wait_logs, "_LOG_S", 60.0)
    hold_many(bench)
    written = []
    for _ in range(5):
        bench.beat(1)
        written.append(len(lines))
    assert written == [10, 20, 30, 38, 38]


def test_a_new_place_is_written_every_30_s_at_most_and_nothing_without_a_change(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    monkeypatch.setattr(wait_logs, "_LOG_S", 60.0)
    hold_many(bench)
    bench.beat(1)
    assert len(lines) == 38
    for _ in range(5):  # the queue moves within the pause
        end_one(bench)
        bench.beat(1)
    assert len(lines) == 38
    bench.beat(30)
    assert len(lines) == 38 + 33
    assert lines[38].endswith("(place 1 in the queue)")
    assert lines[-1].endswith("(place 33 in the queue)")
    bench.beat(31, times=5)
    assert len(lines) == 38 + 33


def test_days_in_a_moving_queue_do_not_fill_the_disk(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    bench.hold("running", "gpu:2")
    bench.hold("moved", "gpu:2")
    bench.beat()
    task = bench.queued["moved"]
    wait = task.unlogged_wait or a_wait()
    for minute in range(24 * 60):
        task.unlogged_wait = wait._replace(position=minute + 2)
        bench.dispatcher.wait_logs.write([task], bench.store.snapshot(), bench.clock.advance(60))
    assert task.waited_s(bench.clock.now()) > 86000
    assert 60 < len(lines) < 150


def test_another_kind_of_reason_is_written_after_30_s_even_after_hours(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    bench.hold("running", "gpu:2")
    bench.hold("waiting", "gpu:2")
    bench.beat(1)
    task = bench.queued["waiting"]
    for position, code in ((2, ReasonCode.BUSY), (2, ReasonCode.API_SERVER)):
        bench.clock.advance(10 * 3600)
        task.unlogged_wait = a_wait(position, code)
        bench.dispatcher.wait_logs.write([task], bench.store.snapshot(), bench.clock.advance(1))
    before = len(lines)
    task.unlogged_wait = a_wait(3, ReasonCode.API_SERVER)
    bench.dispatcher.wait_logs.write([task], bench.store.snapshot(), bench.clock.advance(31))
    assert len(lines) == before, "only its place is new"
    task.unlogged_wait = a_wait(3, ReasonCode.HEALTH)
    bench.dispatcher.wait_logs.write([task], bench.store.snapshot(), bench.clock.advance(1))
    assert len(lines) == before + 1
    assert task.unlogged_wait is None


def test_a_decision_that_still_holds_is_not_carried_out_again(bench, monkeypatch):
    hold_many(bench)
    bench.beat()
    bench.beat()  # the placements of the first one have changed the state
    calls: Counter[str] = Counter()
    count = PendingTask.log_wait
    monkeypatch.setattr(PendingTask, "log_wait", lambda *arguments: calls.update(["log"]) or count(*arguments))
    bench.beat()
    assert calls == {}


def test_the_id_of_a_request_is_made_once(bench, monkeypatch):
    hold_many(bench)
    bench.beat()
    texts, as_text = [], uuid.UUID.__str__
    monkeypatch.setattr(uuid.UUID, "__str__", lambda id_: texts.append(id_) or as_text(id_))
    bench.beat()
    assert texts == []


def test_a_line_has_the_expected_start_where_the_durations_are_known(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    known = Estimates({("dag", "running"): {GPU: 1.0}}, {("dag", "running"): Interval(500, 600, 700)})
    bench.hold("running", "gpu:2")
    bench.hold("waiting", "gpu:2")
    bench.hold("last", "gpu:2")
    bench.beat(1)
    snapshot, tasks = bench.store.snapshot(), [bench.queued["waiting"], bench.queued["last"]]
    for task in tasks:
        task.unlogged_wait = a_wait()
    lines.clear()
    logs = WaitLogs(lambda plain: replace(plain, estimates=known), load_policy("priority").decide, None)
    logs.write(tasks, snapshot, bench.clock.advance(60))
    assert lines[0].endswith("(place 1 in the queue). Expected start: in about 9 min (7 min 19 s to 10 min 39 s)")
    assert "Expected start" not in lines[1], "nobody knows how long the one before it takes"
    tasks[0].unlogged_wait = a_wait()
    logs.write(tasks, snapshot, bench.clock.advance(600))
    assert len(lines) == 2, "another expected start alone is no new line"
