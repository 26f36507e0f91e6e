import errno
import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.contract.notice import NOTICE, Stopped
from hetero_airflow.contract.progress import ProgressPhase, read_progress
from hetero_airflow.errors import CheckpointStoreUnavailable, FencedOut, InvalidCheckpoint, RequestError
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.gang.ranks import RankCollectives
from hetero_airflow.runtime.step_loop import SaveInterval, StepLoop
from tests.runtime.conftest import Begin


class Counting:
    """A state of one number."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class SaveOnly:
    """A state that can't be restored."""

    def state_dict(self) -> dict[str, int]:
        return {}


def run(session: CheckpointSession, total: int, at_step: Callable[[int], Any] = lambda step: None, every: Any = 2):
    """Steps that were done, and the sum of them and of those before."""
    counting, done = Counting(), []
    for step in StepLoop(session, total, every, state=counting):
        counting.value += step
        done.append(step)
        at_step(step)
    return done, counting.value


def stop_of(loop: Callable[[], object]) -> Stopped:
    """What a loop raises that got a notice."""
    with pytest.raises(Stopped) as stopped:
        loop()
    return stopped.value


def saved_state(begin: Begin) -> tuple[int, Any] | None:
    last = begin().latest()
    return last and (last.step, last.state["value"])


def test_all_steps_are_done_and_the_last_checkpoint_is_final(begin: Begin, control: Path) -> None:
    assert run(begin(), 5) == ([0, 1, 2, 3, 4], 10)
    last = begin().latest()
    assert (last.step, last.is_final, last.state) == (4, True, {"value": 10})
    assert run(begin(), 5) == ([], 0 + 10)
    assert read_progress(control).phase is ProgressPhase.DONE


@pytest.mark.parametrize("stop_at", range(5))
def test_a_notice_loses_no_step(begin: Begin, control: Path, notice, stop_at: int) -> None:
    session = begin()
    with pytest.raises(Stopped) as stopped:
        run(session, 6, lambda step: notice() if step == stop_at else None, every="1h")
    assert (stopped.value.step, stopped.value.cause) == (stop_at, "preempted by train/fit")
    assert read_progress(control).phase is ProgressPhase.STOPPING
    assert saved_state(begin) == (stop_at, sum(range(stop_at + 1)))
    (control / NOTICE).unlink()
    assert run(begin(), 6) == (list(range(stop_at + 1, 6)), 15)


def test_a_notice_in_the_last_step_stops_nothing(begin: Begin, notice) -> None:
    assert run(begin(), 3, lambda step: notice() if step == 2 else None, every="1h") == ([0, 1, 2], 3)
    assert begin().latest().is_final


def test_a_notice_before_the_first_step_stops_at_once(begin: Begin, control: Path, notice) -> None:
    notice()
    assert stop_of(lambda: run(begin(), 3)).step is None
    assert saved_state(begin) is None


def test_a_notice_while_the_model_warms_up_is_heeded_after_the_first_step(begin: Begin, control: Path, notice) -> None:
    def compile_and_warm_up(step: int) -> None:
        assert read_progress(control).phase is ProgressPhase.STARTING
        notice()

    assert stop_of(lambda: run(begin(), 3, compile_and_warm_up, every="1h")).step == 0
    assert saved_state(begin) == (0, 0)


def test_a_notice_in_an_evaluation_between_steps_is_heeded_after_it(begin: Begin, notice) -> None:
    evaluated = []

    def evaluate(step: int) -> None:
        if step == 1:
            notice()
            evaluated.extend(range(100))

    assert stop_of(lambda: run(begin(), 6, evaluate, every="1h")).step == 1
    assert len(evaluated) == 100


