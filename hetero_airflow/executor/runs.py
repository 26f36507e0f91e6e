"""The life of a run in one table: what may happen in each phase, and what follows. Pure: no clock, no I/O.

A run is one start of a task, with one lease at most. A task that is queued again is another run with the same key: its
last run may still have its lease, because its process may be frozen, or because another scheduler waits for its end.

`TABLE` says for each kind of event in which phases it is expected, and which function handles it. Such a function gets
the event with all facts that it needs, and returns the next phase and the commands that follow. `Runs.handle` applies
them; `CommandRunner` carries out the commands. The model is the state machine of dask's worker: events in, instructions
out, and each run tells its own story. The store keeps it with the history of the request.
"""

import signal
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.engines.engine import Liveness
from hetero_airflow.executor import commands, events
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.leases.lease_use import has_begun, is_run_over, is_running
from hetero_airflow.executor.run import LEASED, QUEUED, UNLEASED, End, Phase, Run
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.store import LeaseMove

KILL_AFTER = timedelta(seconds=5)
"""The time between SIGTERM and SIGKILL for processes that outlive their task."""

LOST_AFTER = timedelta(seconds=10)
"""A task's process must be gone for so long before its loss is reported here. The supervisor's own report comes within
a heartbeat of a few seconds, and knows more."""

ENDED = "the task ended"
"""The cause of the end of a lease whose engine reported the end of its task."""

QUEUED_AGAIN = "its task was queued again"

Next = tuple[Phase, list[commands.Command]]
Handler = Callable[[Run, Any, datetime], Next]


# -- a run that waits --------------------------------------------------------------------------------------------------


def begin(run: Run, event: events.Read, now: datetime) -> Next:
    """Let it wait: for devices, for the answer to its question, or for the API server."""
    run.task = event.task
    if event.task is None:
        return Phase.HELD, []
    return Phase.CHECKING if event.is_check else Phase.RESOLVING, []


def adopt(run: Run, event: events.Adopted, now: datetime) -> Next:
    """Be responsible for the lease from now on. If it is gone, the next renewal finds that out."""
    run.lease = event.lease
    return Phase.RUNNING, [commands.Follow()] if event.is_live else []


def fail(run: Run, event: events.Failed, now: datetime) -> Next:
    """Report the failure, with the reason in the task's log."""
    following: list[commands.Command] = [commands.Log(event.text, "error")] if run.task is not None else []
    return Phase.OVER, [*following, *_withdrawal(run, event.text), commands.Report("failed", event.text, is_noted=True)]


def drop(run: Run, event: events.Dropped, now: datetime) -> Next:
    """Forget it. Airflow, or its gang, has decided what becomes of it."""
    return Phase.OVER, [*([commands.Log(event.text)] if event.text else []), *_withdrawal(run, event.cause)]


def revoke(run: Run, event: events.Revoked, now: datetime) -> Next:
    """Forget it."""
    return Phase.OVER, _withdrawal(run, "Airflow revoked it")


def submit(run: Run, event: events.Resolved, now: datetime) -> Next:
    """Submit its request."""
    run.waiting_task.request, run.waiting_task.service = event.request, event.service or run.waiting_task.service
    return Phase.WAITING, [commands.Submit()]


def take_over_request(run: Run, event: events.RequestFound, now: datetime) -> Next:
    """Let it keep its place in the queue."""
    run.waiting_task.since, run.waiting_task.request = event.pending.submitted_at, event.pending.request
    return Phase.WAITING, []


def reorder(run: Run, event: events.Reordered, now: datetime) -> Next:
    """Submit its request again, with the next alternative first."""
    task = run.waiting_task
    task.original_request, task.request = task.original_request or task.request, event.request
    cause = "its alternatives are tried in another order"
    return Phase.WAITING, [commands.Withdraw(cause), commands.Submit(), *map(commands.Log, event.texts)]


def join_new_gang(run: Run, event: events.GangChanged, now: datetime) -> Next:
    """Submit its request under the new name of its gang; without it, only take the request back."""
    submitted: list[commands.Command] = [] if run.waiting_task.is_excluded else [commands.Submit()]
    return Phase.WAITING, [commands.Withdraw("its gang is tried again"), *submitted]


def start(run: Run, event: events.Granted, now: datetime) -> Next:
    """Give the engine the task with its lease. It waits on until the engine has it."""
    return run.phase, [commands.Start(*event)]


