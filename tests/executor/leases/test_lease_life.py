"""The short form of the model test of a lease's life, with the same sequences each time.

The long one in `tests/chaos` belongs to `make chaos`. Where the model found a hole, its sequence is a test below.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.executor.leases.lease_life import LeaseLife, put_state


def test_whatever_happens_each_run_has_its_own_lease_and_no_other_run_is_stopped():
    limits = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(LeaseLife, settings=limits)


@pytest.fixture
def life() -> Iterator[LeaseLife]:
    model = LeaseLife()
    model.begin_with(schedulers=2)
    yield model
    model.teardown()


def play(life: LeaseLife, *steps: Callable[[], None]) -> None:
    for step in steps:
        step()
        life.promises_hold()


def test_a_queued_task_gets_no_live_lease_of_its_last_run(life):
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.end_run(state="success", which=0),
        lambda: life.queue_task(which=0),
        lambda: life.beat_and_start(which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_stale_keeper_stops_no_newer_run(life):
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_run(which=0),
        lambda: life.adopt_task_of_a_late_scheduler(name="a", which=1),
        lambda: life.beat(seconds=25, which=0),
        lambda: life.queue_task(which=0),
        lambda: life.beat_and_start(which=0),
        lambda: life.beat(seconds=1, which=1),
        life.nothing_goes_wrong_any_more,
    )


def test_a_stale_keeper_spends_no_try(life):
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_run(which=0),
        lambda: life.adopt_task_of_a_late_scheduler(name="a", which=1),
        lambda: life.beat(seconds=25, which=0),
        lambda: life.beat(seconds=1, which=0),
        lambda: life.beat_and_start(which=1),
        life.nothing_goes_wrong_any_more,
    )


def test_a_keeper_that_adopted_a_run_reports_no_end_of_it_when_the_task_is_queued_again(life):
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.adopt_task_of_a_late_scheduler(name="a", which=0),
        lambda: life.end_run(state="success", which=0),
        lambda: life.queue_task(which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_task_that_never_began_waits_again_after_its_schedulers_clock_was_wrong(life):
    play(
        life,
        lambda: life.set_clock(seconds=-3600, which=0),
        lambda: life.beat(seconds=1, which=0),
        lambda: life.deliver(is_lost=True, which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_run_that_ends_at_once_has_used_its_lease_though_the_schedulers_clock_is_ahead(life):
    life.schedulers[0].clock.ahead = timedelta(seconds=5)
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_run(which=0),
        lambda: put_state(life.rows, life.ids["a"], "up_for_reschedule"),
        lambda: life.queue_task(which=3),
        lambda: life.beat_and_start(which=1),
        life.nothing_goes_wrong_any_more,
    )


def test_a_run_that_begins_late_is_followed_by_the_scheduler_that_waited_to_start_it(life):
    """Its own scheduler is dead, and the heir has just decided to end what nobody renewed."""
    play(
        life,
        lambda: life.beat(seconds=1, which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.beat(seconds=70, which=0),
        lambda: life.deliver(is_lost=False, which=0),
        lambda: life.beat(seconds=1, which=1),
        lambda: life.begin(which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_run_that_begins_under_a_dead_scheduler_and_is_killed_runs_again(life):
    play(
        life,
        lambda: life.beat(seconds=1, which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.deliver(is_lost=False, which=0),
        lambda: life.begin(which=0),
        lambda: life.beat(seconds=6, which=1),
        lambda: life.kill_run(which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_message_of_a_dead_scheduler_and_one_of_its_heir_begin_no_two_runs_under_one_lease(life):
    """The first one begins, and is rescheduled; then the second one arrives."""
    play(
        life,
        lambda: life.beat(seconds=1, which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.beat(seconds=1, which=1),
        lambda: life.deliver(is_lost=False, which=0),
        lambda: life.begin(which=0),
        lambda: life.end_run(state="up_for_reschedule", which=0),
        lambda: life.queue_task(which=3),
        lambda: life.beat_and_start(which=1),
        life.nothing_goes_wrong_any_more,
    )


def test_a_scheduler_that_acts_late_on_a_lost_run_spends_no_try(life):
    """It was stopped after it had read that the task runs; meanwhile another one has sent the lost task back."""
    play(
        life,
        lambda: life.adopt_task_of_a_late_scheduler(name="a", which=1),
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_run(which=0),
        lambda: life.read_before_others_write(has_old_rows=True, which=1),
        *[lambda: life.beat(seconds=25, which=0)] * 3,
        lambda: life.go_on_with_old_reads(which=1),
        life.nothing_goes_wrong_any_more,
    )


def test_a_task_that_is_queued_again_by_a_scheduler_which_dies_is_adopted_by_the_one_that_keeps_its_last_run(life):
    play(
        life,
        lambda: life.beat_and_start(which=0),
        lambda: life.kill_scheduler(which=0),
        lambda: life.end_run(state="success", which=0),
        lambda: life.queue_task(which=0),
        lambda: life.kill_scheduler(which=0),
        life.nothing_goes_wrong_any_more,
    )


def test_a_task_waits_again_whose_lease_ended_unused_and_was_granted_by_a_clock_that_was_set_back(life):
    """By that clock, the run before seems to have begun under this lease."""
    play(
        life,
        lambda: life.kill_scheduler(which=0),
        lambda: life.beat_and_start(which=1),
        lambda: life.end_run(state="success", which=0),
        lambda: life.queue_task(which=0),
        lambda: life.beat(seconds=1, which=0),
        lambda: life.set_clock(seconds=-70, which=0),
        lambda: life.go_on_with_old_reads(which=0),
        lambda: life.beat_and_start(which=0),
        life.nothing_goes_wrong_any_more,
    )
