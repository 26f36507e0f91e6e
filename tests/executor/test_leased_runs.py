import signal

import pytest

from hetero_airflow.engines.engine import Liveness, TerminationCause
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.store import WorkerLost, WorkerSeen
from hetero_airflow.testing import a_worker, move_lease


def start(bench, name="a", device="gpu:2"):
    id_ = bench.start(name, device)
    return id_, bench.lease(id_)


def states(bench, name="a"):
    return [lease.state for lease in bench.store.request_history("dag", "run", name).leases]


def test_the_processes_of_many_ended_tasks_are_one_line_of_log(bench, caplog):
    leases = [start(bench, name, "gpu")[1].id for name in "ab"]
    for name in "ab":
        bench.end(name)
    bench.beat(1, times=3)
    (line,) = [record.getMessage() for record in caplog.records if "processes still run" in record.getMessage()]
    assert line.startswith("The tasks of 2 leases are over, but their processes still run.")
    assert all(f"{lease_id} (the task ended)" in line for lease_id in leases)


def test_a_lease_is_freed_only_when_its_processes_are_gone(bench, caplog):
    _, lease = start(bench)
    bench.end("a")
    bench.beat(1)
    assert states(bench) == [LeaseState.ACTIVE]
    assert bench.engine.signals == [(lease.id, signal.SIGTERM)]
    bench.beat(4)
    assert bench.engine.signals == [(lease.id, signal.SIGTERM)]
    bench.beat(1)
    assert bench.engine.signals[1] == (lease.id, signal.SIGKILL)
    bench.engine.alive.clear()
    bench.beat(1)
    assert states(bench) == [LeaseState.RELEASED]


def test_leases_of_what_runs_and_of_what_ends_slowly_are_renewed(bench):
    start(bench)
    bench.end("a")
    bench.beat(15, times=20)
    assert states(bench) == [LeaseState.ACTIVE]


def test_a_task_whose_process_is_gone_is_reported_failed_and_its_lease_evicted(bench):
    start(bench)
    bench.beat(5)
    bench.engine.alive.clear()
    bench.beat(5, times=2)
    assert bench.reports == []
    bench.beat(5)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    assert "process 100 on here is gone" in bench.reports[0][2]
    bench.beat(1)
    assert states(bench) == [LeaseState.EVICTED]


def test_what_a_cluster_took_is_lost_at_once_and_the_cause_is_its_word(bench):
    _, lease = start(bench)
    bench.on_a_cluster({lease.id: TerminationCause()}, {lease.id: "pod default/a (evicted): low on memory"})
    bench.beat(5, times=2)
    assert bench.store.request_history("dag", "run", "a").cause == "pod default/a (evicted): low on memory"


def test_what_ended_in_a_cluster_by_itself_is_still_to_be_reported(bench):
    start(bench)
    bench.on_a_cluster({})
    bench.beat(5)
    assert (bench.reports, states(bench)) == ([], [LeaseState.ACTIVE])


def test_what_was_killed_for_memory_before_airflow_heard_of_it_is_lost_and_not_just_tried_again(bench):
    id_ = bench.hold("a")
    bench.beat()
    lost = []
    bench.commands._send_back = lambda run, now: not lost.append(run.lease.id)
    lease = bench.lease(id_)
    bench.on_a_cluster({lease.id: TerminationCause(is_out_of_memory=True)})
    bench.beat(5, times=2)
    assert (lost, bench.started, bench.reports) == ([lease.id], ["a"], [])


def test_what_was_taken_before_it_began_is_tried_again(bench):
    id_ = bench.hold("a")
    bench.beat()
    bench.on_a_cluster({bench.lease(id_).id: TerminationCause()})
    bench.beat(5, times=2)
    assert (bench.started, bench.reports) == (["a", "a"], [])


def test_a_task_that_the_engine_still_has_in_hand_is_not_lost(bench):
    bench.engine.in_hand = {bench.hold("a")}
    bench.beat(5, times=10)
    assert bench.reports == []
    assert states(bench) == [LeaseState.ACTIVE]


