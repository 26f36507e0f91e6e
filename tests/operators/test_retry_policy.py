from datetime import timedelta

import pytest
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.retry_policy import RetryAction

from hetero_airflow.contract.state_keys import FAILURES
from hetero_airflow.errors import NoLeaseError, SettingsError
from hetero_airflow.operators.retry_policy import MAX_REASON, DeviceRetryPolicy
from hetero_airflow.recovery.classification import failure_of
from hetero_airflow.recovery.evidence import evidence_of
from hetero_airflow.recovery.failure import MAX_EVIDENCE, Failure, keep_failure
from hetero_airflow.recovery.rules import DEFAULTS, configured_rules, parse_rules
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import EPOCH, a_task_lease


class States(dict):
    """What a task's context has of the task state store."""


def context_with(*failures):
    record = None
    for failure in failures:
        record = keep_failure(record, failure)
    return {"task_state_store": States({FAILURES: record})}


def a_failure(failure_class, token, epoch=3, **fields):
    return Failure(**({"evidence": "x"} | fields), failure_class=failure_class, at=EPOCH, epoch=epoch, token=token)


def evaluated(error, context=None, rules=DEFAULTS):
    return DeviceRetryPolicy(rules).evaluate(error, try_number=1, max_tries=3, context=context)


@pytest.mark.parametrize(
    "error", [SyntaxError("bad"), ModuleNotFoundError("no torch"), NoLeaseError("a", found="b", remedy="c")]
)
def test_an_error_that_a_retry_can_not_cure_fails_at_once(error):
    decision = evaluated(error)
    assert decision.action is RetryAction.FAIL
    assert f"{type(error).__name__} ended the task" in decision.reason
    assert decision.reason.endswith("fails at once, by the rule for user_error.")


@pytest.mark.parametrize("error", [KeyError("label"), NameError("x"), TypeError("x"), FileNotFoundError("a.csv")])
def test_an_error_that_may_depend_on_the_data_has_the_tasks_own_retries(error):
    decision = evaluated(error)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, None)
    assert decision.reason.endswith("left to the task's retries, by the rule for code_error.")
    rules = parse_rules('{"code_error": {"action": "fail"}}')
    assert evaluated(error, None, rules).action is RetryAction.FAIL


def test_a_module_that_another_worker_may_have_is_no_reason_to_give_up(monkeypatch):
    lease = a_task_lease(token=9, is_remote=True)
    error = ModuleNotFoundError("no torch")
    record = failure_of(evidence_of(error), lease, 3, EPOCH)
    monkeypatch.setenv(LEASE_VARIABLE, lease.model_dump_json())
    context = {"task_state_store": States({FAILURES: keep_failure(None, record)})}
    assert evaluated(error, context).action is RetryAction.RETRY


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        (a_task_lease(), ("worker", False)),
        (a_task_lease(simulated=True), ("code_error", False)),
        (a_task_lease(vendor="generic", kind="cpu"), ("code_error", False)),
        (None, ("code_error", False)),
    ],
)
def test_a_task_that_looks_for_a_gpu_which_it_has_not_leased_can_not_blame_its_worker(lease, expected):
    failure = failure_of(evidence_of(RuntimeError("No CUDA GPUs are available")), lease, 3, EPOCH)
    assert (failure.failure_class, failure.is_of_host) == expected
    full = failure_of(evidence_of(OSError(28, "No space left on device")), lease, 3, EPOCH)
    assert (full.failure_class, full.is_of_host) == ("worker", True)


def test_an_unknown_error_has_the_tasks_own_retries_and_delay():
    decision = evaluated(ValueError("loss is nan"))
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, None)


def test_a_delay_of_the_rules_becomes_the_retrys():
    decision = evaluated(RuntimeError("NCCL timeout"))
    assert decision.retry_delay == timedelta(seconds=10)
    assert decision.reason == 'It had a network failure ("NCCL timeout" in the exception): left to the task\'s retries.'
    rules = parse_rules('{"unknown": {"delay": "1m"}}')
    context = context_with(a_failure("unknown", 1))
    assert evaluated(ValueError(""), context, rules).retry_delay == timedelta(minutes=2)


def test_the_budget_of_the_state_store_counts():
    rules = parse_rules('{"network": {"times": 2, "then": "fail"}}')
    first, second = a_failure("network", 1), a_failure("network", 2)
    assert evaluated(RuntimeError("NCCL timeout"), context_with(first), rules).action is RetryAction.RETRY
    assert evaluated(RuntimeError("NCCL timeout"), context_with(first, second), rules).action is RetryAction.FAIL


def test_a_recorded_cause_of_this_run_counts_more_than_the_exception(monkeypatch):
    lease = a_task_lease(token=9)
    monkeypatch.setenv(LEASE_VARIABLE, lease.model_dump_json())
    recorded = a_failure("hardware", 9, evidence="XID 79 on GPU-1")
    assert "XID 79 on GPU-1" in evaluated(KeyError("label"), context_with(recorded)).reason
    unrelated = a_failure("hardware", 8)
    assert evaluated(SyntaxError("x"), context_with(unrelated)).action is RetryAction.FAIL


@pytest.mark.parametrize(
    "context", [None, {}, {"task_state_store": States()}, {"task_state_store": States({FAILURES: 7})}]
)
def test_it_decides_without_a_state_store_that_can_be_read(context):
    assert evaluated(SyntaxError("x"), context).action is RetryAction.FAIL


def test_a_reason_fits_into_airflows_column(monkeypatch):
    monkeypatch.setenv(LEASE_VARIABLE, a_task_lease(token=9).model_dump_json())
    context = context_with(a_failure("network", 9, evidence="x" * MAX_EVIDENCE))
    assert len(evaluated(ValueError(""), context).reason) <= MAX_REASON


def test_the_rules_are_those_of_the_configuration(monkeypatch):
    assert configured_rules(conf) == DEFAULTS
    monkeypatch.setenv("AIRFLOW__HETERO__RECOVERY_RULES", '{"user_error": {"action": "retry"}}')
    assert DeviceRetryPolicy().evaluate(SyntaxError("x"), 1, 3).action is RetryAction.RETRY


def test_a_table_that_can_not_be_read_is_said(monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__RECOVERY_RULES", '{"meteor": {}}')
    with pytest.raises(SettingsError, match="no such class of failure"):
        DeviceRetryPolicy().evaluate(KeyError("x"), 1, 3)
