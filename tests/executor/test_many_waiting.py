"""What thousands of waiting tasks cost the scheduler's loop, in calls and not in seconds."""

from __future__ import annotations

import uuid
from collections import Counter

from hetero_airflow.executor import pending_task
from hetero_airflow.executor.pending_task import PendingTask

WAITING = 40


def log_lines(monkeypatch) -> list[str]:
    """The lines in the logs of tasks. There is no time for more than one in a heartbeat, as on a busy disk."""
    lines: list[str] = []
    monkeypatch.setattr(pending_task, "write_task_log", lambda path, text, now: lines.append(text))
    monkeypatch.setattr(pending_task, "_LOG_S", 0.0, raising=False)
    return lines


def hold_many(bench) -> None:
    for number in range(WAITING):
        bench.hold(f"task-{number}")


def test_the_logs_of_many_new_tasks_do_not_delay_the_loop_and_all_say_in_the_end_why_they_wait(bench, monkeypatch):
    lines = log_lines(monkeypatch)
    hold_many(bench)
    bench.beat()
    assert (bench.started, len(lines)) == (["task-0", "task-1"], 1)
    for _ in range(WAITING):
        bench.beat()
    reasons = [task.logged_reason for task in bench.queue.tasks.values()]
    assert lines == [f"{reason} (place {place} in the queue)" for place, reason in enumerate(reasons, 1)]


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
