from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.health.error_classes import XIDS, ErrorClass, classify_xid
from hetero_airflow.health.transitions import (
    ERROR_RATES,
    FORGIVEN_AFTER,
    MAX_STRIKES,
    QUARANTINE_TIMES,
    TRANSITIONS,
    ObservedError,
    after_burn_in,
    after_error,
    after_time,
    hold_of,
    leases_to_migrate,
)
from hetero_airflow.model.devices.health import NO_ERRORS, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.testing import EPOCH, a_device, a_lease, a_worker

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def xid(number: int, at=EPOCH) -> ObservedError:
    return ObservedError("GPU-0", *classify_xid(number), at)


def failed(task: str, at=EPOCH) -> ObservedError:
    return ObservedError("GPU-0", ErrorClass.TASK, "a task says so", at, task)


def after(*errors: ObservedError, health=NO_ERRORS) -> DeviceHealth:
    for error in errors:
        health = after_error(health, error)
    return health


def on_probation(strikes: int) -> DeviceHealth:
    return DeviceHealth(HealthState.PROBATION, strikes, EPOCH, cause="XID 79")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_one_xid_79_takes_a_device_out():
    cause = "XID 79, GPU has fallen off the bus"
    assert after(xid(79)) == DeviceHealth(HealthState.QUARANTINED, 1, EPOCH, EPOCH + MINUTE, cause)


def test_many_xids_45_do_not_take_a_device_out():
    assert after(*(xid(45, EPOCH + number * SECOND) for number in range(10_000))) is NO_ERRORS


def test_errors_that_count_by_rate_take_a_device_out_only_within_their_window():
    count, window = ERROR_RATES[ErrorClass.COUNTED].count, ERROR_RATES[ErrorClass.COUNTED].window
    dense = [xid(63, EPOCH + number * MINUTE) for number in range(count)]
    assert after(*dense[:-1]).state is HealthState.HEALTHY
    assert after(*dense).state is HealthState.QUARANTINED
    spread = [xid(63, EPOCH + number * (window / (count - 1) + SECOND)) for number in range(20)]
    assert after(*spread).state is HealthState.HEALTHY


def test_hardware_failures_of_two_tasks_take_a_device_out_and_those_of_one_task_do_not():
    assert after(*(failed("dag.a", EPOCH + number * MINUTE) for number in range(30))).state is HealthState.HEALTHY
    assert after(failed("dag.a"), failed("dag.b", EPOCH + 59 * MINUTE)).state is HealthState.QUARANTINED
    assert after(failed("dag.a"), failed("dag.b", EPOCH + HOUR + SECOND)).state is HealthState.HEALTHY


def test_each_class_is_counted_separately():
    assert after(xid(63), xid(92), failed("dag.a")).state is HealthState.HEALTHY


def test_an_error_during_a_quarantine_restarts_its_time_and_is_no_strike():
    again = after(xid(79), xid(48, EPOCH + 30 * SECOND))
    assert (again.strikes, again.since, again.until) == (1, EPOCH, EPOCH + 90 * SECOND)


def test_an_error_on_probation_is_a_strike():
    assert after(xid(79, EPOCH + HOUR), health=on_probation(1)).strikes == 2


def test_a_late_error_does_not_shorten_a_quarantine():
    out = after(xid(79))
    assert after(xid(79, EPOCH - HOUR), health=out).until == out.until


# -- time and burn-in --------------------------------------------------------------------------------------------------


def test_a_quarantine_ends_by_itself_and_a_burn_in_decides():
    out = after(xid(79))
    assert after_time(out, EPOCH + MINUTE - SECOND) is out
    tried = after_time(out, EPOCH + MINUTE)
    assert tried == replace(out, state=HealthState.PROBATION, since=EPOCH + MINUTE, until=None)
    healthy = after_burn_in(tried, "", EPOCH + 2 * MINUTE)
    assert (healthy.state, healthy.strikes, healthy.since) == (HealthState.HEALTHY, 1, EPOCH + 2 * MINUTE)


