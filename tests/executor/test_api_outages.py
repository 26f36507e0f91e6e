"""An outage of Airflow's API server: nothing is placed, nothing that runs is given up, and no retry is used."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import UUID, uuid5

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import OperationalError

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.executor import HeteroExecutor
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_place, a_worker

SUCCESS, FAILED = TaskInstanceState.SUCCESS, TaskInstanceState.FAILED


@pytest.fixture
def executor(bench, monkeypatch):
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    executor = HeteroExecutor(parallelism=4)
    executor._engine = bench.engine
    executor._clock = bench.clock
    executor._use(bench.dispatcher)
    bench.pass_on = executor._report
    return executor


def fail_start(bench, executor, key="a"):
    """The engine reports that the task's supervisor failed; the states that Airflow hears."""
    executor._process_ends({key: (FAILED, None)}, bench.clock.now())
    return {key: state for key, (state, _) in executor.get_event_buffer().items()}


class TestPlacing:
    def test_nothing_is_placed_until_the_server_answers_and_the_reason_is_kept(self, bench):
        bench.lose_api_server()
        bench.hold("a")
        bench.beat()
        bench.beat(60)
        assert (bench.started, bench.store.snapshot().leases) == ([], ())
        newest, *_ = bench.store.request_history("dag", "run", "a").decisions
        assert newest["reason"]["code"] == "api_server"
        assert "Connection refused" in bench.queued["a"].logged_wait
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == ["a"]

    def test_a_lease_that_no_scheduler_has_used_is_used_only_when_the_task_can_start(self, bench):
        id_ = bench.hold("a")
        bench.store.record([RequestSubmitted(a_pending(id_))], EPOCH)
        (lease,) = bench.store.commit(Plan((a_place(id_, **{"GPU-0": 1000}),)), EPOCH, EPOCH).leases
        bench.lose_api_server()
        bench.beat(1)
        assert (bench.started, bench.lease(id_).starter) == ([], None)
        bench.bring_back_api_server()
        bench.beat(1)
        assert (bench.started, bench.lease(id_).token) == (["a"], lease.token)

    def test_a_placement_check_waits_too(self, bench):
        bench.ask("room")
        bench.lose_api_server()
        bench.beat(1)
        assert bench.started == []
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == ["room"]


class TestRunning:
    def test_what_runs_is_shown_to_be_alive_to_airflow_while_no_heartbeat_can_arrive(self, bench):
        id_ = bench.start("a")
        bench.beat(5)
        assert bench.tasks.refreshed_running == []
        bench.lose_api_server()
        bench.beat(1)
        bench.beat(5)
        assert [ids for ids, _ in bench.tasks.refreshed_running] == [[id_], [id_]]

    def test_a_process_that_is_gone_is_lost_only_if_its_end_could_be_reported(self, bench):
        bench.start("a")
        bench.engine.alive.clear()
        bench.beat(5)
        bench.lose_api_server()
        bench.beat(5, times=6)
        assert "a" in bench.runs.leased
        bench.bring_back_api_server()
        bench.beat(5, times=2)
        assert "a" in bench.runs.leased, "its supervisor has some seconds to report the end"
        bench.beat(5)
        assert bench.runs.leased == {}

    def test_a_heartbeat_that_airflow_missed_in_an_outage_does_not_count_after_it(self, bench, executor):
        bench.start("a")
        bench.lose_api_server()
        executor.change_state("a", FAILED)
        executor._take_messages(bench.clock.now())
        bench.beat(5)
        bench.bring_back_api_server()
        bench.beat(5)
        assert "a" in bench.runs.leased
        assert bench.reports == []

    def test_a_supervisor_that_failed_while_its_task_ran_costs_no_retry(self, bench, executor):
        bench.start("a")
        bench.engine.alive.clear()
        sent_back = []
        bench.commands._send_back = lambda run, now: not sent_back.append(run.end.cause)
        assert fail_start(bench, executor) == {}
        bench.beat(5, times=4)
        assert (sent_back, bench.reports) == (["its process 100 on here is gone"], [])