def end_left_over(run: Run, event: events.FoundLeftOver, now: datetime) -> Next:
    """Wait until the processes of that lease are gone; then the task gets a new lease."""
    return run.phase, [commands.EndLeftOver(event.lease)]


def hand_over(run: Run, event: events.HandedOver, now: datetime) -> Next:
    """Be responsible for the lease from now on."""
    run.lease, run.carried = event.lease, event.carried
    return Phase.HANDED_OVER, []


def follow(run: Run, event: events.FoundRunning, now: datetime) -> Next:
    """Be responsible for the lease from now on."""
    run.lease = event.lease
    return Phase.RUNNING, [commands.Follow()]


def _withdrawal(run: Run, cause: str) -> list[commands.Command]:
    may_be_submitted = run.phase in QUEUED and run.task is not None and run.task.request is not None
    return [commands.Withdraw(cause)] if may_be_submitted else []


# -- a run without a lease ---------------------------------------------------------------------------------------------


def send(run: Run, event: events.Answered, now: datetime) -> Next:
    """Give the engine the task, with a new token. It waits on until the engine has it."""
    return run.phase, [commands.Send()]


def note_sent(run: Run, event: events.Sent, now: datetime) -> Next:
    """Wait for its end."""
    run.sent_at = now
    return Phase.SENT, []


def end_unleased(run: Run, event: events.EngineEnded, now: datetime) -> Next:
    """Tell Airflow. But hold a task that could not start because the API server was away, and that is still QUEUED.

    A supervisor that fails before it starts its task is lost. If Airflow's row says that the task runs, it was a second
    supervisor, which Airflow did not let begin; or it could not report the end, and Airflow misses its heartbeat.
    """
    report = commands.Report(event.state, event.info)
    if not event.is_end:
        return Phase.SENT, [report]
    is_queued = event.row is None or event.row.state == TaskInstanceState.QUEUED
    if event.has_failed and event.has_api_failed and is_queued and run.workload is not None:
        # without a row, it is asked again before it starts
        return Phase.HELD, [commands.Log(f"{_API_AWAY} It waits again. This uses no retry.", "warning")]
    if event.row is None or event.has_cluster:
        return Phase.OVER, [report]
    if event.has_failed and is_queued:
        run.end = End("its supervisor failed before it started", has_started=False)
        return Phase.GIVEN_UP, [commands.Forget()]
    return (Phase.SENT, []) if event.row.state == TaskInstanceState.RUNNING else (Phase.OVER, [report])


def give_up(run: Run, event: events.HeartbeatLost, now: datetime) -> Next:
    """Ask the recovery rules."""
    run.end = End("Airflow has not heard of it for too long")
    return Phase.GIVEN_UP, [commands.Forget()]


_API_AWAY = "It could not start, since Airflow's API server did not answer."


# -- a run with a lease ------------------------------------------------------------------------------------------------


def end_by_engine(run: Run, event: events.EngineEnded, now: datetime) -> Next:
    """End the run if Airflow's row agrees. Let a task wait again that its supervisor could not start.

    Airflow gets no report if the task waits here again or Airflow schedules it again: it would take it for the end of
    the coming run.
    """
    if not event.is_end:  # its id in the engine, by which another scheduler adopts it, comes with QUEUED
        return run.phase, [commands.Report(event.state, event.info)] if event.state == TaskInstanceState.QUEUED else []
    if (again := _after_failed_start(run, event, now)) is not None:
        return again
    if not _is_over(run, event):
        return run.phase, []
    is_to_run_again = event.is_queued_again or (event.row is not None and event.row.is_to_run_again)
    run.end = End(ENDED)
    return Phase.ENDING, [] if is_to_run_again else [commands.Report(event.state, event.info)]


def _after_failed_start(run: Run, event: events.EngineEnded, now: datetime) -> Next | None:
    """What follows if the supervisor of a run failed before it began; None for any other end, and without a retry.

    After an outage of the API server this costs nothing. A start that fails for another cause, such as a full disk of
    its worker, is tried again as often as the rule for network failures says. A cluster's pods fail to start for causes
    that the user has to remove, such as a wrong image.
    """
    row, carried = event.row, run.carried
    if not event.has_failed or not event.names_runs or event.cause is not None or row is None:
        return None
    if row.state != TaskInstanceState.QUEUED or has_begun(run.held_lease, row) or carried is None:
        return None
    not_before = None
    text = f"It could not start on {carried.worker}, since Airflow's API server did not answer. It waits again."
    if not event.has_api_failed:
        if event.retry_after_s is None or event.has_cluster:
            return None
        not_before = now + timedelta(seconds=event.retry_after_s)
        text = (
            f"Its supervisor on {carried.worker} failed before it started. "
            f"It is tried again in {event.retry_after_s:g} s."
        )
    run.end = End("its supervisor could not start it", LeaseState.EVICTED, has_started=False)
    return Phase.ENDING, [commands.Log(f"{text} This uses no retry.", "warning"), commands.Again(carried, not_before)]


