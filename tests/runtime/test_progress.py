"""What a task tells of its progress: to its supervisor, and in its log."""

import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from hetero_airflow.clock import Clock
from hetero_airflow.contract.progress import PROGRESS, Progress, ProgressPhase, read_progress
from hetero_airflow.errors import RequestError
from hetero_airflow.runtime import progress, progress_file
from hetero_airflow.runtime.checkpoint_session import MAX_STEPS, CheckpointSession
from hetero_airflow.runtime.progress_file import ProgressFile
from hetero_airflow.runtime.step_loop import StepLoop
from hetero_airflow.settings import CONTROL_VARIABLE
from hetero_airflow.testing import FakeClock
from tests.runtime.conftest import Begin

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_the_first_step_a_checkpoint_and_a_phase_are_written_at_once_further_steps_once_a_second(tmp_path) -> None:
    progress = ProgressFile(tmp_path, FakeClock(NOW))
    assert read_progress(tmp_path) is None
    progress.enter(ProgressPhase.STARTING)
    assert read_progress(tmp_path) == Progress(at=NOW)
    progress.done(5)
    assert read_progress(tmp_path) == Progress(step=5, at=NOW, phase=ProgressPhase.STEPPING)
    progress.done(6)
    assert read_progress(tmp_path).step == 5
    progress.saved(6, NOW)
    expected = Progress(step=6, at=NOW, saved_step=6, saved_at=NOW, phase=ProgressPhase.STEPPING)
    assert read_progress(tmp_path) == expected
    progress.enter(ProgressPhase.DONE)
    assert read_progress(tmp_path) == expected.model_copy(update={"phase": ProgressPhase.DONE})
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]


def test_a_step_within_the_interval_is_not_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(progress_file, "INTERVAL_S", 3600)
    progress = ProgressFile(tmp_path)
    for step in range(2000):
        progress.done(step)
    assert read_progress(tmp_path).step == 0
    monkeypatch.setattr(progress_file, "INTERVAL_S", 0)
    progress.saved(1999, NOW)
    progress.done(2000)
    assert read_progress(tmp_path).step == 2000


def test_a_missing_folder_is_logged_once_and_raises_nothing(tmp_path, caplog) -> None:
    progress = ProgressFile(tmp_path / "gone", FakeClock(NOW))
    for step in range(3):
        progress.saved(step, NOW)
    assert len(caplog.records) == 1


def test_an_incomplete_file_is_not_progress(tmp_path, caplog) -> None:
    (tmp_path / PROGRESS).write_text('{"step": 3')
    assert read_progress(tmp_path) is None
    assert "can't be read" in caplog.text


def test_the_file_is_small_whatever_the_step(tmp_path) -> None:
    progress = ProgressFile(tmp_path)
    progress.saved(10**11, NOW)
    progress.done(10**11)
    assert os.stat(tmp_path / PROGRESS).st_size < 250


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


@pytest.fixture
def task_control(tmp_path, monkeypatch):
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def test_a_reported_step_reaches_the_supervisor(task_control):
    progress(7, total=100)
    written = read_progress(task_control)
    assert (written.step, written.total, written.phase, written.can_save) == (7, 100, ProgressPhase.STEPPING, False)


def test_the_total_may_be_unknown(task_control):
    progress(0)
    assert (read_progress(task_control).step, read_progress(task_control).total) == (0, None)


def test_a_loop_that_saves_keeps_the_file_for_itself(task_control):
    clock: Clock = type("Fixed", (), {"now": lambda self: datetime(2026, 1, 1, tzinfo=UTC)})()
    ProgressFile(task_control, clock).done(50, 60)
    before = (task_control / PROGRESS).read_bytes()
    progress(3)
    assert (task_control / PROGRESS).read_bytes() == before


def test_other_ranks_and_a_process_without_an_executor_report_nothing(task_control, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    progress(3)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv(CONTROL_VARIABLE)
    progress(3)
    assert list(task_control.iterdir()) == []


@pytest.mark.parametrize(
    ("step", "total", "field"),
    [
        (-1, None, "step"),
        (1.5, None, "step"),
        (float("nan"), None, "step"),
        (True, None, "step"),
        (None, None, "step"),
        ("3", None, "step"),
        (10**18, None, "step"),
        (3, 3, "step"),
        (0, 0, "step"),
        (3, -1, "total"),
        (3, 7.0, "total"),
    ],
)
def test_what_is_no_step_is_refused_with_its_name(task_control, step, total, field):
    with pytest.raises(RequestError) as caught:
        progress(step, total)
    assert caught.value.field == field
    assert list(task_control.iterdir()) == []
