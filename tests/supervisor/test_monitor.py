"""The monitor passes notices to the task and progress to the store, and stops a task after its grace time."""

import json
import signal
from datetime import timedelta

import pytest

from hetero_airflow.contract.notice import DUMP_SIGNAL, Notice, give_notice, has_notice, read_notice
from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice
from hetero_airflow.runtime.progress_file import ProgressFile
from hetero_airflow.supervisor.hang_watch import HangWatch
from hetero_airflow.supervisor.monitor import TaskMonitor
from hetero_airflow.testing import EPOCH, FakeClock

GRACE = timedelta(seconds=30)


class States:
    """A task state store that can be out of order."""

    def __init__(self):
        self.values, self.writes, self.error = {}, [], None

    def get(self, key):
        if self.error:
            raise self.error
        return self.values.get(key)

    def set(self, key, value):
        self.writes.append((key, value))
        self.values[key] = value


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, text, **fields):
        self.lines.append(text)


@pytest.fixture
def states():
    return States()


@pytest.fixture
def stops():
    return []


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def watch(tmp_path, states, stops, log):
    hangs = HangWatch(1e6, cpu_s=lambda: 0.0, utilization=lambda: None)
    return TaskMonitor("lease-2", tmp_path, states, hangs, stops.append, GRACE, log)


def notice(lease_id="lease-2", seconds=60):
    notice = LeaseNotice(lease_id=lease_id, notice=Notice(cause="urgent", by=EPOCH + timedelta(seconds=seconds)))
    return json.loads(notice.model_dump_json())


def check_at(watch, *seconds):
    for second in seconds:
        watch.check(EPOCH + timedelta(seconds=second))


def test_a_notice_reaches_the_task_and_is_told_once(watch, states, tmp_path, log, stops):
    watch.check(EPOCH)
    assert not has_notice(tmp_path)
    states.values[PREEMPT] = notice()
    check_at(watch, *range(3))
    assert (read_notice(tmp_path).cause, watch.notice, len(log.lines), stops) == ("urgent", "urgent", 1, [])


def test_nothing_is_asked_of_a_server_that_does_not_answer(watch, states, tmp_path, stops, log):
    states.values[PREEMPT] = notice(seconds=5)
    watch.check(EPOCH)
    states.error = ConnectionError("refused")
    ProgressFile(tmp_path, FakeClock()).done(1)
    watch.check(EPOCH + timedelta(seconds=6), is_online=False)
    assert stops == [signal.SIGTERM], "what needs no server goes on"
    assert not any("can't be read" in line for line in log.lines)


def test_a_notice_of_an_earlier_lease_is_void(watch, states, tmp_path):
    states.values[PREEMPT] = notice("lease-1")
    watch.check(EPOCH)
    assert not has_notice(tmp_path)


@pytest.mark.parametrize("value", [None, 7, "x", {}, {"lease_id": "lease-2"}, {"lease_id": "lease-2", "notice": {}}])
def test_a_notice_that_can_not_be_read_is_passed_over(watch, states, tmp_path, value):
    states.values[PREEMPT] = value
    watch.check(EPOCH)
    assert not has_notice(tmp_path)


def test_a_task_that_steps_is_told_to_save_when_its_worker_shuts_down(watch, tmp_path, log, stops):
    assert not watch.request_stop(), "it could save nothing"
    watch.check(EPOCH)
    assert not has_notice(tmp_path)
    ProgressFile(tmp_path, FakeClock()).done(1)
    assert watch.request_stop()
    assert (has_notice(tmp_path), log.lines) == (False, []), "the signal may have come anywhere"
    watch.check(EPOCH, is_online=False)
    assert not has_notice(tmp_path), "it may run elsewhere by now"
    for _ in range(2):
        watch.check(EPOCH)
    assert (read_notice(tmp_path).cause, read_notice(tmp_path).by) == ("its worker shuts down", EPOCH + GRACE)
    assert (watch.notice, len(log.lines)) == ("its worker shuts down", 1)
    watch.check(EPOCH + GRACE)
    assert stops == [signal.SIGTERM]


def test_a_notice_that_a_scheduler_of_this_host_has_given_needs_no_api_server(watch, tmp_path, states, stops, log):
    give_notice(tmp_path, Notice(cause="its scheduler stops", by=EPOCH + timedelta(seconds=5)))
    states.error = ConnectionError("refused")
    for second in range(2):
        watch.check(EPOCH + timedelta(seconds=second), is_online=False)
    assert (watch.notice, len(log.lines), stops) == ("its scheduler stops", 1, [])
    watch.check(EPOCH + timedelta(seconds=6), is_online=False)
    assert stops == [signal.SIGTERM]


def test_a_task_that_ignores_the_notice_is_stopped_once_at_the_end_of_the_grace_time(watch, states, stops):
    states.values[PREEMPT] = notice(seconds=60)
    check_at(watch, 0, 59)
    assert stops == []
    check_at(watch, 60, 61, 64)
    assert stops == [signal.SIGTERM]
    check_at(watch, 65, 66)
    assert stops == [signal.SIGTERM, signal.SIGKILL]