def test_a_task_that_the_engine_lost_before_it_began_is_held_again_with_the_same_try(bench):
    bench.hold("a")
    bench.beat(5, times=4)
    assert (bench.started, bench.reports) == (["a", "a"], [])
    assert sorted(states(bench)) == [LeaseState.EVICTED, LeaseState.GRANTED]


def test_a_task_that_did_not_begin_on_one_worker_is_tried_on_another(bench):
    """What takes tasks on the first may be away, though its agent is not."""
    bench.engine.reaches = lambda worker: True
    bench.store.record([WorkerSeen(a_worker("worker-b", a_worker().devices, host="b"))], bench.clock.now())
    bench.hold("a")
    bench.beat(5, times=4)
    workers = {lease.state: lease.worker_id for lease in bench.store.request_history("dag", "run", "a").leases}
    assert workers == {LeaseState.EVICTED: "worker-a", LeaseState.GRANTED: "worker-b"}


def test_a_task_that_airflow_queued_anew_blames_no_worker_though_the_engine_never_reported_its_end(bench):
    bench.engine.reaches = lambda worker: True
    bench.store.record([WorkerSeen(a_worker("worker-b", a_worker().devices, host="b"))], bench.clock.now())
    id_, _ = start(bench)
    bench.engine.alive.clear()
    bench.hold("a")
    bench.beat(5, times=4)
    (request,) = bench.store.snapshot().holders.values()
    assert (request.id, [alternative.labels for alternative in request.request.alternatives]) == (id_, [{}])


TO_BE_QUEUED_ANEW = ["scheduled", "up_for_retry", "up_for_reschedule", "deferred", "awaiting_input"]
"""No end is reported: Airflow would take it for the end of the run that is to come, and fail the task."""


@pytest.mark.parametrize(
    ("state", "reports"),
    [("success", [("a", "success", None)]), *((state, []) for state in TO_BE_QUEUED_ANEW)],
    ids=["success", *TO_BE_QUEUED_ANEW],
)
def test_a_task_that_is_over_although_the_engine_never_reported_it_frees_its_devices(bench, state, reports):
    """Its supervisor was killed between the task's end and its report."""
    id_, _ = start(bench)
    bench.engine.alive.clear()
    bench.tasks.rows[id_] = TaskProcess(state, 100, "here", bench.clock.now())
    bench.beat(5, times=4)
    assert (bench.reports, bench.runs.leased) == (reports, {})
    assert states(bench) == [LeaseState.RELEASED]


def test_one_look_at_the_processes_serves_all_running_tasks(bench):
    for name in "ab":
        start(bench, name, "gpu:0.5")
    looks = []
    bench.engine.liveness_of = lambda uses: looks.append(len(uses)) or {use.lease.id: Liveness.ALIVE for use in uses}
    bench.beat(5)
    assert looks == [2]


def test_a_task_on_another_host_is_not_judged_from_here(bench):
    id_, _ = start(bench)
    bench.engine.alive.clear()
    bench.tasks.rows[id_] = TaskProcess("running", 100, "elsewhere", bench.clock.now())
    bench.beat(5, times=10)
    assert bench.reports == []


def test_a_task_whose_worker_is_lost_is_lost_at_once(bench):
    """Its agent was silent for long enough; there is no report to wait for."""
    _, lease = start(bench)
    bench.store.record([WorkerLost(lease.worker_id)], bench.clock.now())
    bench.engine.alive.clear()
    bench.beat(5)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    bench.beat()
    assert states(bench) == [LeaseState.EVICTED]


def test_a_lease_whose_task_waits_again_is_not_taken_for_one_that_may_start(bench):
    """The task instance is QUEUED for its next run, under the same id."""
    id_, _ = start(bench)
    bench.engine.liveness_of = lambda uses: {
        use.lease.id: Liveness.UNKNOWN if use.state == "queued" else Liveness.GONE for use in uses
    }
    bench.end("a")
    bench.tasks.rows[id_] = TaskProcess("queued")
    bench.beat()
    assert states(bench) == [LeaseState.RELEASED]


def test_a_task_whose_agent_alone_is_silent_keeps_its_devices(bench):
    _, lease = start(bench)
    bench.store.record([WorkerLost(lease.worker_id)], bench.clock.now())
    bench.beat(5, times=10)
    assert (bench.reports, states(bench)) == ([], [LeaseState.ACTIVE])


