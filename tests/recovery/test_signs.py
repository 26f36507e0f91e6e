import pytest
from airflow.sdk.exceptions import AirflowFailException

from hetero_airflow.errors import FencedOut, LeaseLost
from hetero_airflow.recovery import signs
from hetero_airflow.recovery.classify import classify
from hetero_airflow.recovery.evidence import Evidence, chain_of
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime import notice


def test_the_exit_code_of_a_stopped_process_is_that_of_the_runtime():
    assert signs.EXIT_STOPPED == notice.EXIT_STOPPED


@pytest.mark.parametrize(
    ("kind", "failure_class"),
    [
        (notice.Stopped, FailureClass.PREEMPTED),
        (FencedOut, FailureClass.LOST_WORKER),
        (LeaseLost, FailureClass.LOST_WORKER),
        (AirflowFailException, FailureClass.USER_ERROR),
        (ModuleNotFoundError, FailureClass.USER_ERROR),
    ],
)
def test_types_are_named_in_the_table_as_they_are_in_the_code(kind, failure_class):
    error = kind.__new__(kind)
    assert classify(Evidence(raised=chain_of(error)[:1])).failure_class is failure_class


def test_torchs_types_are_named_in_the_table_as_they_are_in_torch():
    torch = pytest.importorskip("torch")
    from torch import distributed

    for kind, failure_class in (
        (torch.OutOfMemoryError, FailureClass.DEVICE_MEMORY),
        (distributed.DistNetworkError, FailureClass.NETWORK),
        (distributed.DistStoreError, FailureClass.NETWORK),
    ):
        assert classify(Evidence(raised=chain_of(kind("")))).failure_class is failure_class
