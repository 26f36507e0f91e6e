"""Templates that would use all time or memory of the scheduler: each fails its own task and delays nothing else."""

import resource

from hetero_airflow.executor.templates.render_process import CPU_S
from tests.system.dags.hostile import HOSTILE


def hold_template(bench, name, device, dag_id="dag"):
    bench.hold(name)
    task = bench.queue.tasks[name]
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
