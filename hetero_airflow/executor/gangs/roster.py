"""The gangs among the tasks that wait or run here: their names, who is missing, and who has to stop.

Airflow queues the instances of a mapped task one by one, maybe with several schedulers. Each instance is submitted at
once under the name of its gang, and policies let it wait until all members are there. Every placement of a gang has a
number. Members that return while others still run wait for the next placement; they don't join the running one.

Airflow's database tells which members ran and run no more, and the store tells which wait. So it does not matter which
scheduler saw it happen, or whether one died meanwhile.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from airflow.utils.state import TaskInstanceState

from hetero_airflow.clock import Periods
from hetero_airflow.contract.task_lease import TaskGang
from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.gangs.sizes import GangAttempt, GangSizes
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run import Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.model.gang import GangMember, gang_member, parse_placement_name, placement_name
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.runtime.gang.network import network_settings
from hetero_airflow.store.store import LeaseMove, Store

_WATCH_EVERY_S = 2.0

_ACTIVE_STATES = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS)
"""The states of the members of a gang that runs: they start, run, or are done already."""

_FINAL_STATES = (
    TaskInstanceState.SUCCESS,
    TaskInstanceState.FAILED,
    TaskInstanceState.SKIPPED,
    TaskInstanceState.UPSTREAM_FAILED,
    TaskInstanceState.REMOVED,
)
"""A member in one of these states does not run again by itself."""

MemberStates = Mapping[str, Mapping[int, str | None]]
"""Gang → rank → state of the task instance."""


Notify = Callable[[Lease, str, datetime, timedelta | None], None]
"""(lease, cause, now, another grace time): tells the task of a lease to save and end."""


class GangRoster:
    """Looks after the gangs for the dispatcher."""

    def __init__(self, store: Store, runs: Runs, tasks: TaskInstances, notify: Notify) -> None:
        self._store = store
        self._runs = runs
        self._tasks = tasks
        self._notify = notify
        self._sizes = GangSizes()
        self._periods = Periods(watch=_WATCH_EVERY_S)
        self._logged: dict[str, str] = {}
        """Request id → the last line in its log about the other members."""

    def enroll(self, snapshot: Snapshot) -> Iterator[tuple[Run, events.Event]]:
        """Set the placement name of each waiting member. Yields those that the store has under an old name.

        A member whose gang runs without it is marked as excluded.
        """
        queued = self._runs.queued.values()
        members = [run for run in queued if run.task is not None and run.task.member is not None]
        if not members:
            return
        waiting = {request.id: request for request in snapshot.pending if request.gang}
        running, requested = _newest_attempts(snapshot.holders.values()), _newest_attempts(waiting.values())
        numbers = {gang: attempt.number + 1 for gang, attempt in running.items()}
        for gang, attempt in requested.items():
            numbers[gang] = max(attempt.number, numbers.get(gang, 1))
        for run in members:
            task = run.waiting_task
            assert task.member is not None
            gang = task.member.gang
            holder = snapshot.holders.get(task.request_id)
            if holder is not None:  # placed already, and not handed over yet
                task.gang, task.gang_size, task.is_excluded = holder.gang, holder.gang_size, False
                continue
            task.gang_size = self._sizes.size_for(task, running.get(gang), requested.get(gang))
            task.gang = placement_name(gang, numbers.get(gang, 1), task.gang_size, task.member.size)
            task.is_excluded = task.member.rank >= task.gang_size
            request = waiting.get(task.request_id)
            if request is not None and task.request is not None and (task.is_excluded or request.gang != task.gang):
                yield run, events.GangChanged()

    def shrink(self, task: PendingTask) -> bool:
        """Try a gang that fits nowhere with one member less. Returns whether that is allowed."""
        return self._sizes.shrink(task)

    def watch(self, now: datetime) -> list[tuple[Run, events.Event]]:
        """Stop the running members of gangs that have lost one. Returns the waiting members that are to end."""
        if not self._periods.is_due("watch", now):
            return []
        snapshot = self._store.snapshot()
        running = [
            (run.held_lease, holder)
            for run in self._runs.leased.values()
            if (holder := snapshot.holders.get(run.request_id)) is not None and holder.gang
        ]
        queued = ((run, run.waiting_task) for run in self._runs.queued.values())
        waiting = [(run, task, task.member) for run, task in queued if task.member is not None]
        members = {_member(holder) for _, holder in running} | {member for *_, member in waiting}
        if not members:
            return []
        states = self._tasks.members(members)
        self._stop_broken(running, states, snapshot, now)
        self._logged = {task.request_id: self._logged.get(task.request_id, "") for _, task, _ in waiting}
        placed = _newest_attempts(snapshot.holders.values())
        self._sizes.update([task for _, task, _ in waiting], states, placed, now)
        ended: list[tuple[Run, events.Event]] = []
        for run, task, member in waiting:
            if member.gang in placed:  # it waits for those members to end, or is about to be handed over
                if task.is_excluded:
                    text = f"Its gang runs with {task.gang_size} of {member.size} ranks, without this one"
                    self._log_once(task, text, now)
            elif (end := self._end_of(task, member, states[member.gang], now)) is not None:
                ended.append((run, end))
        done = [run.request_id for run, end in ended if isinstance(end, events.Dropped)]
        if done:
            self._tasks.finish(done, now)
        return ended

    def _stop_broken(
        self, running: Collection[tuple[Lease, PendingRequest]], states: MemberStates, snapshot: Snapshot, now: datetime
    ) -> None:
        """Preempt members of broken gangs: at once if others are gone, with the time to save if the others have it."""
        newest = _newest_attempts((*snapshot.pending, *snapshot.holders.values()))
        leases = {lease.id: lease for lease in snapshot.leases}
        preempted_gangs = {
            snapshot.holders[lease.request_id].gang
            for lease in snapshot.leases
            if lease.state is LeaseState.PREEMPTED and lease.request_id in snapshot.holders
        }
        moves: list[tuple[LeaseMove, timedelta | None]] = []
        for kept_lease, holder in running:
            lease = leases.get(kept_lease.id)
            if lease is None or lease.state is LeaseState.PREEMPTED:
                continue
            cause, grace = _break_cause(holder, states, newest), timedelta(0)
            if cause:
                moves.append((LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, cause), grace))
            elif holder.gang in preempted_gangs:
                cause = "another rank of its gang has to give its devices back"
                moves.append((LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, cause), None))
        if not moves:
            return
        outcomes = self._store.move([move for move, _ in moves], now)
        for (move, notice), outcome in zip(moves, outcomes, strict=True):
            if isinstance(outcome, Lease):
                self._notify(outcome, move.cause, now, notice)

    def _end_of(
        self, task: PendingTask, member: GangMember, states: Mapping[int, str | None], now: datetime
    ) -> events.Dropped | events.Failed | None:
        """The end of a waiting member whose gang can't be complete; of any other, the log says for whom it waits."""
        state_by_rank = {rank: state for rank, state in sorted(states.items()) if rank != member.rank}
        final = [(rank, state) for rank, state in state_by_rank.items() if state in _FINAL_STATES]
        size = f"Gang of {member.size}"
        if task.is_excluded and _has_succeeded(state_by_rank, task.gang_size):
            text = f"The gang has ended well with {task.gang_size} of {member.size} ranks: this one was not needed"
            return events.Dropped(text, text)
        if len(state_by_rank) < member.size - 1:
            text = f"the task has {len(state_by_rank) + 1} instances from {member.first_index} on"
            remedy = f"Expand it over a multiple of {member.size} values, or ask for another gang"
            return events.Failed(f"{size}: {text}. {remedy}.")
        if final:
            text = f"{_ranks_text(final)}, and does not run again by itself"
            return events.Failed(f"{size}: {text}. Clear all {member.size} ranks together.")
        missing = [(rank, state) for rank, state in state_by_rank.items() if state not in _ACTIVE_STATES]
        if missing:
            text = f"Waiting for its gang: {_ranks_text(missing)}"
            if any(state == TaskInstanceState.SCHEDULED for _, state in missing):
                text += ". If it stays so, max_active_tasks or the pool lets Airflow queue no more of them"
            self._log_once(task, text, now)
        return None

    def _log_once(self, task: PendingTask, text: str, now: datetime) -> None:
        if self._logged[task.request_id] != text:
            self._logged[task.request_id] = text
            write_task_log(task.workload.log_path, text, now)


