from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.recovery.decisions import Fail, Requeue, Retry, decide
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.recovery.rules import DEFAULTS, Action, parse_rules
from hetero_airflow.testing import EPOCH

GIB = 2**30
BUDGETED = [
    failure_class
    for failure_class, rule in DEFAULTS.rows.items()
    if rule.action is Action.REQUEUE and rule.times is not None
]


def a_failure(failure_class="network", token=1, epoch=0, **fields):
    given = {"evidence": "as the test says", "at": EPOCH + timedelta(seconds=token)} | fields
    return Failure(failure_class=failure_class, token=token, epoch=epoch, **given)


def several(failure_class, number, **fields):
    return [a_failure(failure_class, token, **fields) for token in range(1, number + 1)]


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [
        ("device_memory", Requeue),
        ("host_memory", Requeue),
        ("hardware", Requeue),
        ("network", Requeue),
        ("lost_worker", Requeue),
        ("preempted", Requeue),
        ("hung", Requeue),
        ("user_error", Fail),
        ("code_error", Retry),
        ("unknown", Retry),
    ],
)
def test_a_first_failure_follows_its_row(failure_class, kind):
    assert isinstance(decide(a_failure(failure_class), (), DEFAULTS), kind)


@pytest.mark.parametrize("failure_class", BUDGETED)
def test_after_its_budget_the_tasks_retries_decide(failure_class):
    rule = DEFAULTS[failure_class]
    history = several(failure_class, rule.times)
    assert isinstance(decide(a_failure(failure_class, 99), history[:-1], DEFAULTS), Requeue)
    last = decide(a_failure(failure_class, 99), history, DEFAULTS)
    assert isinstance(last, Retry)
    assert f"requeued for this {rule.times} times already" in last.message


def test_preemption_has_no_budget():
    history = several("preempted", 50)
    assert isinstance(decide(a_failure("preempted", 99), history, DEFAULTS), Requeue)


def test_delays_grow_and_can_be_predicted():
    delays = [decide(a_failure(token=99), several("network", n), DEFAULTS).delay_s for n in range(5)]
    assert delays == [10, 20, 40, 80, 160]


def test_a_clear_gives_a_new_budget_and_other_classes_use_none():
    old = several("network", 5)
    assert isinstance(decide(a_failure(token=99, epoch=1), old, DEFAULTS), Requeue)
    assert isinstance(decide(a_failure("hung", token=99), old, DEFAULTS), Requeue)


def test_a_failure_that_is_reported_twice_or_is_in_the_history_counts_once():
    history = several("network", 4)
    failure = a_failure(token=99)
    once = decide(failure, history, DEFAULTS)
    assert decide(failure, [*history, failure], DEFAULTS) == once
    assert decide(failure, [*history, *history, history[0]], DEFAULTS) == once
    assert isinstance(once, Requeue)


def test_memory_that_did_not_grow_is_not_tried_again():
    def ran_out(token, gib):
        return a_failure("device_memory", token, memory_bytes=gib * GIB)

    assert isinstance(decide(ran_out(2, 48), [ran_out(1, 24)], DEFAULTS), Requeue)
    again = decide(ran_out(3, 48), [ran_out(1, 24), ran_out(2, 48)], DEFAULTS)
    assert isinstance(again, Retry)
    assert "no more memory than the last time" in again.message


def test_a_row_can_fail_a_task_in_the_end_or_at_once():
    rules = parse_rules(
        '{"hung": {"times": 1, "then": "fail"}, "network": {"action": "fail"}, "unknown": {"delay": 5}}'
    )
    assert isinstance(decide(a_failure("hung"), (), rules), Requeue)
    assert isinstance(decide(a_failure("hung", 2), several("hung", 1), rules), Fail)
    assert isinstance(decide(a_failure("network"), (), rules), Fail)
    assert [decide(a_failure("unknown", 9), several("unknown", n), rules).delay_s for n in (0, 1)] == [5, 10]
    assert decide(a_failure("hung"), (), parse_rules('{"hung": {"times": 0}}')) == Retry(
        None,
        "It hung (as the test says): left to the task's retries, since it is never requeued for this, by the rule "
        "for hung.",
    )


def test_a_message_promises_retries_only_where_the_task_has_some():
    failure = a_failure("unknown", evidence="ValueError ended the task")
    message = "It failed (ValueError ended the task): {}, by the rule for unknown."
    assert decide(failure, (), DEFAULTS).message == message.format("left to the task's retries")
    without = decide(failure, (), DEFAULTS, has_retries=False)
    assert without.message == message.format("fails, since the task has no retry left")
    last = decide(a_failure(token=9), several("network", 5), DEFAULTS, has_retries=False).message
    assert last == (
        "It had a network failure (as the test says): fails, since the task has no retry left and it was requeued for "
        "this 5 times already, by the rule for network."
    )


@given(
    st.lists(st.tuples(st.sampled_from(list(FailureClass)), st.integers(1, 20), st.integers(0, 2))),
    st.sampled_from(list(FailureClass)),
)
def test_more_history_never_gives_more_requeues(past, failure_class):
    history = [a_failure(kind, token, epoch=epoch) for kind, token, epoch in past]
    failure = a_failure(failure_class, 99)
    outcomes = [isinstance(decide(failure, history[:n], DEFAULTS), Requeue) for n in range(len(history) + 1)]
    assert outcomes == sorted(outcomes, reverse=True)


@given(st.lists(st.sampled_from(list(FailureClass)), max_size=60))
def test_requeues_of_each_class_stay_within_its_budget(classes):
    history, requeues = [], dict.fromkeys(FailureClass, 0)
    for token, failure_class in enumerate(classes, 1):
        failure = a_failure(failure_class, token)
        requeues[failure_class] += isinstance(decide(failure, history, DEFAULTS), Requeue)
        history.append(failure)
    for failure_class, number in requeues.items():
        rule = DEFAULTS[failure_class]
        most = classes.count(failure_class) if rule.action is Action.REQUEUE else 0
        assert number == (most if rule.times is None else min(most, rule.times))
