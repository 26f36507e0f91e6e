"""Leases are taken back: the notice, the return with the same try, and force where a task does not listen."""

from datetime import timedelta

import pytest

from hetero_airflow.contract.progress import Progress
from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.executor import command_runner
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.context import reported_speeds
from hetero_airflow.model.lease import LeaseState


@pytest.fixture
def written(monkeypatch):
    """(key, name) → JSON text, in place of Airflow's task state store."""
    texts = {}
    monkeypatch.setattr(command_runner, "write_state", lambda key, name, text: texts.__setitem__((key, name), text))
    monkeypatch.setattr(
        reported_speeds, "read_states", lambda keys, name: {k: texts[k, name] for k in keys if (k, name) in texts}
    )
    return texts


def preempted(bench, written):
    """A low task on both devices that runs for long, and an urgent one that has just come."""
    low = bench.start("low", "gpu:2", priority="low")
    bench.beat(400)
    bench.hold("urgent", "gpu:2", priority="urgent")
    bench.beat(1)
    return low


def test_the_log_of_the_task_that_gains_says_why(bench, written, monkeypatch):
    logged = []
    monkeypatch.setattr(command_runner, "write_task_log", lambda path, text, *_: logged.append(text))
    preempted(bench, written)
    assert [text for text in logged if "taken back" in text] == [
        "Devices of dag.low (run) are taken back for this task. Its notice says: priority: its devices go to this "
        "task. This task has the priority urgent, dag.low (run) has low"
    ]


def state(bench, request_id):
    return bench.lease(request_id).state


def test_the_holder_gets_a_notice_and_the_queue_goes_on_when_it_has_ended(bench, written):
    low = preempted(bench, written)
    notice = LeaseNotice.model_validate_json(written["low", PREEMPT])
    assert (notice.lease_id, state(bench, low)) == (bench.lease(low).id, LeaseState.PREEMPTED)
    assert (notice.notice.by - bench.clock.now()).total_seconds() == 60
    assert bench.notes[0][0] == "low"
    assert "preempted" in bench.notes[0][1]
    assert bench.queued["urgent"].logged_wait.startswith("Waiting for 2 × gpu: preempting")

    # it saves and ends; Airflow puts it back into the queue, with the same try
    bench.tasks.rows[low] = TaskProcess("up_for_reschedule")
    bench.finish("low")
    bench.beat(1)
    assert bench.started == ["low", "urgent"]
    since = bench.clock.now()
    bench.hold("low", "gpu:2", priority="low")
    bench.beat(1)
    again = next(pending for pending in bench.store.snapshot().pending if pending.task_id == "low")
    assert again.submitted_at < since
    assert again.attained_service_s == {"nvidia/a100-sxm4-40gb": pytest.approx(402, abs=1)}
    assert bench.reports == []


def test_where_nothing_is_to_be_saved_the_time_is_up_at_once(bench, written):
    id_ = bench.start("a")
    now = bench.clock.now()
    bench.commands.notify(bench.lease(id_), "rank 1 is failed", now, timedelta(0))
    assert LeaseNotice.model_validate_json(written["a", PREEMPT]).notice.by == now


def test_one_notice_is_enough(bench, written):
    preempted(bench, written)
    written.clear()
    bench.beat(3, times=5)
    assert written == {}
    assert len(bench.notes) == 1


def test_a_task_that_does_not_end_is_rescheduled_by_force_after_its_grace_time(bench, written):
    low = preempted(bench, written)
    bench.beat(10, times=6)
    assert bench.tasks.sent_back == []
    bench.beat(5, times=3)
    assert bench.tasks.sent_back == [low]
    assert state(bench, low) == LeaseState.PREEMPTED  # its devices are free when its process is gone, not before


def test_a_state_store_that_is_out_of_order_stops_nobody_but_the_task_in_the_end(bench, written, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no backend")

    monkeypatch.setattr(command_runner, "write_state", broken)
    low = preempted(bench, written)
    assert "could not be told" in caplog.text
    bench.beat(10, times=8)
    assert bench.tasks.sent_back == [low]


def test_a_checkpoint_is_reported_to_the_store_once(bench, written):
    low = bench.start("low", "gpu:2", priority="low")
    bench.beat(1)
    lease = bench.lease(low)
    at = bench.clock.now()
    report = LeaseProgress(
        lease_id=lease.id, progress=Progress(step=3, at=at, saved_step=3, saved_at=at), reported_at=at
    )
    written["low", PROGRESS] = report.model_dump_json()
    bench.hold("other", "gpu:2")
    bench.beat(6)
    saved_at = bench.lease(low).saved_at
    assert saved_at is not None
    sequence = bench.store.snapshot().sequence
    bench.beat(6)
    assert (bench.lease(low).saved_at, bench.store.snapshot().sequence) == (saved_at, sequence)


def test_progress_of_an_earlier_lease_and_nonsense_are_passed_over(bench, written):
    low = bench.start("low", "gpu:2", priority="low")
    at = bench.clock.now()
    old = LeaseProgress(lease_id="lease-0", progress=Progress(step=3, at=at, saved_step=3, saved_at=at), reported_at=at)
    bench.hold("other", "gpu:2")
    for text in (old.model_dump_json(), "[", '{"lease_id": 7}'):
        written["low", PROGRESS] = text
        bench.beat(6)
    assert bench.lease(low).saved_at is None


def test_a_notice_of_a_dead_scheduler_is_sent_again(bench, written):
    low = preempted(bench, written)
    lease = bench.lease(low)
    written.clear()
    bench.take_over("low", lease)
    bench.beat(1)
    assert LeaseNotice.model_validate_json(written["low", PREEMPT]).lease_id == lease.id
