from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.recovery.failure import (
    MAX_FAILURES,
    Failure,
    FailureClass,
    failures_of_epoch,
    keep_failure,
    load_failures,
)
from hetero_airflow.testing import EPOCH


def a_failure(failure_class="network", *, token=None, epoch=0, at_s=0.0, **fields):
    given = {"evidence": "as the test says", "at": EPOCH + timedelta(seconds=at_s)} | fields
    return Failure(failure_class=failure_class, token=token, epoch=epoch, **given)


FAILURES = st.builds(
    lambda failure_class, run, **fields: a_failure(failure_class, token=run or None, epoch=run // 4, **fields),
    st.sampled_from(list(FailureClass)),
    st.integers(0, 9),
    at_s=st.floats(0, 1e6),
    memory_bytes=st.one_of(st.none(), st.integers(1, 2**40)),
    device_ids=st.tuples(st.text(max_size=5)),
)


@given(st.lists(FAILURES, max_size=8))
def test_kept_failures_are_read_back(failures):
    record = None
    for failure in failures:
        record = keep_failure(record, failure)
    last = max((failure.epoch for failure in failures), default=0)
    assert load_failures(record) == failures_of_epoch(failures, last)


def test_a_run_that_is_reported_twice_is_kept_once():
    record = keep_failure(keep_failure(None, a_failure(token=7)), a_failure("lost_worker", token=7, at_s=9))
    assert load_failures(record) == (a_failure(token=7),)


def test_a_clear_drops_failures_and_late_reports_from_before_it():
    record = keep_failure(keep_failure(None, a_failure(token=1)), a_failure(token=2, epoch=1))
    assert load_failures(record) == (a_failure(token=2, epoch=1),)
    assert keep_failure(record, a_failure(token=3, epoch=0)) == record


def test_many_failures_of_one_class_do_not_push_out_another():
    record = keep_failure(None, a_failure("hung", token=1))
    for token in range(2, 2 * MAX_FAILURES):
        record = keep_failure(record, a_failure("preempted", token=token))
    read = load_failures(record)
    assert read[0].failure_class is FailureClass.HUNG
    assert [failure.token for failure in read[1:]] == list(range(MAX_FAILURES, 2 * MAX_FAILURES))


@pytest.mark.parametrize(
    "record", ["", 7, {}, [None], [{}], [{"failure_class": "network"}], [{"failure_class": "network", "epoch": -1}]]
)
def test_unreadable_records_are_left_out(record):
    assert load_failures(record) == ()
    assert load_failures(keep_failure(record, a_failure())) == (a_failure(),)


def test_every_class_has_a_description():
    assert len({failure_class.description for failure_class in FailureClass}) == len(FailureClass)