class TestStarting:
    def test_a_start_that_fails_in_an_outage_waits_again_with_the_same_try(self, bench, executor):
        bench.hold("a")
        bench.beat()
        bench.lose_api_server()
        assert fail_start(bench, executor) == {}
        bench.beat(1)
        assert (bench.started, list(bench.queued), bench.store.snapshot().leases) == (["a"], ["a"], ())
        assert bench.store.request_history("dag", "run", "a").leases[0].state is LeaseState.EVICTED
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == ["a", "a"]

    def test_starts_that_fail_in_outages_are_not_counted(self, bench, executor):
        bench.hold("a")
        for number in range(20):
            bench.beat(1)
            assert len(bench.started) == number + 1
            bench.lose_api_server()
            assert fail_start(bench, executor) == {}
            bench.bring_back_api_server()

    def test_a_start_that_fails_for_another_cause_is_tried_again_later_and_not_for_ever(self, bench, executor):
        bench.api.ask()
        bench.hold("a")
        bench.beat()
        for number, delay_s in enumerate((10, 20, 40, 80, 160), start=1):
            assert fail_start(bench, executor) == {}
            bench.beat(1)
            bench.beat(delay_s - 2)
            assert len(bench.started) == number
            bench.beat(2)
            bench.beat()
            assert len(bench.started) == number + 1
        assert fail_start(bench, executor) == {"a": FAILED}
        assert (bench.runs.leased, bench.queued) == ({}, {})

    def test_the_devices_go_to_others_while_a_start_is_delayed(self, bench, executor):
        bench.hold("a", "gpu:2")
        bench.beat()
        bench.hold("b", "gpu:2")
        assert fail_start(bench, executor) == {}
        bench.beat(1)
        assert bench.started == ["a", "b"]

    def test_the_failure_of_a_run_that_began_is_passed_on(self, bench, executor):
        id_ = bench.start("a")
        bench.tasks.rows[id_] = TaskProcess("failed", 100, "here", bench.clock.now())
        bench.engine.alive.clear()
        assert fail_start(bench, executor) == {"a": FAILED}

    def test_a_task_that_another_scheduler_has_queued_again_is_left_to_it(self, bench, executor):
        """Its row shows that the run of this lease had begun."""
        id_ = bench.start("a")
        bench.lose_api_server()
        bench.tasks.rows[id_] = replace(bench.tasks.rows[id_], state="queued")
        bench.engine.alive.clear()
        assert fail_start(bench, executor) == {"a": FAILED}
        assert bench.queued == {}

    def test_a_pod_that_can_not_be_made_fails_its_task_unless_the_server_was_away(self, bench, executor):
        bench.api.ask()
        bench.hold("a")
        bench.hold("b")
        bench.beat()
        bench.on_a_cluster({})
        assert fail_start(bench, executor, "a") == {"a": FAILED}
        bench.lose_api_server()
        assert fail_start(bench, executor, "b") == {}

    def test_the_next_start_is_on_another_worker_if_there_is_one(self, bench, executor):
        bench.engine.reaches = lambda worker: True
        bench.store.record([WorkerSeen(a_worker("worker-b", devices=(a_device("GPU-9"),)))], EPOCH)
        bench.hold("a")
        bench.beat()
        first = bench.store.snapshot().leases[0].worker_id
        bench.engine.liveness = lambda use: Liveness.GONE
        assert fail_start(bench, executor) == {}
        bench.beat(10)
        bench.beat(1)
        (lease,) = bench.store.snapshot().leases
        assert {first, lease.worker_id} == {"worker-a", "worker-b"}