def test_each_failed_burn_in_quarantines_for_longer_and_the_last_one_retires():
    health, times = on_probation(0), []
    while health.state is HealthState.PROBATION:
        health = after_burn_in(health, "wrong products", EPOCH)
        if health.until is not None:
            times.append(health.until - EPOCH)
            health = after_time(health, health.until)
    assert times == [*QUARANTINE_TIMES, QUARANTINE_TIMES[-1]]
    assert health == DeviceHealth(HealthState.RETIRED, MAX_STRIKES, EPOCH, None, "wrong products")
    assert after(xid(79), health=health) is health
    assert after_time(health, EPOCH + 1000 * FORGIVEN_AFTER) is health


@pytest.mark.parametrize("state", [state for state in HealthState if state is not HealthState.PROBATION])
def test_a_burn_in_outside_probation_changes_nothing(state):
    health = DeviceHealth(state, 1, EPOCH)
    assert after_burn_in(health, "", EPOCH) is health


def test_strikes_are_forgiven_after_a_long_time_without_errors():
    healthy = DeviceHealth(strikes=3, since=EPOCH)
    assert after_time(healthy, EPOCH + FORGIVEN_AFTER - SECOND) is healthy
    assert after_time(healthy, EPOCH + FORGIVEN_AFTER) is NO_ERRORS


def test_a_counted_error_is_forgotten_once_it_can_not_count_any_more():
    once = after(xid(63))
    assert after_time(once, EPOCH + HOUR) is once
    assert after_time(once, EPOCH + HOUR + SECOND) is NO_ERRORS


# -- properties --------------------------------------------------------------------------------------------------------

ERRORS = st.builds(
    ObservedError,
    st.just("GPU-0"),
    st.sampled_from(ErrorClass),
    st.just("an error"),
    st.just(EPOCH),
    st.sampled_from(["", "a", "b"]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([-5.0, 0.0, 1.0, 60.0, 400.0, 4000.0, 700_000.0]),
        st.one_of(ERRORS, st.sampled_from(["", "bad"])),
    ),
    max_size=60,
)


def steps(taken):
    """(health before, health after, the step) of each step: time passes, then an error or a burn-in's result comes."""
    now, health = EPOCH, NO_ERRORS
    for seconds, step in taken:
        now += timedelta(seconds=seconds)
        before, health = health, after_time(health, now)
        yield before, health, None
        before = health
        if isinstance(step, ObservedError):
            health = after_error(health, replace(step, at=now))
        else:
            health = after_burn_in(health, step, now)
        yield before, health, step


@given(STEPS)
def test_every_change_of_state_is_in_the_table(taken):
    for before, health, _ in steps(taken):
        assert before.state == health.state or (before.state, health.state) in TRANSITIONS


@given(STEPS)
def test_strikes_only_grow_until_they_are_forgiven_and_never_pass_the_last(taken):
    for before, health, _ in steps(taken):
        assert health.strikes in (before.strikes, before.strikes + 1) or health is NO_ERRORS
        assert (health.strikes == MAX_STRIKES) == (health.state is HealthState.RETIRED)
        assert (health.strikes > before.strikes) == (
            health.state in (HealthState.QUARANTINED, HealthState.RETIRED) and before.state != health.state
        )


@given(STEPS)
def test_only_errors_at_their_rate_or_a_failed_burn_in_take_a_device_out(taken):
    for before, health, step in steps(taken):
        if before.state is HealthState.HEALTHY and health.state is not HealthState.HEALTHY:
            assert isinstance(step, ObservedError)
            assert step.error_class is not ErrorClass.APPLICATION
        if before.state is HealthState.PROBATION and health.state is HealthState.HEALTHY:
            assert step == ""


@given(STEPS)
def test_every_quarantine_has_an_end(taken):
    for _, health, _ in steps(taken):
        assert (health.until is not None) == (health.state is HealthState.QUARANTINED)
        if health.until is not None:
            assert after_time(health, health.until).state is HealthState.PROBATION


