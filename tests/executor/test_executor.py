import threading
from multiprocessing import Pipe
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.callbacks.callback_requests import TaskCallbackRequest
from airflow.exceptions import AirflowConfigException
from airflow.executors.executor_loader import ExecutorLoader, ExecutorName
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.state import TaskInstanceState
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError

import hetero_airflow.executor.executor as executor_module
from hetero_airflow.contract.executor_names import EXECUTOR_CLASSPATH
from hetero_airflow.engines.engine import Liveness, TerminationCause, WorkerChanges
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.executor import HeteroExecutor
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_place, a_worker, move_lease
from tests.executor.conftest import Key

SUCCESS, FAILED = TaskInstanceState.SUCCESS, TaskInstanceState.FAILED


@pytest.fixture
def executor(bench, monkeypatch):
    """The executor over the bench, with an engine that reports the given events."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    executor = HeteroExecutor(parallelism=4)
    bench.engine.events, bench.engine.has_task, bench.engine.occupied_slots = {}, lambda ti: False, 0
    bench.engine.is_busy_with = lambda ti: False
    bench.engine.collect = lambda: bench.engine.events
    bench.engine.heartbeat = lambda: None
    bench.engine.withdraw = lambda key: False
    bench.engine.try_adopt = lambda tis: tis
    bench.engine.accepted = []
    bench.engine.accept = lambda workload, session: bench.engine.accepted.append(workload)
    bench.store.invalidate = lambda: None
    executor._engine = bench.engine
    executor._use(bench.dispatcher)
    bench.pass_on = executor._report
    return executor


def start(bench, name="a"):
    return bench.start(name, "gpu:2")


def a_task_instance(key, id_, state, device=True, **fields):
    config = {"hetero": {}} if device else {}
    return SimpleNamespace(key=key, id=id_, state=state, executor_config=config, **fields)


def succeed(executor, bench, make_bench):
    """The executor is the next scheduler's, which has the store of the one before and nothing else; its bench."""
    heir = make_bench(bench.store)
    executor._use(heir.dispatcher)
    heir.pass_on = executor._report
    return heir


def place_out_of_reach(bench, make_bench):
    """A scheduler of another host places a task there, and dies; the task's request id."""
    dead = make_bench(bench.store, clock=bench.clock, tasks=bench.tasks)
    dead.engine.reaches = lambda worker: worker.id == "far"
    bench.store.record([WorkerSeen(a_worker("far", devices=(a_device("GPU-9"),)))], EPOCH)
    id_ = dead.hold("a")
    dead.beat()
    return id_


@pytest.fixture
def queues_what_it_adopts(bench, executor, monkeypatch):
    """A queued task that it adopts waits on the bench."""
    monkeypatch.setattr(ExecuteTask, "make", lambda ti, generator: ti.key)
    monkeypatch.setattr(executor, "_read", lambda run, now: bench.hold(str(bench.runs.arrived.pop(run.key).key)))


def test_airflow_refuses_it_as_the_executor_of_one_team_and_loads_it_for_all():
    name = ExecutorName(EXECUTOR_CLASSPATH, alias="devices")
    assert ExecutorLoader.load_executor(name).team_name is None
    of_team = ExecutorName(EXECUTOR_CLASSPATH, alias="devices", team_name="red")
    with pytest.raises(AirflowConfigException, match="does not support multi-team functionality"):
        ExecutorLoader.load_executor(of_team)


def test_a_task_that_the_scheduler_declares_dead_fails_where_it_can_not_be_sent_back(bench, executor):
    """Trap 2: it tells us, not the engine."""
    start(bench)
    executor.change_state("a", FAILED)
    executor._take_messages(bench.clock.now())
    bench.beat(5)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    bench.beat(1)
    assert bench.engine.signals, "what is left of it is stopped"
    bench.engine.alive.clear()
    bench.beat(1)
    assert bench.store.snapshot().leases == ()


def test_a_task_that_the_scheduler_declares_dead_comes_again_with_the_same_try(bench, executor):
    """Its worker was frozen: the old process thaws, is refused, and its end is not that of the new run."""
    start(bench)
    lost = []
    bench.commands._send_back = lambda run, now: not lost.append(run.lease.id)
    executor.change_state("a", FAILED)
    executor._take_messages(bench.clock.now())
    assert executor.get_event_buffer() == {}
    bench.beat(5)
    assert (len(lost), bench.reports, bench.runs.leased) == (1, [], {})
    bench.engine.alive.clear()
    bench.beat(1)
    start(bench)
    bench.engine.events = {"a": (SUCCESS, None)}
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    assert "a" in bench.runs.leased