class SlowStore(FilesystemStore):
    """Waits before it publishes until the test lets it go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_saving, self.may_go_on = threading.Event(), threading.Event()

    def put(self, key: str, source: Path) -> None:
        self.is_saving.set()
        assert self.may_go_on.wait(600)
        super().put(key, source)


def test_a_notice_while_a_save_runs_waits_for_it_and_saves_the_step_after(begin: Begin, tmp_path, notice) -> None:
    store = SlowStore(tmp_path / "store")

    def at_step(step: int) -> None:
        if step == 2:  # the save of step 1 has begun
            assert store.is_saving.wait(600)
            notice()
            store.may_go_on.set()

    assert stop_of(lambda: run(begin(store=store), 6, at_step)).step == 2
    assert saved_state(begin) == (2, 3)


class FullStore(FilesystemStore):
    """Its disk is full when some steps are saved."""

    def __init__(self, root: Path, *full_at: int) -> None:
        super().__init__(root)
        self.full_at = full_at

    def put(self, key: str, source: Path) -> None:
        if any(f"/{step:012}-" in key for step in self.full_at):
            raise CheckpointStoreUnavailable("write", found="No space left on device", remedy="Free space")
        super().put(key, source)


def test_a_full_disk_at_a_notice_keeps_the_last_checkpoint_and_stops(begin: Begin, tmp_path, notice, caplog) -> None:
    session = begin(store=FullStore(tmp_path / "store", 2))
    assert stop_of(lambda: run(session, 6, lambda step: notice() if step == 2 else None)).step == 1
    assert "No space left" in caplog.text
    assert "Step 2 is lost" in caplog.text
    assert saved_state(begin) == (1, 1)


def test_a_full_temporary_folder_at_a_notice_does_the_same(begin: Begin, notice, monkeypatch, caplog) -> None:
    def full(staged, folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    session = begin()

    def at_step(step: int) -> None:
        if step == 2:
            session.wait()
            monkeypatch.setattr("hetero_airflow.runtime.checkpoint_session.write_state", full)
            notice()

    assert stop_of(lambda: run(session, 6, at_step)).step == 1
    assert "TMPDIR" in caplog.text


def test_a_training_survives_a_store_that_does_not_answer_for_a_while(begin: Begin, tmp_path, caplog) -> None:
    assert run(begin(store=FullStore(tmp_path / "store", 3)), 8)[0] == list(range(8))
    assert saved_state(begin) == (7, 28)
    assert "The checkpoint of step 3 is not saved" in caplog.text


def test_the_last_save_has_to_succeed(begin: Begin, tmp_path) -> None:
    with pytest.raises(CheckpointStoreUnavailable):
        run(begin(store=FullStore(tmp_path / "store", 3)), 4)


@pytest.mark.parametrize("has_notice", [False, True])
def test_a_later_run_fences_the_earlier_one_out_notice_or_not(begin: Begin, notice, has_notice: bool) -> None:
    old = begin(token=7)

    def at_step(step: int) -> None:
        if step == 3:
            old.wait()
            begin(token=8).latest()
            if has_notice:
                notice()

    with pytest.raises(FencedOut):
        run(old, 9, at_step, every=3)
    assert begin(token=8).latest().step == 2


def test_a_loop_without_a_state_saves_when_it_is_due(begin: Begin, notice) -> None:
    session, saved = begin(), []

    def loop() -> None:
        for step in StepLoop(session, 20, every=4):
            if step == 9:
                notice()
            if session.is_due():
                session.save(step, {"step": step}, metrics=None, files=None, wait=False, final=False)
                saved.append(step)

    assert stop_of(loop).step == 9
    assert saved == [3, 7, 9]
    assert begin().latest().state == {"step": 9}


def test_a_notice_between_the_body_and_the_boundary_waits_for_the_next_save(begin: Begin, notice) -> None:
    session, done = begin(), []

    def loop() -> None:
        for step in StepLoop(session, 20, every="1h"):
            if session.is_due():
                session.save(step, step, metrics=None, files=None, wait=False, final=False)
            done.append(step)
            if step == 5:
                notice()

    assert stop_of(loop).step == 6
    assert done == [0, 1, 2, 3, 4, 5, 6]


def test_time_is_measured_from_save_to_save(begin: Begin) -> None:
    session, now, saved = begin(), [0.0], []
    for step in StepLoop(session, 10, every="10s", monotonic=lambda: now[0]):
        now[0] += 4
        if session.is_due():
            session.save(step, None, metrics=None, files=None, wait=True, final=False)
            saved.append(step)
    assert saved == [2, 5, 8]


def test_a_step_that_fails_is_done_again_from_the_last_checkpoint(begin: Begin) -> None:
    session = begin()
    with pytest.raises(ZeroDivisionError):
        run(session, 9, lambda step: 1 / (step - 6))
    session.wait()
    assert run(begin(), 9) == ([6, 7, 8], sum(range(9)))


@pytest.mark.parametrize("every", ["0s", 0, -1, math.nan, True, "often"])
def test_an_invalid_interval_is_refused_before_anything_changes(every, begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        StepLoop(begin(), 10, every)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("total", [-1, True, 1.5, None, 10**13])
def test_a_total_that_is_not_a_number_of_steps_is_refused(total, begin: Begin) -> None:
    with pytest.raises(RequestError) as caught:
        StepLoop(begin(), total, 1)
    assert caught.value.field == "total"


def test_a_state_that_could_not_be_restored_is_refused_by_its_place(begin: Begin) -> None:
    with pytest.raises(RequestError) as caught:
        StepLoop(begin(), 10, 1, state={"a": Counting(), "b": {"c": SaveOnly()}})
    assert caught.value.field == "state['b']['c']"


def test_a_state_under_another_name_is_refused(begin: Begin) -> None:
    for _ in StepLoop(begin(), 2, 1, state={"model": Counting()}):
        pass
    with pytest.raises(InvalidCheckpoint, match=r"can't restore state\['net'\]; found a checkpoint with only 'model'"):
        list(StepLoop(begin(), 2, 1, state={"net": Counting()}))


def test_additional_parts_of_a_checkpoint_are_ignored_with_a_warning(begin: Begin, caplog) -> None:
    for _ in StepLoop(begin(), 2, 1, state={"a": Counting(), "b": Counting()}):
        pass
    list(StepLoop(begin(), 2, 1, state={"a": Counting()}))
    assert "state['b']" in caplog.text


def test_a_metric_that_is_nan_publishes_nothing(begin: Begin) -> None:
    def loop() -> None:
        metrics = {"loss": 1.0}
        for step in StepLoop(begin(), 9, 2, state=Counting(), metrics=metrics):
            metrics["loss"] = math.nan if step == 3 else 0.5

    with pytest.raises(InvalidCheckpoint, match="loss=nan"):
        loop()
    last = begin().latest()
    assert (last.step, last.metrics) == (1, {"loss": 0.5})


def test_steps_report_their_progress(begin: Begin, control: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    run(begin(), 3)
    progress = read_progress(control)
    assert (progress.step, progress.saved_step, progress.phase) == (2, 2, ProgressPhase.DONE)
    run(begin(), 4)
    assert "Going on after step 2 of 4" in caplog.text


class FollowersAgreement(RankCollectives):
    """The collectives of a rank that gets another step from rank 0 than its own."""

    def broadcast(self, value: int) -> int:
        return 4

    def all(self, value: bool) -> bool:
        return value


def test_a_rank_that_does_not_see_the_checkpoint_of_the_others_stops_them_all(begin: Begin) -> None:
    run(begin(), 3)
    session = begin()
    session.collectives = FollowersAgreement()
    with pytest.raises(InvalidCheckpoint, match="continue after step 3; found ranks that do not see that checkpoint"):
        run(session, 8)


@pytest.mark.parametrize(
    "value", ["0s", 0, -1, "-5m", math.nan, math.inf, True, False, 2.5, None, "", "soon", timedelta(0), 10**12, "400d"]
)
def test_an_invalid_interval_is_refused_with_its_field(value) -> None:
    with pytest.raises(RequestError) as caught:
        SaveInterval.parse(value)
    assert caught.value.field == "every"
    assert caught.value.remedy


def test_steps_are_counted_from_the_first_of_the_task_not_of_the_run() -> None:
    every = SaveInterval.parse(3)
    assert [step for step in range(10) if every.is_due(step, since_s=math.inf)] == [2, 5, 8]


def test_time_counts_from_the_last_save() -> None:
    every = SaveInterval.parse(timedelta(seconds=90))
    assert [every.is_due(7, since_s=seconds) for seconds in (0, 89.9, 90, 1000)] == [False, False, True, True]