def _is_over(run: Run, event: events.EngineEnded) -> bool:
    """Whether the run is over, now that the engine reports its end.

    Where a report may be an earlier run's, Airflow's row decides. If the processes of the run are gone and nobody tells
    Airflow, `watch` finds out.
    """
    if not event.names_runs:
        run.denied_end = event
        return event.row is not None and is_run_over(run.held_lease, event.row)
    if event.has_failed and event.cause is not None:
        return False  # the cluster says that it was lost: `watch` acts on it
    if not event.has_failed and not event.is_remembered:
        return True
    if event.row is None:
        return not event.has_failed
    # a success may be that of an earlier process; a failure that of a slower process, or of a supervisor that could not
    # report how its task ended
    if event.row.state != TaskInstanceState.RUNNING:
        return True
    return not (event.has_failed and not event.has_cluster) and event.liveness is not Liveness.ALIVE


def watch(run: Run, event: events.Watched, now: datetime) -> Next:
    """Find out what the engine should have reported and did not."""
    row, lease = event.row, run.held_lease
    is_gone = event.liveness is Liveness.GONE
    is_certain = run.is_heartbeat_lost or (is_gone and (event.is_worker_lost or event.cause is not None))
    phase = Phase.RUNNING if run.phase is Phase.HANDED_OVER and is_running(lease, row) else run.phase
    if not is_certain and row.is_wanted and not is_gone:
        run.over_since = None
        return phase, []
    run.over_since = min(run.over_since or now, now)  # a clock may be set back
    if not is_certain and now - run.over_since < LOST_AFTER:
        return phase, []
    return _after_loss(run, event, now)


def _after_loss(run: Run, event: events.Watched, now: datetime) -> Next:
    """What follows if the process of a run is gone, or Airflow does not want the run any more."""
    row, lease, is_queued = event.row, run.held_lease, event.row.state == TaskInstanceState.QUEUED
    if not row.is_wanted:
        run.end = End("Airflow does not want the task any more")
        return Phase.ENDING, [] if row.is_to_run_again else [commands.Report("success")]
    if run.phase is Phase.LOST:
        return run.phase, []
    has_run = event.cause is not None and event.cause.is_out_of_memory  # even if Airflow has no report of it
    if is_queued and run.carried is None and not has_run:
        run.end = End(QUEUED_AGAIN)
        return Phase.ENDING, []
    if is_queued and run.carried is not None and not has_run:
        return _after_lost_start(run, event, run.carried, now)
    if run.is_heartbeat_lost:
        run.end = End("Airflow has not heard of it for too long", LeaseState.EVICTED)
    else:
        host = row.hostname or lease.worker_id
        run.end = End(event.status or f"its process {row.pid} on {host} is gone", LeaseState.EVICTED)
    return Phase.LOST, []


def _after_lost_start(run: Run, event: events.Watched, carried: TaskLease, now: datetime) -> Next:
    """Let a task wait again that has not begun: the engine lost it, or a quota of its cluster refused it."""
    lost = f"its cluster refused it: {event.refusal}" if event.refusal else "the engine lost the task before it began"
    run.end = End(lost, LeaseState.EVICTED, has_started=False)
    warning = commands.Warn(f"{run.key} did not start: {lost}. The task waits again.")
    if not event.refusal:
        return Phase.ENDING, [warning, commands.Again(carried)]
    pause_s = event.retry_after_s
    text = f"The cluster refused it on {carried.worker}: {event.refusal}. It is tried again in {pause_s:g} s."
    not_before = now + timedelta(seconds=pause_s)
    return Phase.ENDING, [
        warning,
        commands.Log(f"{text} This uses no retry.", "warning"),
        commands.Again(None, not_before),
    ]


