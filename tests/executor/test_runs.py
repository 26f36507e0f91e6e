"""The table of runs: what is expected, what is remembered, and where each run is found."""

from datetime import timedelta
from types import SimpleNamespace
from typing import get_args

import pytest
from airflow.utils.state import TaskInstanceState
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.contract.notice import Notice
from hetero_airflow.contract.task_lease import task_lease
from hetero_airflow.engines.engine import Liveness, TerminationCause
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.commands import Free, Report
from hetero_airflow.executor.events import (
    Adopted,
    Answered,
    ApiAway,
    Dropped,
    EngineEnded,
    Event,
    Failed,
    FoundLeftOver,
    FoundRunning,
    Freed,
    GangChanged,
    GraceOver,
    Granted,
    HandedOver,
    HeartbeatLost,
    LeaseGone,
    Looked,
    Preempted,
    Read,
    RecoveryDecided,
    Reordered,
    RequestFound,
    Resolved,
    Revoked,
    SchedulerStopped,
    Sent,
    Watched,
)  # fmt: skip
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run import LEASED, QUEUED, Phase
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.runs import TABLE
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import MAX_TRANSITIONS
from hetero_airflow.testing import EPOCH, a_lease, a_pending, a_worker

REQUEST = DeviceRequest.parse("gpu")
SUCCESS, FAILED = TaskInstanceState.SUCCESS, TaskInstanceState.FAILED


def a_workload(name="a"):
    ti = SimpleNamespace(id=f"id-{name}", dag_id="dag", executor_config={}, map_index=-1)
    return SimpleNamespace(ti=ti, key=name, log_path=None)


def a_task(name="a"):
    return PendingTask(a_workload(name), REQUEST, EPOCH, request=REQUEST)


def arrived(runs, name="a"):
    return runs.arrive(name, f"id-{name}", a_workload(name))


def story(runs):
    """What the store does not have yet of the only request."""
    (noted,) = runs.unsaved()
    return noted.transitions


def the_lease(name="a", token=1):
    lease = a_lease(f"id-{name}", **{"GPU-0": 1000})
    return lease.model_copy(update={"id": f"id-{name}.{token}", "token": token})


def carried(lease):
    return task_lease(lease, a_worker(), REQUEST.alternatives[0])


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def running(runs):
    """A run that was taken over."""
    run = runs.arrive("a", "id-a", None)
    runs.handle(run, Adopted(the_lease(), is_live=True), EPOCH)
    return run


def test_an_unexpected_event_is_remembered_and_changes_nothing(runs, running):
    assert runs.handle(running, Resolved(REQUEST), EPOCH) == []
    assert running.phase is Phase.RUNNING
    assert story(runs)[-1] == (EPOCH, "Resolved", Phase.RUNNING, "unexpected")


def test_the_last_transitions_of_a_request_wait_for_the_store(runs, running):
    for _ in range(MAX_TRANSITIONS):
        runs.handle(running, Resolved(REQUEST), EPOCH)
        runs.handle(running, Sent(), EPOCH)
    runs.handle(running, EngineEnded(SUCCESS, None, TaskProcess("success")), EPOCH)
    assert len(story(runs)) == MAX_TRANSITIONS
    assert story(runs)[-1] == (EPOCH, "EngineEnded", Phase.ENDING, "the task ended")
    runs.note_saved(runs.unsaved())
    assert runs.unsaved() == []


def test_a_process_that_does_not_end_does_not_fill_the_story_of_its_run(runs, running):
    runs.handle(running, EngineEnded(SUCCESS, None, TaskProcess("success")), EPOCH)
    for second in range(MAX_TRANSITIONS):
        runs.handle(running, Looked(True, TaskProcess("success"), Liveness.ALIVE), EPOCH + timedelta(seconds=second))
    assert [step.event for step in story(runs)] == ["Adopted", "EngineEnded", "Looked"]


def test_a_lost_heartbeat_is_in_the_story(runs, running):
    runs.handle(running, HeartbeatLost(), EPOCH)
    assert story(runs)[-1] == (EPOCH, "HeartbeatLost", Phase.RUNNING, "")


def test_transitions_of_a_request_that_the_store_does_not_know_yet_are_kept(runs):
    run = arrived(runs)
    runs.handle(run, Read(a_task()), EPOCH)
    assert runs.unsaved() == []
    runs.handle(run, Resolved(REQUEST), EPOCH)
    assert [step.event for step in story(runs)] == ["Read", "Resolved"]


def test_an_outage_of_the_api_server_does_not_fill_the_story_of_a_lost_run(runs, running):
    runs.handle(running, Watched(TaskProcess("running"), Liveness.GONE, is_worker_lost=True), EPOCH)
    before = runs.unsaved()
    runs.handle(running, ApiAway(), EPOCH)
    assert (running.phase, runs.unsaved()) == (Phase.LOST, before)