def a_plain_task(name):
    """A workload without a device request, and its key."""
    ti = {
        "id": uuid5(UUID(int=0), name), "dag_version_id": UUID(int=0), "task_id": name, "dag_id": "dag",
        "run_id": "run", "try_number": 1, "map_index": -1, "pool_slots": 1, "queue": "default", "priority_weight": 1,
    }  # fmt: skip
    fields = {"dag_rel_path": "dag.py", "bundle_info": {"name": "b"}, "token": "old", "log_path": None}
    workload = ExecuteTask.model_validate({"ti": ti, **fields})
    return workload, workload.key


A = str(uuid5(UUID(int=0), "a"))


class TestPlainTasks:
    @pytest.fixture
    def plain(self, bench, executor):
        """Queues a plain task; its key."""
        bench.engine.accept = lambda workload, session: bench.engine.started.append(workload)
        bench.engine.occupied_slots = 0

        def queue(name):
            workload, key = a_plain_task(name)
            bench.tasks.rows[str(workload.ti.id)] = TaskProcess("queued")
            executor.queue_workload(workload, session=None)
            return key

        return queue

    def test_one_that_is_queued_in_an_outage_starts_after_it(self, bench, executor, plain):
        bench.lose_api_server()
        key = plain("a")
        bench.beat(200)
        assert (bench.started, executor.slots_occupied) == ([], 1)
        assert executor.has_task(SimpleNamespace(key=key))
        assert bench.tasks.refreshed[-1][0] == [A], "Airflow must not take it for stuck"
        bench.bring_back_api_server()
        bench.beat(1, times=2)
        assert (bench.started, bench.tokens) == ([key], [key])

    def test_one_that_could_not_start_waits_again_with_the_same_try(self, bench, executor, plain):
        key = plain("a")
        bench.beat(200)
        assert bench.tasks.refreshed[-1][0] == []
        bench.lose_api_server()
        bench.beat(200)
        assert bench.tasks.refreshed[-1][0] == [A], "its supervisor waits for a server"
        assert bench.tasks.refreshed_running[-1][0] == [A], "or it runs"
        executor.change_state(key, FAILED)
        executor._take_messages(bench.clock.now())
        assert bench.runs.given_up == {}, "no heartbeat can arrive"
        assert fail_start(bench, executor, key) == {}
        bench.beat(1)
        assert bench.started == [key]
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == [key, key]
        executor._process_ends({key: (SUCCESS, None)}, bench.clock.now())
        assert executor.get_event_buffer() == {key: (SUCCESS, None)}

    def test_one_that_is_lost_counts_as_stuck_again_a_while_after_an_outage(self, bench, executor, plain):
        plain("a")
        bench.lose_api_server()
        bench.beat(200)
        bench.bring_back_api_server()
        bench.beat(200, times=2)
        assert bench.tasks.refreshed[-1][0] == [], "Airflow revokes it after [scheduler] task_queued_timeout"

    def test_one_of_which_the_database_says_nothing_waits_again(self, bench, executor, plain, monkeypatch):
        """A restart takes the API server and the database away together."""
        key = plain("a")
        bench.lose_api_server()
        with monkeypatch.context() as away:
            away.setattr(
                bench.tasks, "processes", Mock(side_effect=OperationalError("select", None, Exception("away")))
            )
            assert fail_start(bench, executor, key) == {}
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == [key, key]

    def test_one_that_is_revoked_and_queued_again_at_once_starts(self, bench, executor, plain):
        """Airflow may queue it again before the heartbeat that acts on the revocation."""
        key = plain("a")
        bench.engine.withdraw = lambda withdrawn: bench.engine.started.clear()
        executor.revoke_task(ti=SimpleNamespace(key=key))
        assert plain("a") == key
        executor._take_messages(bench.clock.now())
        bench.beat(1)
        assert bench.started == [key]

    def test_one_whose_supervisor_failed_before_it_started_comes_again_with_the_same_try(self, bench, executor, plain):
        key = plain("a")
        bench.commands.recovery.send_back = send_back = Mock(return_value=True)
        assert fail_start(bench, executor, key) == {}
        bench.beat(1)
        send_back.assert_called_once_with(key, A, None, Evidence(is_gone=True), bench.clock.now(), even_queued=True)
        assert (bench.engine.forgotten, bench.runs.given_up, bench.reports) == ([key], {}, [])

    def test_the_failure_of_a_second_supervisor_is_not_that_of_the_task(self, bench, executor, plain):
        """Airflow let the first one begin: a worker process of a scheduler that died, or an earlier message."""
        key = plain("a")
        bench.tasks.rows[A] = TaskProcess("running", 100, "here", bench.clock.now())
        assert fail_start(bench, executor, key) == {}
        bench.beat(1)
        bench.tasks.rows[A] = TaskProcess("success")
        executor._process_ends({key: (SUCCESS, None)}, bench.clock.now())
        assert executor.get_event_buffer() == {key: (SUCCESS, None)}

    def test_one_that_airflow_has_queued_again_meanwhile_is_left_alone(self, bench, executor, plain):
        """Its supervisor was slow, and reported its end after all. The record of the loss is not written yet."""
        key = plain("a")
        bench.commands.recovery.send_back = Mock(return_value=None)
        fail_start(bench, executor, key)
        bench.beat(1)
        assert list(bench.runs.given_up) == [key]
        bench.commands.recovery.send_back.reset_mock()
        plain("a")
        bench.beat(1)
        bench.commands.recovery.send_back.assert_not_called()
        assert (bench.runs.given_up, list(bench.runs.sent), bench.reports) == ({}, [key], [])

    @pytest.mark.parametrize("is_sent_back", [True, False])
    def test_one_whose_heartbeats_stop_comes_again_with_the_same_try_as_often_as_the_rule_says(
        self, bench, executor, plain, is_sent_back
    ):
        key = plain("a")
        bench.tasks.rows[A] = TaskProcess("running", 100, "here", bench.clock.now())
        bench.commands.recovery.send_back = send_back = Mock(side_effect=[None, None, is_sent_back])
        executor.change_state(key, FAILED)
        executor._take_messages(bench.clock.now())
        bench.beat(1)
        assert (list(bench.runs.given_up), bench.reports) == ([key], []), "the state store has not answered"
        executor.change_state(key, FAILED)
        executor._take_messages(bench.clock.now())
        bench.beat(1)
        reports = [] if is_sent_back else [(key, "failed", "HeteroExecutor: Airflow has not heard of it for too long")]
        assert (bench.reports, bench.engine.forgotten, bench.runs.given_up) == (reports, [key], {})
        assert [call.kwargs for call in send_back.call_args_list] == 3 * [{"even_queued": False}], "it had begun"
        executor._process_ends({key: (FAILED, None)}, bench.clock.now())
        assert executor.get_event_buffer() == {key: (FAILED, None)}, "it is not known here any more"

    def test_one_that_airflow_does_not_want_any_more_is_forgotten(self, bench, executor, plain):
        bench.lose_api_server()
        key = plain("a")
        plain("b")
        bench.tasks.rows[str(uuid5(UUID(int=0), "b"))] = TaskProcess("failed")
        bench.engine.withdraw = lambda key: False
        executor.revoke_task(ti=SimpleNamespace(key=key))
        executor._take_messages(bench.clock.now())
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == []

    def test_a_placement_check_that_could_not_start_waits_again(self, bench, executor):
        workload, key = a_plain_task("room")
        bench.tasks.rows[str(workload.ti.id)] = TaskProcess("queued")
        bench.runs.note_sent(key, str(workload.ti.id), workload, bench.clock.now())
        bench.engine.hand_over_unplaced(workload)
        bench.lose_api_server()
        assert fail_start(bench, executor, key) == {}
        bench.bring_back_api_server()
        bench.beat(1)
        assert bench.started == [key, key]
