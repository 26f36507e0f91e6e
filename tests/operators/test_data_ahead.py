"""While a task runs, the data of the tasks after it comes into the cache of its host."""

import subprocess
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset, BaseOperator

from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator
from hetero_airflow.operators.data_ahead import data_ahead, data_read_ahead
from hetero_airflow.runtime import data
from hetero_airflow.task_policy import task_policy
from tests.runtime.data.conftest import (
    bucket,
    clients_are_closed,
    new_bucket,
    s3_credentials,
    s3_server,
    settings,
    use,
)
from tests.waiting import eventually

__all__ = ["bucket", "clients_are_closed", "new_bucket", "s3_credentials", "s3_server", "settings", "use"]

FIRST, SECOND = "s3://lake/first.csv", "s3://lake/second/"


def a_task(task_id: str, **arguments):
    return DevicePythonOperator(task_id=task_id, python_callable=print, device="cpu", **arguments)


def test_the_data_of_the_device_tasks_that_directly_follow():
    with DAG("d"):
        begin = a_task("begin", data="s3://lake/own")
        begin >> [a_task("a", data=[FIRST, SECOND, "s3://lake/own"]), a_task("b", data=SECOND), a_task("c")]
        begin >> BaseOperator(task_id="plain") >> a_task("later", data="s3://lake/later")
    assert data_ahead(begin) == [FIRST, SECOND]


@pytest.mark.parametrize("outlet", [FIRST, f"{SECOND}part-0", SECOND.rstrip("/")])
def test_what_the_task_itself_writes_is_not_read_ahead(outlet):
    with DAG("d"):
        begin = a_task("begin", outlets=[Asset(outlet)])
        begin >> a_task("a", data=[FIRST, SECOND])
    assert data_ahead(begin) == ([SECOND] if outlet == FIRST else [FIRST])


def test_what_the_task_itself_reads_is_not_read_ahead_but_a_folder_around_it_is():
    with DAG("d"):
        begin = a_task("begin", data=[f"{SECOND}part-0", "s3://own"])
        begin >> a_task("a", data=[SECOND, "s3://own/part-1"])
    assert data_ahead(begin) == [SECOND]


def test_a_task_without_a_dag_has_no_next_one():
    assert data_ahead(a_task("alone")) == []


def test_a_host_without_room_for_the_process_fails_no_task(begin, monkeypatch):
    def no_room(*arguments, **options):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_room)
    with data_read_ahead(begin[0]):
        pass


def test_a_process_that_has_died_fails_no_task(begin, monkeypatch):
    class Dead(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            assert self.wait() != 0

    monkeypatch.setattr(subprocess, "Popen", Dead)
    monkeypatch.setattr("hetero_airflow.operators.data_ahead._MODULE", "hetero_airflow.no_such_module")
    with data_read_ahead(begin[0]):
        pass


def test_templates_have_no_value_yet():
    with DAG("d"):
        begin = a_task("begin")
        begin >> a_task("a", data=["s3://lake/{{ ds }}", FIRST], quota={"cpus": "{{ params.cores }}"})
    assert data_ahead(begin) == [FIRST]


def test_a_mapped_task_follows():
    with DAG("d"):
        begin = a_task("begin")
        mapped = DeviceBashOperator.partial(task_id="a", device="cpu", data=[FIRST]).expand(bash_command=["true"] * 2)
        begin >> mapped
    task_policy(mapped)  # as when Airflow reads a DAG file
    assert data_ahead(begin) == [FIRST]


@pytest.fixture
def begin(bucket):
    """A task, and the URL that the next one reads."""
    url = bucket.put("train/0", b"abc")
    with DAG("d"):
        begin = a_task("begin")
        begin >> a_task("a", data=f"{bucket.url}/train/")
    return begin, url


def test_the_object_is_in_the_cache_while_the_task_runs(begin, use, settings):
    task, url = begin
    with data_read_ahead(task):
        eventually(lambda: list(Path(settings["folder"]).glob("objects/*/*/*/data/0")))
    assert data.cached(url, revalidate="never").read_bytes() == b"abc"


def test_no_process_is_started_without_data_or_if_it_is_switched_off(begin, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with DAG("d"):
        last = a_task("last")
    with data_read_ahead(last):
        pass
    monkeypatch.setenv("AIRFLOW__HETERO__DATA_AHEAD", "no")
    with data_read_ahead(begin[0]):
        pass