def test_held_and_running_tasks_are_known_so_that_old_end_events_are_stale(bench, executor):
    start(bench)
    bench.hold("b", "gpu:2")
    assert [executor.has_task(SimpleNamespace(key=key)) for key in "abc"] == [True, True, False]


def test_the_end_of_a_leg_is_swallowed_when_its_key_is_held_again(bench, executor):
    """Trap 1: Airflow would fail the task that waits under the same key."""
    start(bench)
    bench.hold("a", "gpu:2")
    bench.engine.events, bench.engine.alive = {"a": (SUCCESS, None)}, {}
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    assert bench.started == ["a", "a"]


def test_ends_of_device_tasks_and_of_plain_ones_reach_the_scheduler(bench, executor):
    start(bench)
    bench.engine.events, bench.engine.alive = {"a": (SUCCESS, None), "plain": (FAILED, "why")}, {}
    executor.heartbeat()
    assert executor.get_event_buffer() == {"a": (SUCCESS, None), "plain": (FAILED, "why")}


def test_a_queued_task_does_not_wait_for_the_report_on_running_ones(bench, executor):
    bench.hold("a", "gpu")
    seen = []
    bench.engine.collect = lambda: seen.append(bench.started) or {}
    executor.heartbeat()
    assert seen == [["a"]]


def test_an_ended_task_frees_its_devices_in_the_same_heartbeat(bench, executor):
    start(bench)
    bench.hold("b", "gpu:2")
    bench.beat()
    bench.engine.events, bench.engine.alive = {"a": (SUCCESS, None)}, {}
    executor.heartbeat()
    assert bench.started == ["a", "b"]


def test_a_failure_that_is_none_is_not_passed_on(bench, executor):
    start(bench)
    bench.engine.events = {"a": (FAILED, None)}
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    assert "a" in bench.runs.leased


def test_the_failure_of_an_adopted_task_that_its_cluster_lost_is_not_passed_on_but_concluded_once(
    bench, executor, make_bench
):
    """The scheduler died. The watch of the next scheduler's engine reports the end of the pod again."""
    id_ = start(bench)
    lease = bench.lease(id_)
    heir = succeed(executor, bench, make_bench)
    heir.tasks.rows[id_] = TaskProcess("running", 100, "here", heir.clock.now())
    lost = []
    heir.commands._send_back = lambda run, now: not lost.append(run.lease.id)
    heir.on_a_cluster({lease.id: TerminationCause(is_out_of_memory=True)})
    heir.take_over("a", lease)
    executor._process_ends({"a": (FAILED, None)}, bench.clock.now())
    assert (executor.get_event_buffer(), list(heir.runs.leased)) == ({}, ["a"])
    heir.beat(5, times=2)
    assert (lost, heir.reports, heir.runs.leased) == ([lease.id], [], {})


def test_a_revoked_task_leaves_without_an_event(bench, executor):
    start(bench)
    bench.hold("b", "gpu:2")
    bench.beat()
    executor.revoke_task(ti=SimpleNamespace(key="b"))
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    assert (list(bench.queued), bench.store.snapshot().pending) == ([], ())


def test_a_task_without_a_device_goes_straight_to_the_engine(bench, executor):
    callback = object()
    executor.queue_workload(callback, session=None)
    assert bench.engine.accepted == [callback]


def test_held_tasks_take_no_slot_and_running_ones_do(bench, executor):
    start(bench)
    bench.hold("b", "gpu:2")
    assert (executor.slots_occupied, executor.slots_available) == (1, 3)


