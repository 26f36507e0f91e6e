from datetime import timedelta

import pytest

from hetero_airflow.executor import request_resolver
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.testing import EPOCH


@pytest.fixture
def resolver(bench):
    resolver = RequestResolver(bench.tasks)
    yield resolver
    resolver.close()


@pytest.fixture
def submitted(monkeypatch, resolver):
    """The ids of the tasks whose templates were sent to be rendered."""
    submitted = []
    monkeypatch.setattr(resolver._renderer, "knows", lambda id_: id_ in submitted)
    monkeypatch.setattr(resolver._renderer, "submit", lambda id_, *_: submitted.append(id_))
    return submitted


def test_many_dag_runs_are_read_over_several_rounds(bench, resolver, submitted, monkeypatch):
    ids = [bench.hold(name) for name in "abc"]
    tasks = list(bench.queue.tasks.values())
    for task, run_id in zip(tasks, ("first", "first", "second"), strict=True):
        task.requested, task.workload.ti.run_id = {"device": "{{ params.n }}"}, run_id
    monkeypatch.setattr(request_resolver, "_READ_S", 1e-9)
    for expected in (ids[:2], ids):
        resolver.begin_round()
        assert [resolver.resolve(task, EPOCH) for task in tasks] == [None, None, None]
        assert submitted == expected


def test_the_log_says_that_a_task_waits_for_its_templates_once_it_has_waited(bench, resolver, submitted, tmp_path):
    bench.hold("a")
    (task,) = bench.queue.tasks.values()
    task.requested, task.workload.log_path = {"device": "{{ params.n }}"}, str(tmp_path / "task.log")
    resolver.resolve(task, task.since)
    assert not (tmp_path / "task.log").exists()
    for _ in range(3):
        resolver.resolve(task, task.since + timedelta(seconds=1))
    assert (tmp_path / "task.log").read_text().count("Waiting until the templates") == 1
