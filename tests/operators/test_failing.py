"""A run that another one has overtaken says nothing to Airflow, which would take it for the other's end."""

import multiprocessing
import time

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from hetero_airflow.errors import FencedOut
from hetero_airflow.operators import DevicePythonOperator, failing
from tests.operators.test_operators import AnInstance


def fenced_out():
    raise FencedOut("a checkpoint with token 1", found="a run with token 2", remedy="End this process")


def run(answer=None):
    try:
        DevicePythonOperator(task_id="t", python_callable=fenced_out, device="gpu").execute({"ti": AnInstance()})
    finally:
        if answer is not None:
            answer.set()


def test_it_waits_until_its_supervisor_ends_it():
    context = multiprocessing.get_context("fork")
    answer = context.Event()
    process = context.Process(target=run, args=(answer,))
    process.start()
    assert not answer.wait(2)
    assert process.is_alive()
    process.kill()
    process.join()


def test_where_airflow_takes_it_for_the_process_of_the_task_it_is_requeued_after_a_while(monkeypatch):
    monkeypatch.setattr(failing, "_TO_BE_ENDED_S", 0.3)
    start = time.monotonic()
    with pytest.raises(AirflowRescheduleException):
        run()
    assert time.monotonic() - start >= 0.3
