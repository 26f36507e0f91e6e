import os
from datetime import UTC, datetime

from hetero_airflow.runtime import progress_file
from hetero_airflow.runtime.progress_file import PROGRESS, Phase, Progress, ProgressFile, read_progress
from hetero_airflow.testing import FakeClock

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_the_first_step_a_checkpoint_and_a_phase_are_written_at_once_further_steps_once_a_second(tmp_path) -> None:
    progress = ProgressFile(tmp_path, FakeClock(NOW))
    assert read_progress(tmp_path) is None
    progress.enter(Phase.STARTING)
    assert read_progress(tmp_path) == Progress(at=NOW)
    progress.done(5)
    assert read_progress(tmp_path) == Progress(step=5, at=NOW, phase=Phase.STEPPING)
    progress.done(6)
    assert read_progress(tmp_path).step == 5
    progress.saved(6, NOW)
    expected = Progress(step=6, at=NOW, saved_step=6, saved_at=NOW, phase=Phase.STEPPING)
    assert read_progress(tmp_path) == expected
    progress.enter(Phase.DONE)
    assert read_progress(tmp_path) == expected.model_copy(update={"phase": Phase.DONE})
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