def test_adoption_takes_what_can_be_seen_and_returns_the_rest(bench, executor, make_bench, monkeypatch):
    id_ = start(bench)
    bench.store.record(
        [WorkerSeen(a_worker("far", devices=(a_device("GPU-9"),))), RequestSubmitted(a_pending("far-task"))], EPOCH
    )
    bench.store.commit(Plan((a_place("far-task", "far", **{"GPU-9": 1000}),)), EPOCH, EPOCH)
    heir = succeed(executor, bench, make_bench)
    taken = []
    monkeypatch.setattr(ExecuteTask, "make", lambda ti, generator: ti.key)
    monkeypatch.setattr(executor, "_read", lambda run, now: taken.append(run.key))
    running = a_task_instance("a", id_, "running")
    unknown = a_task_instance(Key("b"), "no-lease", "running")
    queued = a_task_instance("c", "new", "queued")
    plain = a_task_instance("d", "plain", "queued", device=False)
    far = a_task_instance("e", "far-task", "running")
    assert executor.try_adopt_task_instances([running, unknown, queued, plain, far]) == [unknown]
    assert (list(heir.runs.leased), taken, list(heir.runs.arrived)) == (["a", "e"], ["c"], ["c", "d"])
    begun = heir.runs.leased["a"]
    assert executor.try_adopt_task_instances([running]) == []
    assert heir.runs.leased["a"] is begun, "asked to adopt its own task, it does not begin the lease again"


def test_the_lease_of_a_host_out_of_reach_is_renewed_while_its_task_runs_and_left_to_expire_afterwards(
    bench, executor, make_bench
):
    """Its scheduler was restarted under another host name, and Airflow gives the running task to this one."""
    id_ = place_out_of_reach(bench, make_bench)
    bench.tasks.rows[id_] = TaskProcess("running", 100, "far", bench.clock.now())
    assert executor.try_adopt_task_instances([a_task_instance(Key("a"), id_, "running")]) == []
    bench.beat(10, times=20)
    assert (bench.lease(id_).state, bench.reports) == (LeaseState.ACTIVE, [])
    bench.tasks.rows[id_] = TaskProcess("success", 100, "far", bench.clock.now())
    bench.beat(10, times=10)
    assert (bench.lease(id_).state, bench.engine.signals) == (LeaseState.EXPIRED, [])
    neighbour = make_bench(bench.store, clock=bench.clock, tasks=bench.tasks)  # another scheduler of that host
    neighbour.engine.liveness = lambda use: Liveness.GONE
    neighbour.beat()
    assert bench.store.snapshot().leases == ()


@pytest.mark.usefixtures("queues_what_it_adopts")
def test_a_queued_task_of_a_host_out_of_reach_waits_until_its_lease_is_over_and_is_placed_again(
    bench, executor, make_bench
):
    """Its scheduler died before it started. If nobody took it over, Airflow would use a try."""
    id_ = place_out_of_reach(bench, make_bench)
    first = bench.lease(id_)
    assert executor.try_adopt_task_instances([a_task_instance("a", id_, "queued")]) == []
    bench.beat(5)
    assert (first.worker_id, bench.engine.started, list(bench.queued)) == ("far", [], ["a"])
    neighbour = make_bench(bench.store, clock=bench.clock, tasks=bench.tasks)  # another scheduler of that host
    neighbour.engine.liveness = lambda use: Liveness.GONE
    neighbour.beat(90)
    bench.beat(5, times=2)
    second = bench.lease(id_)
    assert (second.worker_id, len(bench.engine.started), bench.reports) == ("worker-a", 1, [])
    assert second.token > first.token


@pytest.mark.usefixtures("queues_what_it_adopts")
def test_a_queued_task_of_a_host_out_of_reach_that_begins_after_all_is_followed(bench, executor, make_bench):
    id_ = place_out_of_reach(bench, make_bench)
    executor.try_adopt_task_instances([a_task_instance("a", id_, "queued")])
    bench.beat(1)
    bench.tasks.rows[id_] = TaskProcess("running", 100, "far", bench.clock.now())
    bench.beat(60)
    assert (list(bench.runs.leased), list(bench.queued), bench.reports) == (["a"], [], [])


@pytest.mark.parametrize("state", ["scheduled", "up_for_retry", "up_for_reschedule", "deferred"])
def test_the_end_of_a_task_that_will_be_queued_again_is_not_reported(bench, executor, state):
    """Its supervisor sent it back. Another scheduler schedules it before Airflow reads a report of this one."""
    id_ = start(bench)
    bench.engine.events = {"a": (SUCCESS, None)}
    bench.tasks.rows[id_] = TaskProcess(state, 100, "here", bench.clock.now())
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    assert "a" not in bench.runs.leased


