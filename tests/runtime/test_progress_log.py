"""What a task's log says of its progress."""

import logging
from collections.abc import Callable, Iterator

import pytest

from hetero_airflow.runtime.checkpoint_session import MAX_STEPS, CheckpointSession
from hetero_airflow.runtime.step_loop import StepLoop

Begin = Callable[..., CheckpointSession]


@pytest.fixture
def lines(caplog) -> Iterator[Callable[[], list[str]]]:
    """The lines about progress so far."""
    caplog.set_level(logging.INFO, "hetero_airflow.runtime.progress_log")
    return lambda: [record.message for record in caplog.records if record.name == "hetero_airflow.runtime.progress_log"]


def run(session: CheckpointSession, total: int, step_s: float, every: int = 100) -> None:
    now = [0.0]
    for _ in StepLoop(session, total, every, state={"sum": 0}, monotonic=lambda: now[0]):
        now[0] += step_s
        session.wait()  # so that the published checkpoint does not depend on the machine


def test_a_line_each_30_s_has_the_place_the_speed_the_time_left_and_the_last_checkpoint(begin: Begin, lines) -> None:
    run(begin(), 1000, step_s=0.5)
    assert lines()[0] == "Step 59 of 1,000, 2.0 steps/s, about 7 min 50 s left, no checkpoint yet"
    assert lines()[1] == "Step 119 of 1,000, 2.0 steps/s, about 7 min 20 s left, last checkpoint at step 99, 9B"
    assert lines()[-1] == "All 1,000 steps are done, 2.0 steps/s, last checkpoint at step 999, 9B"
    assert len(lines()) == 500 // 30 + 1


def test_slow_steps_are_shown_by_their_length(begin: Begin, lines) -> None:
    run(begin(), 3, step_s=100, every=1)
    assert lines() == [
        "Step 1 of 3, 1 min 40 s per step, about 1 min 40 s left, last checkpoint at step 0, 9B",
        "All 3 steps are done, 1 min 40 s per step, last checkpoint at step 2, 9B",
    ]


def test_short_loops_write_one_line_and_finished_ones_too(begin: Begin, lines) -> None:
    run(begin(), 3, step_s=0.1)
    run(begin(), 3, step_s=0.1)
    assert lines() == [
        "All 3 steps are done, 10.0 steps/s, last checkpoint at step 2, 9B",
        "All 3 steps are done, last checkpoint at step 2, 9B",
    ]


def test_a_loop_of_unknown_length_shows_no_time_left(begin: Begin, lines) -> None:
    now = [0.0]
    loop = StepLoop(begin(), MAX_STEPS, 100, state={"sum": 0}, monotonic=lambda: now[0])
    for step in range(loop.begin(), 61):
        now[0] += 0.5
        loop.after(step)
    loop.end()
    assert lines() == [
        "Step 59, 2.0 steps/s, no checkpoint yet",
        "Step 60 was the last, 2.0 steps/s, no checkpoint yet",
    ]


def test_only_the_first_rank_writes(begin: Begin, lines, monkeypatch) -> None:
    monkeypatch.setattr("hetero_airflow.runtime.progress_log.rank", lambda: 1)
    run(begin(), 3, step_s=100)
    assert lines() == []