@given(STEPS)
def test_the_remembered_errors_stay_few(taken):
    limit = sum(rate.count - 1 for rate in ERROR_RATES.values())
    for _, health, _ in steps(taken):
        assert len(health.errors) <= limit


@given(STEPS)
def test_a_device_has_a_hold_exactly_while_it_is_not_healthy(taken):
    for _, health, _ in steps(taken):
        hold = hold_of("worker-a", "GPU-0", health)
        assert (hold is None) == (health.state is HealthState.HEALTHY)


# -- holds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (
            after(xid(79)),
            "quarantined since 2026-01-01 00:00:00 UTC: XID 79, GPU has fallen off the bus; "
            "back when a burn-in passes, where one can be run, from 2026-01-01 00:01:00 UTC on",
        ),
        (
            on_probation(2),
            "quarantined since 2026-01-01 00:00:00 UTC: XID 79; "
            "back when a burn-in passes, where one can be run, once nothing runs on it",
        ),
        (
            DeviceHealth(HealthState.RETIRED, 6, EPOCH, cause="wrong products"),
            "quarantined since 2026-01-01 00:00:00 UTC: wrong products; "
            "back when a person runs `airflow hetero undrain worker-a/GPU-0`, after 6 times out",
        ),
    ],
)
def test_a_hold_says_its_cause_its_begin_and_what_ends_it(health, text):
    assert str(hold_of("worker-a", "GPU-0", health)) == text


def a_hold(device_id="GPU-0", moves=True) -> Hold:
    return Hold("worker-a", device_id, HoldKind.DRAINED, "new fan", EPOCH, "undrained", moves=moves)


def test_each_lease_that_must_migrate_is_named_once_with_its_hold():
    on_it, beside = a_lease("r1", **{"GPU-0": 1000, "cpu": 1000}), a_lease("r2", **{"GPU-1": 1000})
    far, preempted = a_lease("r3", "worker-b", **{"GPU-0": 1000}), a_lease("r4", **{"GPU-0": 1000})
    preempted = preempted.model_copy(update={"state": LeaseState.PREEMPTED})
    snapshot = Snapshot(
        1, (a_worker(), a_worker("worker-b")), leases=(on_it, beside, far, preempted), holds=(a_hold(),)
    )
    assert leases_to_migrate(snapshot) == ((on_it, a_hold()),)
    assert leases_to_migrate(replace(snapshot, holds=(a_hold(moves=False),))) == ()
    whole = (a_hold(""), a_hold())
    assert leases_to_migrate(replace(snapshot, holds=whole)) == ((on_it, whole[0]), (beside, whole[0]))


def test_leases_of_mig_instances_migrate_with_their_gpu():
    parent, instance = a_device("GPU-0", leasable=False), a_device("MIG-0", parent="GPU-0")
    lease = a_lease("r1", **{"MIG-0": 1000})
    snapshot = Snapshot(1, (a_worker(devices=(parent, instance)),), leases=(lease,), holds=(a_hold(),))
    assert leases_to_migrate(snapshot) == ((lease, a_hold()),)


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143])
def test_xids_that_need_a_reset_are_fatal(xid):
    assert classify_xid(xid)[0] is ErrorClass.FATAL


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_application_errors_never_count(xid):
    assert classify_xid(xid)[0] is ErrorClass.APPLICATION


@pytest.mark.parametrize("xid", [63, 92, 109, 149, 0, 9999])
def test_possible_hardware_errors_and_unknown_xids_count_by_rate(xid):
    assert classify_xid(xid)[0] is ErrorClass.COUNTED


def test_the_three_classes_share_no_xid():
    sizes = {wanted: sum(error_class is wanted for error_class, _ in XIDS.values()) for wanted in ErrorClass}
    assert sizes[ErrorClass.TASK] == 0
    assert sum(sizes.values()) == len(XIDS)
    from hetero_airflow.health import error_classes

    groups = [set(error_classes._FATAL), set(error_classes._COUNTED), set(error_classes._APPLICATION)]
    assert sum(map(len, groups)) == len(set.union(*groups))