@pytest.mark.usefixtures("queues_what_it_adopts")
@pytest.mark.parametrize(("job", "waits"), [(1, []), (2, ["a"])])
def test_what_another_scheduler_queued_again_waits_here_beside_its_last_run(bench, executor, job, waits):
    executor.job_id = 1
    id_ = start(bench)
    queued = a_task_instance(next(iter(bench.runs.leased)), id_, "queued", queued_by_job_id=job)
    assert executor.try_adopt_task_instances([queued]) == []
    assert list(map(str, bench.queued)) == waits


def test_a_cluster_learns_the_lease_of_an_adopted_task(bench, executor, make_bench):
    id_ = start(bench)
    heir = succeed(executor, bench, make_bench)
    followed = []
    heir.engine.cluster = SimpleNamespace(follow=lambda key, lease: followed.append((key, lease.request_id)))
    executor.try_adopt_task_instances([a_task_instance(Key("a"), id_, "running")])
    assert followed == [("a", id_)]


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_task_that_runs_for_airflow_though_a_cycle_took_its_lease_back_is_lost_and_not_given_up(
    bench, executor, make_bench, is_renamed
):
    """Its scheduler died with it; the next one finds the process gone before Airflow finds the scheduler gone.

    That one may have another host name, as after the restart of a container: the worker of the lease is not its own.
    """
    id_ = start(bench)
    lease = bench.lease(id_)
    move_lease(bench.store, lease.id, lease.token, LeaseState.EVICTED, bench.clock.now())
    heir = succeed(executor, bench, make_bench)
    if is_renamed:
        heir.engine.reaches = lambda worker: False
    heir.tasks.rows[id_] = TaskProcess("running", 100, "here", heir.clock.now())
    assert executor.try_adopt_task_instances([a_task_instance(Key("a"), id_, "running")]) == []
    heir.beat(5)
    assert [(key, state) for key, state, _ in heir.reports] == [("a", "failed")], "or sent back, where Airflow lets us"
    assert "a" not in heir.runs.leased


def test_the_end_frees_what_ended(bench, executor):
    id_ = start(bench)
    bench.engine.alive.clear()
    bench.tasks.rows[id_] = TaskProcess("success", 100, "here", bench.clock.now())
    bench.engine.end = lambda: {"a": (SUCCESS, None)}
    executor.end()
    (lease,) = bench.store.request_history("dag", "run", "a").leases
    assert lease.state is LeaseState.RELEASED


def test_between_two_heartbeats_the_device_of_an_ended_task_goes_to_the_next(bench, executor):
    start(bench)
    bench.hold("b", "gpu:2")
    executor.heartbeat()
    bench.clock.advance(1)
    bench.engine.alive.clear()
    bench.engine.events, started = {"a": (SUCCESS, None)}, []
    executor._react_to_ends(SimpleNamespace(start_handed_over=lambda: started.append(list(bench.engine.started))))
    assert [workload.key for workload in started[-1]] == ["a", "b"]
    assert executor.get_event_buffer() == {"a": (SUCCESS, None)}


def test_what_the_scheduler_says_in_a_transaction_waits_for_no_round(bench, executor):
    """The other thread may be in a round, and wait for rows that the transaction has locked."""
    start(bench)
    workload = ExecuteTask.model_construct(
        ti=SimpleNamespace(executor_config={"hetero": {"device": "gpu"}}, key="b", id="b")
    )
    with executor._round:
        executor.queue_workload(workload, None)
        assert executor.has_task(SimpleNamespace(key="b"))
        executor.change_state("a", FAILED)
        executor.revoke_task(ti=SimpleNamespace(key="b"))
        assert not executor.has_task(SimpleNamespace(key="b"))
        executor.get_event_buffer()


def test_an_adoption_that_waits_too_long_for_a_round_is_tried_again_by_airflow(bench, executor, monkeypatch):
    monkeypatch.setattr("hetero_airflow.executor.executor._MAX_ROUND_S", 0.01)
    unknown = a_task_instance(Key("b"), "b", "running")
    with executor._round, pytest.raises(OperationalError, match="adoption"):
        executor.try_adopt_task_instances([unknown])
    assert executor.try_adopt_task_instances([unknown]) == [unknown]


