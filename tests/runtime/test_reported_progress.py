from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hetero_airflow.clock import Clock
from hetero_airflow.errors import RequestError
from hetero_airflow.runtime import progress
from hetero_airflow.runtime.progress_file import PROGRESS, Phase, ProgressFile, read_progress
from hetero_airflow.settings import CONTROL_VARIABLE


@pytest.fixture
def control(tmp_path, monkeypatch):
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def test_a_reported_step_reaches_the_supervisor(control):
    progress(7, total=100)
    written = read_progress(control)
    assert (written.step, written.total, written.phase, written.can_save) == (7, 100, Phase.STEPPING, False)


def test_the_total_may_be_unknown(control):
    progress(0)
    assert (read_progress(control).step, read_progress(control).total) == (0, None)


def test_a_loop_that_saves_keeps_the_file_for_itself(control):
    clock: Clock = type("Fixed", (), {"now": lambda self: datetime(2026, 1, 1, tzinfo=UTC)})()
    ProgressFile(control, clock).done(50, 60)
    before = (control / PROGRESS).read_bytes()
    progress(3)
    assert (control / PROGRESS).read_bytes() == before


def test_other_ranks_and_a_process_without_an_executor_report_nothing(control, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    progress(3)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv(CONTROL_VARIABLE)
    progress(3)
    assert list(control.iterdir()) == []


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
def test_what_is_no_step_is_refused_with_its_name(control, step, total, field):
    with pytest.raises(RequestError) as caught:
        progress(step, total)
    assert caught.value.field == field
    assert list(control.iterdir()) == []