def gang_of(lease: Lease, snapshot: Snapshot, workers: Mapping[str, Worker]) -> TaskGang | None:
    """What the task of a new lease gets to know about the other members; None if it has no gang.

    If one of them holds no lease any more, the next `watch` stops the gang.
    """
    request = snapshot.holders.get(lease.request_id)
    if request is None or not request.gang:
        return None
    member = _member(request)
    leases: dict[int, Lease] = {}
    for member_lease in snapshot.leases:
        holder = snapshot.holders.get(member_lease.request_id)
        if holder is not None and holder.gang == request.gang:
            leases[holder.map_index - member.first_index] = member_lease
    ranks = range(request.gang_size)
    return TaskGang(
        name=request.gang,
        rank=member.rank,
        hosts=tuple(workers[leases[rank].worker_id].host if rank in leases else "" for rank in ranks),
        leader=leases[0].id if 0 in leases else "",
        first_index=member.first_index,
        network=network_settings(workers[lease.worker_id].labels),
    )


def _break_cause(holder: PendingRequest, states: MemberStates, newest: Mapping[str, GangAttempt]) -> str:
    """Why a running member can't go on: others are gone, or wait for the next placement; empty if it can."""
    gang, number, _ = parse_placement_name(holder.gang)
    for rank, state in sorted(states[gang].items()):
        if rank < holder.gang_size and state not in _ACTIVE_STATES:
            return f"{_ranks_text([(rank, state)])} of its gang, so that all go on together later"
    return "another rank of its gang waits to begin again, with all others" if newest[gang].number > number else ""


def _newest_attempts(requests: Iterable[PendingRequest]) -> dict[str, GangAttempt]:
    """Gang → the newest of its placements among these requests."""
    attempts: dict[str, GangAttempt] = {}
    for request in requests:
        if request.gang:
            gang, number, _ = parse_placement_name(request.gang)
            if gang not in attempts or attempts[gang].number < number:
                attempts[gang] = GangAttempt(number, request.gang_size)
    return attempts


def _member(request: PendingRequest) -> GangMember:
    size = parse_placement_name(request.gang).full_size or request.gang_size
    return gang_member(request.dag_id, request.run_id, request.task_id, request.map_index, size)


def _has_succeeded(state_by_rank: Mapping[int, str | None], size: int) -> bool:
    return all(state_by_rank.get(rank) == TaskInstanceState.SUCCESS for rank in range(size))


def _ranks_text(ranks: Collection[tuple[int, str | None]]) -> str:
    """``rank 2 is up_for_retry, rank 3 is not queued``; the first four of many."""
    shown = [f"rank {rank} is {state or 'not queued'}" for rank, state in list(ranks)[:4]]
    return ", ".join(shown) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