def test_our_own_tasks_need_no_round_when_airflow_offers_them_after_a_late_heartbeat(bench, executor):
    """On SQLite, a round of another thread may wait for the transaction in which the scheduler asks."""
    id_ = start(bench)
    bench.engine.is_busy_with = lambda ti: ti.key in ("plain", "check")
    plain = a_task_instance(Key("plain"), "p", "running", device=False)
    check = a_task_instance(Key("check"), "c", "queued")
    check.executor_config = {"hetero": {"is_probe": True}}
    with executor._round:
        assert executor.try_adopt_task_instances([a_task_instance("a", id_, "running"), plain, check]) == []


def test_a_plain_task_of_a_dead_scheduler_is_followed_though_the_engine_can_not_and_missed_heartbeats_end_it(
    bench, executor
):
    running = a_task_instance(Key("plain"), "p", "running", device=False)
    assert executor.try_adopt_task_instances([running]) == []
    executor.change_state(Key("plain"), FAILED)
    executor._take_messages(bench.clock.now())
    assert list(bench.runs.given_up) == [Key("plain")]


def test_the_callback_of_a_failure_waits_until_the_task_has_failed(bench, executor):
    """The scheduler sends it when heartbeats stop, and again if it fails the task."""
    executor.callback_sink = Mock()
    ids = {"dag_id": "dag", "task_id": "t", "run_id": "run", "try_number": 1, "map_index": -1}
    key = TaskInstanceKey(**ids)
    request = TaskCallbackRequest.model_construct(ti=SimpleNamespace(**ids))
    bench.runs.note_sent(key, "id", None, bench.clock.now())
    executor.send_callback(request)
    executor.change_state(key, FAILED)
    executor._take_messages(bench.clock.now())
    executor.send_callback(request)
    assert executor.callback_sink.send.call_count == 0
    bench.commands._send_back = lambda run, now: False
    bench.beat(1)
    executor.send_callback(request)
    assert executor.callback_sink.send.call_count == 1


def test_the_callback_of_a_task_that_was_stuck_in_the_queue_is_sent(bench, executor):
    """The scheduler revokes it first, and fails it without asking."""
    executor.callback_sink = Mock()
    ids = {"dag_id": "dag", "task_id": "t", "run_id": "run", "try_number": 1, "map_index": -1}
    key = TaskInstanceKey(**ids)
    bench.runs.note_sent(key, "id", None, bench.clock.now())
    executor.revoke_task(ti=SimpleNamespace(key=key))
    executor.send_callback(TaskCallbackRequest.model_construct(ti=SimpleNamespace(**ids)))
    assert executor.callback_sink.send.call_count == 1


def test_a_placement_check_of_a_dead_scheduler_is_followed(bench, executor):
    check = a_task_instance(Key("check"), "c", "running")
    check.executor_config = {"hetero": {"is_probe": True}}
    assert executor.try_adopt_task_instances([check]) == []
    assert list(bench.runs.sent) == [Key("check")]


def test_the_end_of_a_run_whose_task_was_just_queued_again_is_not_passed_on(bench, executor):
    start(bench)
    config = {"hetero": {"device": "gpu"}}
    executor.queue_workload(
        ExecuteTask.model_construct(ti=SimpleNamespace(executor_config=config, key="a", id="a")), None
    )
    bench.engine.events = {"a": (SUCCESS, None)}
    executor._react_to_ends(SimpleNamespace(start_handed_over=list))
    assert executor.get_event_buffer() == {}


def test_no_thread_runs_before_the_first_heartbeat_since_other_executors_fork_until_then(
    bench, executor, monkeypatch, tmp_path
):
    engine = create_engine(f"sqlite:///{tmp_path}/store.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    monkeypatch.setattr(executor_module, "airflow_engine", lambda: engine)
    monkeypatch.setattr(executor_module, "ensure_pool", lambda pool: None)
    monkeypatch.setattr(ExecutionApiWatch, "ask", lambda watch: None)
    readable, _writable = Pipe(duplex=False)
    bench.engine.start, bench.engine.terminate = lambda context: None, lambda: None
    bench.engine.prompt_ends = SimpleNamespace(readable=readable)
    watches = []
    bench.engine.cluster = SimpleNamespace(watch=lambda: watches.append("began"), poll=WorkerChanges)
    before = set(threading.enumerate())
    executor.start()
    assert (set(threading.enumerate()), watches) == (before, [])
    executor.heartbeat()
    executor.heartbeat()
    assert watches == ["began"]
    started = {thread.name for thread in set(threading.enumerate()) - before}
    executor.terminate()
    assert {"execution-api-watch", "hetero-end-watch"} <= started