def test_the_end_is_reported_once_and_its_lease_is_freed_when_nothing_is_left(runs, running):
    row = TaskProcess("success")
    assert runs.handle(running, EngineEnded(SUCCESS, None, row), EPOCH) == [Report(SUCCESS)]
    assert runs.handle(running, Looked(is_live=True, row=row, liveness=Liveness.UNKNOWN), EPOCH) == []
    (command,) = runs.handle(running, Looked(is_live=True, row=row, liveness=Liveness.GONE), EPOCH)
    assert isinstance(command, Free)
    assert runs.has_lease_of("id-a")
    runs.handle(running, Freed(), EPOCH)
    assert (running.phase, runs.request_ids(), runs.of_lease(the_lease().id)) == (Phase.OVER, set(), None)


def test_a_run_that_another_one_takes_the_place_of_keeps_no_lease(runs, running):
    other = runs.arrive("a", "id-a", None)
    runs.handle(other, Adopted(the_lease(token=2), is_live=True), EPOCH)
    assert (list(runs.leased.values()), running.phase) == ([other], Phase.OVER)
    runs.handle(other, LeaseGone(TaskProcess("success"), None), EPOCH)
    assert not runs.has_lease_of("id-a")


def test_no_end_is_reported_of_an_adopted_run_whose_task_is_queued_again(runs, running):
    seen = Watched(TaskProcess("queued"), Liveness.GONE, is_worker_lost=True)
    assert runs.handle(running, seen, EPOCH) == []
    assert (running.phase, running.end.cause) == (Phase.ENDING, "its task was queued again")


ROWS = st.builds(
    TaskProcess,
    state=st.sampled_from([None, "queued", "running", "success", "failed", "up_for_retry", "scheduled"]),
    pid=st.just(1),
    seen_at=st.sampled_from([None, EPOCH - timedelta(hours=1), EPOCH + timedelta(seconds=5)]),
)
LIVENESS, YES = st.sampled_from(Liveness), st.booleans()
CAUSES = st.sampled_from([None, TerminationCause(), TerminationCause(is_out_of_memory=True)])


def events(name):
    """Events of all kinds, with any facts."""
    task, lease = a_task(name), the_lease(name)
    return st.one_of(
        st.builds(Read, st.sampled_from([None, task]), YES),
        st.sampled_from([
            Adopted(lease, is_live=True), Failed("text"), Dropped("text"), Revoked(), Resolved(REQUEST),
            RequestFound(a_pending(f"id-{name}")), Reordered(REQUEST, ("text",)), GangChanged(), Granted(lease),
            FoundRunning(lease), FoundLeftOver(the_lease(name, token=9)), HandedOver(lease, carried(lease)),
            Answered(), Sent(), ApiAway(), HeartbeatLost(), Preempted(Notice(cause="text", by=EPOCH)), GraceOver(),
            Freed(),
        ]),
        st.builds(
            EngineEnded, st.sampled_from([SUCCESS, FAILED, TaskInstanceState.QUEUED]), st.none(), st.none() | ROWS,
            LIVENESS, CAUSES, names_runs=YES, has_cluster=YES, is_remembered=YES, is_queued_again=YES,
            has_api_failed=YES, retry_after_s=st.sampled_from([None, 5.0]),
        ),
        st.builds(Watched, ROWS, LIVENESS, YES, CAUSES, st.sampled_from(["", "a quota"])),
        st.builds(LeaseGone, ROWS, st.sampled_from([None, (), (the_lease(name, token=0),)])),
        st.builds(RecoveryDecided, YES),
        st.builds(SchedulerStopped, ROWS),
        st.builds(Looked, YES, ROWS, LIVENESS),
    )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_happens_each_run_is_where_its_phase_says_and_only_there(data):
    runs, now = Runs(), EPOCH
    known = []
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from("ab"))
        if not known or data.draw(st.integers(0, 4)) == 0:
            known.append(arrived(runs, name))
        present = [run for run in known if run.phase is not Phase.OVER] or known
        run = data.draw(st.sampled_from(present))
        now += timedelta(seconds=data.draw(st.sampled_from([0, 6, 20])))
        runs.handle(run, data.draw(events(run.key)), now)
        for group in (runs.queued, runs.leased, runs.ending):
            known += [other for other in group.values() if other not in known]
        check(runs)


def check(runs):
    leased = [*runs.leased.values(), *runs.ending.values()]
    assert {run.held_lease.id for run in leased} == set(runs._by_lease)
    assert {run.request_id for run in leased} == runs.request_ids() == set(runs._leases_of)
    assert {run.request_id for run in runs.queued.values()} == set(runs._by_request)
    assert all(run.phase in QUEUED for run in runs.queued.values())
    assert all(run.phase in LEASED for run in runs.leased.values())
    assert all(run.phase is Phase.ENDING and run.end is not None for run in runs.ending.values())
    for phase, group in runs._groups.items():
        if phase not in QUEUED | LEASED:
            assert all(run.phase is phase for run in group.values())


def test_every_kind_of_event_is_expected_somewhere():
    assert set(TABLE) == set(get_args(Event))
    assert all(TABLE.values())