def forgive(run: Run, event: events.ApiAway, now: datetime) -> Next:
    """Give it its time again after the outage."""
    run.over_since, run.is_heartbeat_lost = None, False
    return run.phase, []


def mark_heartbeat_lost(run: Run, event: events.HeartbeatLost, now: datetime) -> Next:
    """The next look at its process acts on it."""
    run.is_heartbeat_lost = True
    return run.phase, []


def lose_lease(run: Run, event: events.LeaseGone, now: datetime) -> Next:
    """Stop a task that still runs under its ended lease: it is lost. One that has not begun waits again."""
    lease, row, earlier = run.held_lease, event.row, event.earlier
    if row.state == TaskInstanceState.RUNNING and earlier is not None:
        run.end = End("its device lease was taken back", LeaseState.EVICTED)
        warning = f"Lease {lease.id} of {run.key} was taken back while its task ran. The task is stopped."
        return Phase.LOST, [commands.Warn(warning), commands.Signal(signal.SIGKILL, row)]
    is_clock_behind = any(past_lease.granted_at > lease.granted_at for past_lease in earlier or ())
    is_unused = is_clock_behind or not has_begun(lease, row)
    is_queued = row.state == TaskInstanceState.QUEUED
    if is_queued and is_unused and earlier is not None and run.carried is not None:
        warning = f"Lease {lease.id} of {run.key} was ended before its task began. The task waits again."
        return Phase.OVER, [commands.Warn(warning), commands.Again(run.carried)]
    return Phase.OVER, [commands.Warn(f"Lease {lease.id} of {run.key} has already ended. Nothing is stopped.")]


def preempt(run: Run, event: events.Preempted, now: datetime) -> Next:
    """Tell the task to save and end."""
    run.notice = event.notice
    text = f"preempted: {event.notice.cause}. It has until {event.notice.by:%H:%M:%S} UTC to save, and goes on later."
    return Phase.STOPPING, [commands.Tell(), commands.Note(text)]


def force(run: Run, event: events.GraceOver, now: datetime) -> Next:
    """Change Airflow's row: Airflow then refuses the next heartbeat of the supervisor, which kills the process."""
    if run.is_forced:
        return run.phase, []
    run.is_forced = True
    return run.phase, [commands.Reschedule()]


def stop_with_scheduler(run: Run, event: events.SchedulerStopped, now: datetime) -> Next:
    """End the run. Airflow schedules the task again with the same try; one that has not begun is still QUEUED."""
    run.end = End("its scheduler was stopped", has_started=event.row.state != TaskInstanceState.QUEUED)
    text = "The scheduler of this task was stopped, and so is the task. It goes on later with the same try."
    is_running = event.row.state == TaskInstanceState.RUNNING
    following: list[commands.Command] = [commands.Log(text, "warning"), commands.Reschedule()] if is_running else []
    return Phase.OVER if run.lease is None else Phase.ENDING, following


def follow_rules(run: Run, event: events.RecoveryDecided, now: datetime) -> Next:
    """End the run. Where the rules do not send it back, Airflow's retries decide."""
    assert run.end is not None
    failed = commands.Report("failed", f"HeteroExecutor: {run.end.cause}", is_noted=True)
    return Phase.OVER if run.lease is None else Phase.ENDING, [] if event.is_sent_back else [failed]


def revoke_handed_over(run: Run, event: events.Revoked, now: datetime) -> Next:
    """End the run."""
    run.end = End("Airflow revoked it")
    return Phase.ENDING, []


# -- a run that is over for Airflow ------------------------------------------------------------------------------------


def end_lease(run: Run, event: events.Looked, now: datetime) -> Next:
    """Free the lease if the processes are gone; stop those that are left: SIGTERM, and SIGKILL after `KILL_AFTER`.

    A lease that was ended elsewhere is forgotten. So is one whose run has begun after all: the waiting run of the task
    follows it.
    """
    lease, end = run.held_lease, run.end
    assert end is not None
    if not event.is_live or (end.may_begin and is_running(lease, event.row)):
        return Phase.OVER, []
    if event.liveness is Liveness.GONE:
        return Phase.ENDING, [commands.Free(final_move(lease, end, event.row))]
    if event.liveness is Liveness.UNKNOWN:
        return Phase.ENDING, []
    if run.stopped_at is None:
        run.stopped_at = now
        return Phase.ENDING, [commands.Signal(signal.SIGTERM, event.row)]
    run.stopped_at = min(run.stopped_at, now)  # a clock may be set back
    return Phase.ENDING, [commands.Signal(signal.SIGKILL, event.row)] if now - run.stopped_at >= KILL_AFTER else []


