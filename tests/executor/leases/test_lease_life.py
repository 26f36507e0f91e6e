"""The short form of the model test of a lease's life, with the same sequences each time.

The long one in `tests/chaos` belongs to `make chaos`. Where the model found a hole, its sequence is in the table below.
"""

from operator import methodcaller as step

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.effort import effort, long
from tests.executor.leases.lease_life import LeaseLife, put_state


@long
def test_whatever_happens_each_run_has_its_own_lease_and_no_other_run_is_stopped():
    limits = settings(max_examples=effort(30, 150), stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(LeaseLife, settings=limits)


SEQUENCES = {
    "a_queued_task_gets_no_live_lease_of_its_last_run": [
        step("beat_and_start", which=0),
        step("kill_scheduler", which=0),
        step("end_run", state="success", which=0),
        step("queue_task", which=0),
        step("beat_and_start", which=0),
    ],
    "a_stale_keeper_stops_no_newer_run": [
        step("beat_and_start", which=0),
        step("kill_run", which=0),
        step("adopt_task_of_a_late_scheduler", name="a", which=1),
        step("beat", seconds=25, which=0),
        step("queue_task", which=0),
        step("beat_and_start", which=0),
        step("beat", seconds=1, which=1),
    ],
    "a_stale_keeper_spends_no_try": [
        step("beat_and_start", which=0),
        step("kill_run", which=0),
        step("adopt_task_of_a_late_scheduler", name="a", which=1),
        step("beat", seconds=25, which=0),
        step("beat", seconds=1, which=0),
        step("beat_and_start", which=1),
    ],
    "a_keeper_that_adopted_a_run_reports_no_end_of_it_when_the_task_is_queued_again": [
        step("beat_and_start", which=0),
        step("kill_scheduler", which=0),
        step("adopt_task_of_a_late_scheduler", name="a", which=0),
        step("end_run", state="success", which=0),
        step("queue_task", which=0),
    ],
    "a_task_that_never_began_waits_again_after_its_schedulers_clock_was_wrong": [
        step("set_clock", seconds=-3600, which=0),
        step("beat", seconds=1, which=0),
        step("deliver", is_lost=True, which=0),
    ],
    "a_run_that_ends_at_once_has_used_its_lease_though_the_schedulers_clock_is_ahead": [
        step("set_clock", seconds=5, which=0),
        step("beat_and_start", which=0),
        step("kill_run", which=0),
        lambda life: put_state(life.rows, life.ids["a"], "up_for_reschedule"),
        step("queue_task", which=3),
        step("beat_and_start", which=1),
    ],
    "a_run_that_begins_late_is_followed_by_the_scheduler_that_waited_to_start_it": [
        # Its own scheduler is dead, and the heir has just decided to end what nobody renewed.
        step("beat", seconds=1, which=0),
        step("kill_scheduler", which=0),
        *[step("beat", seconds=seconds, which=0) for seconds in (25, 25, 6, 6)],
        step("deliver", is_lost=False, which=0),
        step("beat", seconds=1, which=1),
        step("begin", which=0),
    ],
    "a_run_that_begins_under_a_dead_scheduler_and_is_killed_runs_again": [
        step("beat", seconds=1, which=0),
        step("kill_scheduler", which=0),
        step("deliver", is_lost=False, which=0),
        step("begin", which=0),
        step("beat", seconds=6, which=1),
        step("kill_run", which=0),
    ],
    "a_message_of_a_dead_scheduler_and_one_of_its_heir_begin_no_two_runs_under_one_lease": [
        # The first one begins, and is rescheduled; then the second one arrives.
        step("beat", seconds=1, which=0),
        step("kill_scheduler", which=0),
        step("beat", seconds=1, which=1),
        step("deliver", is_lost=False, which=0),
        step("begin", which=0),
        step("end_run", state="up_for_reschedule", which=0),
        step("queue_task", which=3),
        step("beat_and_start", which=1),
    ],
    "a_scheduler_that_acts_late_on_a_lost_run_spends_no_try": [
        # It was stopped after it had read that the task runs; meanwhile another one has sent the lost task back.
        step("adopt_task_of_a_late_scheduler", name="a", which=1),
        step("beat_and_start", which=0),
        step("kill_run", which=0),
        step("read_before_others_write", has_old_rows=True, which=1),
        *[step("beat", seconds=25, which=0)] * 3,
        step("go_on_with_old_reads", which=1),
    ],
    "a_task_that_is_queued_again_by_a_scheduler_which_dies_is_adopted_by_the_one_that_keeps_its_last_run": [
        step("beat_and_start", which=0),
        step("kill_scheduler", which=0),
        step("end_run", state="success", which=0),
        step("queue_task", which=0),
        step("kill_scheduler", which=0),
    ],
    "a_task_waits_again_whose_lease_ended_unused_and_was_granted_by_a_clock_that_was_set_back": [
        # By that clock, the run before seems to have begun under this lease.
        step("kill_scheduler", which=0),
        step("beat_and_start", which=1),
        step("end_run", state="success", which=0),
        step("queue_task", which=0),
        step("beat", seconds=1, which=0),
        step("set_clock", seconds=-70, which=0),
        step("go_on_with_old_reads", which=0),
        step("beat_and_start", which=0),
    ],
    "a_scheduler_that_does_not_know_of_the_end_of_a_lease_signals_no_process_of_the_next_run": [
        step("beat_and_start", which=0),
        step("freeze_or_resume", which=0),
        step("kill_scheduler", which=0),
        step("beat", seconds=25, which=1),
        step("queue_task", which=0),
        step("freeze_or_resume", which=0),
        *[step("beat_and_start", which=0)] * 3,
        step("go_on_with_old_reads", which=1),
    ],
    "the_end_of_a_run_that_is_scheduled_again_is_not_reported": [
        step("beat_and_start", which=0),
        step("end_run", state="up_for_reschedule", which=0),
        step("hear_ends", which=0),
        step("schedule_task", which=0),
        step("read_reports", which=0),
    ],
    "a_scheduler_that_finds_out_the_end_of_a_run_which_is_scheduled_again_reports_nothing": [
        step("beat_and_start", which=0),
        step("kill_scheduler", which=0),
        step("end_run", state="up_for_reschedule", which=0),
        step("beat", seconds=6, which=1),
        step("beat", seconds=25, which=1),
        step("schedule_task", which=0),
        step("read_reports", which=1),
    ],
}
"""What holds → the steps after which it did not."""


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_that_once_broke_a_promise_breaks_none(steps):
    life = LeaseLife()
    try:
        life.begin_with(schedulers=2)
        for take in (*steps, LeaseLife.nothing_goes_wrong_any_more):
            take(life)
            life.promises_hold()
    finally:
        life.teardown()
