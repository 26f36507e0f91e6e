"""Requests with templates: how they are rendered, and that hostile ones fail their own task and delay nothing else."""

import resource
from datetime import timedelta

import pytest

from hetero_airflow.executor import request_resolver
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.templates.render_process import CPU_S
from hetero_airflow.testing import EPOCH
from tests.system.dags.hostile import HOSTILE


@pytest.fixture
def resolver(bench):
    resolver = RequestResolver(bench.store, bench.tasks, bench.commands.recovery, lambda worker_id: True)
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
    tasks = list(bench.queued.values())
    for task, run_id in zip(tasks, ("first", "first", "second"), strict=True):
        task.requested, task.workload.ti.run_id = {"device": "{{ params.n }}"}, run_id
    monkeypatch.setattr(request_resolver, "_READ_S", 1e-9)
    for expected in (ids[:2], ids):
        resolver.begin_round()
        assert [resolver.resolve(task, EPOCH) for task in tasks] == [None, None, None]
        assert submitted == expected


def test_the_log_says_that_a_task_waits_for_its_templates_once_it_has_waited(bench, resolver, submitted, tmp_path):
    bench.hold("a")
    (task,) = bench.queued.values()
    task.requested, task.workload.log_path = {"device": "{{ params.n }}"}, str(tmp_path / "task.log")
    resolver.resolve(task, task.since)
    assert not (tmp_path / "task.log").exists()
    for _ in range(3):
        resolver.resolve(task, task.since + timedelta(seconds=1))
    assert (tmp_path / "task.log").read_text().count("Waiting until the templates") == 1


def hold_template(bench, name, device, dag_id="dag"):
    bench.hold(name)
    task = bench.queued[name]
    task.requested, task.workload.ti.dag_id = {"device": device}, dag_id


def failures(bench):
    return {key: reason for key, state, reason in bench.reports if state == "failed"}


def test_hostile_templates_fail_their_tasks_and_cost_the_loop_nothing(bench):
    """All kinds at the same time, each in a DAG of its own. CPU time does not depend on what else the machine does."""
    for name, template in HOSTILE.items():
        hold_template(bench, name, template, dag_id=f"dag of {name}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = bench.beat_until(lambda: failures(bench).keys() >= HOSTILE.keys())
    assert max(seconds) < CPU_S / 2, "no template is rendered in the loop"
    assert len(seconds) > 40, "no heartbeat waits for the limit of a template"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10
    reasons = [failures(bench)[kind] for kind in HOSTILE]
    assert [reason for reason in reasons if "found a template that" not in reason or len(reason) > 500] == []


def test_a_dag_with_many_bad_templates_delays_only_itself(bench):
    for number in range(20):
        hold_template(bench, f"bad-{number}", f"{HOSTILE['nested_loops']}{number}")
    hold_template(bench, "good", "gpu:{{ params.n }}", dag_id="another")
    bench.beat_until(lambda: bench.started)
    assert len(failures(bench)) <= 4


def test_equal_templates_of_a_mapped_task_are_rendered_once(bench):
    for number in range(50):
        hold_template(bench, f"bad-{number}", HOSTILE["nested_loops"])
    bench.beat_until(lambda: len(failures(bench)) > 0)
    bench.beat()
    assert len(failures(bench)) == 50