def forget(run: Run, event: events.Freed, now: datetime) -> Next:
    """Nothing is left to do."""
    return Phase.OVER, []


_RUN_ENDS: dict[str | None, RunEnd] = {
    TaskInstanceState.SUCCESS: RunEnd.FINISHED,
    TaskInstanceState.DEFERRED: RunEnd.PAUSED,
    TaskInstanceState.UP_FOR_RESCHEDULE: RunEnd.PAUSED,
}
"""State of a task instance whose process is gone → how the run ended; FAILED for all others. The engine can't tell:
LocalExecutor reports success for every process that ended in order, also if its task raised."""

_FAILED_STATES = frozenset({TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY})


def final_move(lease: Lease, end: End, row: TaskProcess) -> LeaseMove:
    """The end of a lease whose processes are gone.

    :param row: Airflow's row of the task, which tells how the run ended
    """
    is_known = end.is_known and end.to is not LeaseState.EVICTED
    run_end = _RUN_ENDS.get(row.state, RunEnd.FAILED) if is_known else None
    has_failed = is_known and end.cause == ENDED and row.state in _FAILED_STATES
    return LeaseMove(lease.id, lease.token, end.to, "the task failed" if has_failed else end.cause, run_end)


def ignore_end(run: Run, event: events.EngineEnded, now: datetime) -> Next:
    """Tell Airflow no end: it knows. This counts once for each run; `HeteroExecutor` passes other reports on."""
    return run.phase, [] if event.is_end else [commands.Report(event.state, event.info)]


# -- the table ---------------------------------------------------------------------------------------------------------

TABLE: Mapping[type[Any], Mapping[Phase, Handler]] = {
    events.Read: {Phase.ARRIVED: begin},
    events.Adopted: {Phase.ARRIVED: adopt},
    events.Failed: dict.fromkeys({Phase.ARRIVED, *QUEUED}, fail),
    events.Dropped: dict.fromkeys({*QUEUED, Phase.CHECKING, Phase.HELD}, drop),
    events.Revoked: dict.fromkeys({*QUEUED, *UNLEASED}, revoke) | dict.fromkeys(LEASED, revoke_handed_over),
    events.Resolved: dict.fromkeys(QUEUED, submit),
    events.RequestFound: dict.fromkeys(QUEUED, take_over_request),
    events.Reordered: {Phase.WAITING: reorder},
    events.GangChanged: {Phase.WAITING: join_new_gang},
    events.Granted: dict.fromkeys(QUEUED, start),
    events.FoundRunning: dict.fromkeys(QUEUED, follow),
    events.FoundLeftOver: dict.fromkeys(QUEUED, end_left_over),
    events.HandedOver: dict.fromkeys(QUEUED, hand_over),
    events.Answered: dict.fromkeys({Phase.CHECKING, Phase.HELD}, send),
    events.Sent: dict.fromkeys({Phase.CHECKING, Phase.HELD}, note_sent),
    events.EngineEnded: {Phase.SENT: end_unleased} | dict.fromkeys(LEASED, end_by_engine)
    | dict.fromkeys({Phase.GIVEN_UP, Phase.ENDING, Phase.OVER}, ignore_end),
    events.Watched: dict.fromkeys(LEASED, watch),
    events.ApiAway: dict.fromkeys(LEASED, forgive),
    events.HeartbeatLost: {Phase.SENT: give_up} | dict.fromkeys(LEASED, mark_heartbeat_lost),
    events.LeaseGone: dict.fromkeys(LEASED, lose_lease),
    events.Preempted: dict.fromkeys({Phase.HANDED_OVER, Phase.RUNNING}, preempt),
    events.GraceOver: {Phase.STOPPING: force},
    events.SchedulerStopped: dict.fromkeys({Phase.SENT, *LEASED}, stop_with_scheduler),
    events.RecoveryDecided: dict.fromkeys({Phase.GIVEN_UP, Phase.LOST}, follow_rules),
    events.Looked: {Phase.ENDING: end_lease},
    events.Freed: {Phase.ENDING: forget},
}  # fmt: skip
"""Event → phase → what handles it. In any other phase an event is unexpected: nothing happens, and the history of the
request has it."""