def test_the_end_of_the_grace_time_is_kept_though_the_api_does_not_answer(watch, states, stops, log):
    states.values[PREEMPT] = notice(seconds=5)
    watch.check(EPOCH)
    states.error = OSError("connection refused")
    check_at(watch, 1, 5)
    assert stops == [signal.SIGTERM]


def test_an_api_that_does_not_answer_is_logged_once(watch, states, log):
    states.error = OSError("connection refused")
    check_at(watch, *range(5))
    assert len(log.lines) == 1


def test_a_checkpoint_is_told_at_once_and_mere_steps_every_few_seconds(watch, states, tmp_path):
    clock = FakeClock()
    progress = ProgressFile(tmp_path, clock)
    progress.saved(3, clock.now())
    watch.check(EPOCH)
    progress.saved(4, clock.now())
    check_at(watch, 1)
    reported = [value["progress"]["saved_step"] for key, value in states.writes if key == PROGRESS]
    assert (reported, states.writes[-1][1]["lease_id"]) == ([3, 4], "lease-2")
    for second in range(2, 6):
        progress.enter("stepping")
        clock.advance(1)
        watch.check(EPOCH + timedelta(seconds=second))
    assert len(states.writes) == 2
    check_at(watch, 6.1)
    assert len(states.writes) == 3


def test_a_task_that_does_nothing_shows_its_stacks_and_then_is_asked_to_save(tmp_path, states, stops, log):
    busy = {"cpu": 0.0}
    hangs = HangWatch(100, cpu_s=lambda: busy["cpu"], utilization=lambda: 0.0)
    watch = TaskMonitor("lease-2", tmp_path, states, hangs, stops.append, GRACE, log)
    progress = ProgressFile(tmp_path, FakeClock())
    progress.done(3)
    check_at(watch, *range(0, 100, 10))
    busy["cpu"] = 9.0  # it computes: nothing is counted from before
    check_at(watch, *range(100, 300, 10))
    assert (stops, has_notice(tmp_path)) == ([DUMP_SIGNAL], False)
    check_at(watch, 300)
    assert (watch.hung_s, watch.notice, read_notice(tmp_path).cause) == (200, None, "no progress for 200 s")
    assert read_notice(tmp_path).by == EPOCH + timedelta(seconds=330)
    check_at(watch, 335)
    assert stops == [DUMP_SIGNAL, signal.SIGTERM, signal.SIGKILL]


def test_a_task_that_tells_no_progress_is_warned_of_but_left_alone(tmp_path, states, stops, log):
    hangs = HangWatch(100, cpu_s=lambda: 0.0, utilization=lambda: None)
    watch = TaskMonitor("lease-2", tmp_path, states, hangs, stops.append, GRACE, log)
    check_at(watch, *range(0, 500, 10))
    assert (stops, watch.hung_s, has_notice(tmp_path)) == ([DUMP_SIGNAL], None, False)


def test_the_reported_progress_has_the_speed_after_a_minute(watch, states, tmp_path):
    clock = FakeClock()
    progress = ProgressFile(tmp_path, clock)
    for step in range(200):
        progress.done(step)
        progress.saved(step, None)  # writes each step at once
        watch.check(clock.now())
        clock.advance(0.5)
    reports = [value["speed"] for key, value in states.writes if key == PROGRESS]
    assert reports[0] is None
    assert reports[-1]["steps_per_s"] == pytest.approx(2.0)


def test_a_task_that_only_reports_its_steps_is_not_asked_to_save(tmp_path, states, stops, log):
    clock = FakeClock()
    hangs = HangWatch(10, cpu_s=lambda: 0.0, utilization=lambda: None)
    watch = TaskMonitor("lease-2", tmp_path, states, hangs, stops.append, GRACE, log)
    ProgressFile(tmp_path, clock, can_save=False).done(1)
    assert not watch.request_stop()
    for _ in range(40):
        watch.check(clock.advance(1))
    assert (watch.hung_s, watch.notice, has_notice(tmp_path)) == (None, None, False)


def test_a_notice_after_which_the_task_ends_at_once_explains_the_end(watch, tmp_path):
    give_notice(tmp_path, Notice(cause="its scheduler stops", by=EPOCH))
    watch.see_end(EPOCH)
    assert watch.notice == "its scheduler stops"


def test_the_profile_of_a_short_task_is_reported_at_its_end(watch, tmp_path, states):
    progress = ProgressFile(tmp_path, FakeClock())
    progress.done(3)
    watch.see_end(EPOCH)
    assert states.writes == []
    progress.profiled("train/fit/r1/-1/profile-1-0badcafe.json.gz")
    watch.see_end(EPOCH, is_online=False)
    assert states.writes == []
    for _ in range(2):
        watch.see_end(EPOCH)
    assert [(key, value["progress"]["profile"]) for key, value in states.writes] == [
        (PROGRESS, "train/fit/r1/-1/profile-1-0badcafe.json.gz")
    ]