def test_an_adopted_task_that_ends_is_reported_since_no_engine_will(make_bench, bench):
    id_, lease = start(bench)
    heir = make_bench(bench.store)
    heir.tasks.rows = bench.tasks.rows
    heir.engine.alive = bench.engine.alive
    heir.take_over("a", lease)
    heir.beat(5)
    heir.engine.alive.clear()
    heir.tasks.rows[id_] = TaskProcess("success", 100, "here", heir.clock.now())
    heir.beat(5, times=4)
    assert heir.reports == [("a", "success", None)]
    assert states(heir) == [LeaseState.RELEASED]


def test_a_cleared_task_is_over_for_its_old_try(make_bench, bench):
    """Its row is history under the old id; what runs under it is being stopped by Airflow."""
    id_, lease = start(bench)
    heir = make_bench(bench.store)
    heir.take_over("a", lease)
    heir.engine.alive = {lease.id: [100]}
    heir.tasks.rows[id_] = TaskProcess(None, 100, "here", heir.clock.now())
    heir.beat(5, times=4)
    assert heir.reports == [("a", "success", None)]
    assert states(heir)[0] is LeaseState.ACTIVE
    heir.engine.alive.clear()
    heir.beat(1)
    assert states(heir) == [LeaseState.RELEASED]


def test_an_expired_lease_of_a_dead_scheduler_is_taken_back_once_its_process_is_gone(make_bench, bench):
    id_, lease = start(bench)
    heir = make_bench(bench.store)
    heir.tasks.rows, heir.engine.alive = bench.tasks.rows, {lease.id: [100]}
    heir.beat(100)
    assert states(heir) == [LeaseState.EXPIRED]
    heir.engine.alive.clear()
    heir.tasks.rows[id_] = TaskProcess("queued")
    heir.beat(5)
    assert states(heir) == [LeaseState.EXPIRED], "it was dispatched and may still start: unknown is not gone"
    heir.tasks.rows[id_] = TaskProcess("failed", 100, "here", heir.clock.now())
    heir.beat(5)
    assert states(heir) == [LeaseState.EVICTED]


def test_a_task_whose_lease_was_taken_back_is_stopped(bench):
    _, lease = start(bench)
    move_lease(bench.store, lease.id, lease.token, LeaseState.EVICTED, bench.clock.now())
    bench.beat(20)
    assert bench.engine.signals[0] == (lease.id, signal.SIGKILL)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("success", RunEnd.FINISHED),
        ("failed", RunEnd.FAILED),
        ("up_for_retry", RunEnd.FAILED),
        (None, RunEnd.FAILED),
        ("deferred", RunEnd.PAUSED),
        ("up_for_reschedule", RunEnd.PAUSED),
    ],
)
def test_how_a_task_ended_is_airflows_word_not_the_engines(bench, state, end):
    id_, _ = start(bench)
    bench.tasks.rows[id_] = TaskProcess(state, 100, "here", bench.clock.now())
    bench.finish("a")
    bench.beat(7)
    assert [(run.task, run.held_s, run.end) for run in bench.store.runs()] == [(("dag", "a"), 7.0, end)]
    has_failed = state in ("failed", "up_for_retry")
    cause = bench.store.request_history("dag", "run", "a").cause
    assert cause == ("the task failed" if has_failed else "the task ended")


def test_a_lost_task_is_a_lost_run(bench):
    start(bench)
    bench.engine.alive.clear()
    bench.beat(5, times=5)
    assert [run.end for run in bench.store.runs()] == [RunEnd.LOST]


def test_a_task_whose_lease_was_ended_before_it_began_waits_again(bench):
    """The scheduler was stopped for longer than a lease lives, and the engine lost the task meanwhile."""
    id_ = bench.hold("a")
    bench.beat()
    lease = bench.lease(id_)
    bench.beat(100)
    assert [known.token for known in bench.store.snapshot().leases] in ([], [lease.token + 1])
    bench.beat(1)
    assert (bench.started, bench.lease(id_).token) == (["a", "a"], lease.token + 1)
    assert bench.reports == []
