import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException

from hetero_airflow.errors import CheckpointStoreUnavailable, FencedOut, LeaseLost
from hetero_airflow.operators.gang_rendezvous import LeaderTimeout
from hetero_airflow.recovery.classification import EXIT_STOPPED, classify
from hetero_airflow.recovery.evidence import Evidence, chain_of
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime import notice


def test_the_exit_code_of_a_stopped_process_is_that_of_the_runtime():
    assert EXIT_STOPPED == notice.EXIT_STOPPED


@pytest.mark.parametrize(
    ("kind", "failure_class"),
    [
        (notice.Stopped, FailureClass.PREEMPTED),
        (FencedOut, FailureClass.LOST_WORKER),
        (LeaseLost, FailureClass.LOST_WORKER),
        (CheckpointStoreUnavailable, FailureClass.NETWORK),
        (LeaderTimeout, FailureClass.NETWORK),
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


def what_it_is(fails):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    return classify(Evidence(raised=chain_of(caught.value)))


def exits_by(signal):
    code = f"import os; os.kill(os.getpid(), {signal})"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("fails", "failure_class"),
    [
        (lambda: bytearray(2**62), FailureClass.HOST_MEMORY),
        (lambda: np.empty((2**50,)), FailureClass.HOST_MEMORY),
        (lambda: exits_by(9), FailureClass.LOST_WORKER),
        (lambda: exits_by(11), FailureClass.UNKNOWN),
        (lambda: {}["label"], FailureClass.CODE_ERROR),
        (lambda: len(7), FailureClass.CODE_ERROR),
        (lambda: int("seven"), FailureClass.UNKNOWN),
    ],
)
def test_real_failures_have_their_class(fails, failure_class):
    assert what_it_is(fails).failure_class is failure_class


def test_real_failures_of_torch_have_their_class():
    torch = pytest.importorskip("torch")
    assert what_it_is(lambda: torch.empty(2**50)).failure_class is FailureClass.HOST_MEMORY
    store = torch.distributed.TCPStore
    no_server = what_it_is(lambda: store("127.0.0.1", 1, is_master=False, timeout=timedelta(milliseconds=1)))
    assert no_server.failure_class is FailureClass.NETWORK
