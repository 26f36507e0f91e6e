import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import SettingsError
from hetero_airflow.recovery import rules as module
from hetero_airflow.recovery.failure import MAX_FAILURES, FailureClass
from hetero_airflow.recovery.rules import DEFAULTS, Action, Avoid, Rule, Rules, parse_rules
from hetero_airflow.settings import default


def test_every_class_has_a_row():
    assert set(DEFAULTS.rows) == set(FailureClass)


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"hung": {}}', default("recovery_rules")])
def test_an_empty_table_changes_nothing(text):
    assert parse_rules(text) == DEFAULTS


def test_a_row_is_merged_field_by_field_and_the_other_rows_stay():
    rules = parse_rules('{"network": {"times": 2, "delay": "1m"}}')
    assert rules[FailureClass.NETWORK] == Rule(Action.REQUEUE, times=2, delay_s=60.0, avoid=Avoid.WORKER)
    assert {**rules.rows, FailureClass.NETWORK: DEFAULTS[FailureClass.NETWORK]} == DEFAULTS.rows


def test_each_field_can_be_set():
    text = json.dumps(
        {
            "device_memory": {
                "action": "requeue", "times": None, "delay": 5, "backoff": 1.5, "max_delay": "2h", "then": "fail",
                "memory": "x1.5", "memory_limit": "40GiB", "avoid": "worker",
            },
            "waiting": {"after": "2h", "action": "next_alternative"},
        }
    )  # fmt: skip
    rule = Rule(Action.REQUEUE, None, 5.0, 1.5, 7200.0, Action.FAIL, 1.5, 40 * 2**30, Avoid.WORKER)
    expected = {**DEFAULTS.rows, FailureClass.DEVICE_MEMORY: rule}
    assert parse_rules(text) == Rules(expected, 7200.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"hung": {"delay": null}}', None),
        ('{"hung": {"delay": 0}}', 0.0),
        ('{"hung": {"delay": "0s"}}', 0.0),
    ],
)
def test_a_delay_can_be_null_or_zero(text, expected):
    assert parse_rules(text)[FailureClass.HUNG].delay_s == expected


def test_waiting_can_be_left_as_written():
    assert parse_rules('{"waiting": {"action": "keep"}}').waiting_s is None


@pytest.mark.parametrize(
    ("text", "asked", "found", "remedy"),
    [
        ("no", "= 'no'", "no JSON", 'Write it as {"network"'),
        ("[" * 9_000, "= '[[[", "no JSON", "Write it as"),
        ("[]", "= '[]'", "list", "Write it as"),
        ('{"hung": NaN}', "hung", "NaN, which is no number", "Write it as"),
        ('{"a": "' + "x" * 30_000 + '"}', "of 30009 characters", "more than 20000", "Name only the rows that change"),
        ('{"hung": {}, "hung": {}}', "hung", "'hung' twice", "Write it as"),
        ('{"meteor": {}}', "'meteor'", "no such class of failure", "device_memory, host_memory, hardware"),
        ('{"hung": 3}', "hung = 3", "int", "Write it as"),
        ('{"hung": {"retries": 3}}', "hung.retries = 3", "an unknown field", "Use action, times, delay"),
        ('{"hung": {"memory": "x2"}}', "hung.memory = 'x2'", "an unknown field", "Use action, times, delay"),
        ('{"hung": {"action": "pray"}}', "hung.action = 'pray'", "another text", "Use requeue or retry or fail"),
        ('{"hung": {"action": null}}', "hung.action = None", "null", "Use requeue or retry or fail"),
        ('{"hung": {"then": "requeue"}}', "hung.then = 'requeue'", "another text", "Use retry or fail"),
        ('{"hung": {"times": -1}}', "hung.times = -1", "a number out of range", "a whole number from 0 to 50, or null"),
        ('{"hung": {"times": 1.5}}', "hung.times = 1.5", "a number out of range", "a whole number from 0 to 50"),
        ('{"hung": {"times": true}}', "hung.times = True", "bool", "a whole number from 0 to 50"),
        ('{"hung": {"times": 51}}', "hung.times = 51", "a number out of range", "a whole number from 0 to 50"),
        ('{"hung": {"delay": "soon"}}', "hung.delay = 'soon'", "no duration", 'such as "30s"'),
        ('{"hung": {"delay": -1}}', "hung.delay = -1", "a time that is not above 0 s", 'such as "30s"'),
        ('{"hung": {"delay": 1e999}}', "hung.delay = inf", "the limit of 366 days", 'such as "30s"'),
        ('{"hung": {"max_delay": 0}}', "hung.max_delay = 0", "not above 0 s", 'such as "30s"'),
        ('{"hung": {"backoff": 0.5}}', "hung.backoff = 0.5", "a number out of range", "from 1 to 10"),
        ('{"hung": {"backoff": 1e999}}', "hung.backoff = inf", "a number out of range", "from 1 to 10"),
        ('{"hung": {"avoid": "planet"}}', "hung.avoid = 'planet'", "another text", "device or worker, or null"),
        ('{"device_memory": {"memory": "x1"}}', "device_memory.memory = 'x1'", "another text", 'such as "x2"'),
        ('{"device_memory": {"memory": 2}}', "device_memory.memory = 2", "a number out of range", 'such as "x2"'),
        ('{"device_memory": {"memory_limit": "-1GiB"}}', "memory_limit = '-1GiB'", "no size", 'such as "80GiB"'),
        ('{"waiting": {"after": "0s"}}', "waiting.after = '0s'", "0 s", "Write a duration"),
        ('{"waiting": {"action": "requeue"}}', "waiting.action", "another text", "next_alternative or keep"),
    ],
)  # fmt: skip
def test_an_invalid_table_is_refused_with_a_remedy(text, asked, found, remedy):
    with pytest.raises(SettingsError) as caught:
        parse_rules(text)
    assert caught.value.asked.startswith("[hetero] recovery_rules")
    assert asked in caught.value.asked
    assert found in caught.value.found
    assert remedy in caught.value.remedy
    assert len(str(caught.value)) < 600


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*FailureClass, "waiting", "meteor"])
FIELDS = st.sampled_from([
    "action", "times", "delay", "backoff", "max_delay", "then", "memory", "memory_limit", "avoid", "after", "x",
])  # fmt: skip
VALUES = JSON | st.sampled_from(["requeue", "retry", "fail", "x2", "80GiB", "10s", "device", "worker", "keep", 3, 2.0])


@given(st.one_of(st.dictionaries(NAMES, st.dictionaries(FIELDS, VALUES, max_size=4), max_size=3).map(json.dumps),
                 JSON.map(json.dumps), st.text(max_size=200)))  # fmt: skip
def test_any_text_is_a_whole_table_within_bounds_or_is_refused(text):
    try:
        rules = parse_rules(text)
    except SettingsError as error:
        assert error.asked  # noqa: PT017
        return
    assert set(rules.rows) == set(FailureClass)
    for rule in rules.rows.values():
        assert rule.times is None or 0 <= rule.times <= MAX_FAILURES
        delays = [rule.delay_after_s(n) for n in (0, 1, 2, 1000)]
        assert all(delay is None or 0 <= delay <= rule.max_delay_s for delay in delays)
        assert delays == sorted(delays, key=lambda delay: -1 if delay is None else delay)
        assert rule.memory is None or rule.memory > 1


def test_the_fields_of_the_table_in_the_docstring_are_those_that_are_read():
    readable = module._MEMORY_FIELDS
    assert all(f"\n{name} " in module.__doc__ for name in readable)
    assert len(readable) == len(fields(Rule))
