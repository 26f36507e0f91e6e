"""The gangs among the tasks that are held or run here: what they are called, who is missing, and who has to stop.

Airflow queues the instances of a mapped task one by one, maybe with several schedulers. Each is submitted under the
name of its gang at once, and policies let it wait until all are there. Every placement of a gang has a number: members
that come back while others still run wait under the next one, so that none of them is placed beside those.

Who ran and runs no more is read from Airflow's database, and from the store what waits: so it makes no difference which
scheduler saw it happen, or whether one died meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState

from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.gangs.sizes import GangAttempt, GangSizes
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper, RunningTask
from hetero_airflow.executor.leases.preemption import PreemptionNotices
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.periods import Periods
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.model.gang import GangMember, gang_member, parse_placement_name, placement_name
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.runtime.gang.network import network_settings
from hetero_airflow.runtime.task_lease import TaskGang
from hetero_airflow.store.store import LeaseMove, Store

_WATCH_EVERY_S = 2.0

_ACTIVE_STATES = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS)
"""What the others of a gang that runs may be: starting, running, or done already."""

_FINAL_STATES = (
    TaskInstanceState.SUCCESS,
    TaskInstanceState.FAILED,
    TaskInstanceState.SKIPPED,
    TaskInstanceState.UPSTREAM_FAILED,
    TaskInstanceState.REMOVED,
)
"""Who is that does not come by itself any more."""


class GangRoster:
    """Looks after the gangs for the dispatcher."""

    def __init__(self, store: Store, keeper: LeaseKeeper, tasks: TaskInstances, preemptions: PreemptionNotices) -> None:
        self._store = store
        self._keeper = keeper
        self._tasks = tasks
        self._preemptions = preemptions
        self._sizes = GangSizes()
        self._periods = Periods(watch=_WATCH_EVERY_S)
        self._told: dict[str, str] = {}
        """Request id → the last that its log says of the others."""

    def enrol(self, held: Iterable[PendingTask], snapshot: Snapshot) -> Iterator[PendingTask]:
        """Give each member that is held the name under which it waits; those that wait in the store under another."""
        members = [one for one in held if one.seat is not None]
        if not members:
            return
        waiting = {one.id: one for one in snapshot.pending if one.gang}
        running, asked = _newest_attempts(snapshot.holders.values()), _newest_attempts(waiting.values())
        numbers = {gang: found.number + 1 for gang, found in running.items()}
        for gang, found in asked.items():
            numbers[gang] = max(found.number, numbers.get(gang, 1))
        for one in members:
            assert one.seat is not None
            gang = one.seat.gang
            holder = snapshot.holders.get(one.request_id)
            if holder is not None:  # placed already, and not handed over yet
                one.gang, one.gang_size, one.is_left_out = holder.gang, holder.gang_size, False
                continue
            one.gang_size = self._sizes.of(one, running.get(gang), asked.get(gang))
            one.gang = placement_name(gang, numbers.get(gang, 1), one.gang_size, one.seat.size)
            one.is_left_out = one.seat.rank >= one.gang_size
            known = waiting.get(one.request_id)
            if known is not None and one.request is not None and (one.is_left_out or known.gang != one.gang):
                yield one

    def is_whole(self, request_id: str, snapshot: Snapshot) -> bool:
        """Whether all members of the gang of a request that holds a lease hold one; true of one without a gang."""
        own = snapshot.holders.get(request_id)
        if own is None or not own.gang:
            return True
        return sum(holder.gang == own.gang for holder in snapshot.holders.values()) >= own.gang_size

    def gang_of(self, lease: Lease, workers: Mapping[str, Worker]) -> TaskGang | None:
        """What the task of a lease that was just granted is told of the others; None if it has no gang.

        Should one of them hold no lease any more, the gang is stopped at the next look.
        """
        snapshot = self._store.snapshot()
        own = snapshot.holders.get(lease.request_id)
        if own is None or not own.gang:
            return None
        seat = _seat(own)
        placed: dict[int, Lease] = {}
        for other in snapshot.leases:
            holder = snapshot.holders.get(other.request_id)
            if holder is not None and holder.gang == own.gang:
                placed[holder.map_index - seat.first_index] = other
        return TaskGang(
            name=own.gang,
            rank=seat.rank,
            hosts=tuple(workers[placed[n].worker_id].host if n in placed else "" for n in range(own.gang_size)),
            leader=placed[0].id if 0 in placed else "",
            first_index=seat.first_index,
            network=network_settings(workers[lease.worker_id].labels),
        )

    def shrink(self, one: PendingTask) -> bool:
        """Whether the gang of a held task, for which no room could ever be, is tried with fewer."""
        return self._sizes.shrink(one)

    def watch(self, held: Mapping[Any, PendingTask], now: datetime) -> list[tuple[Any, str, bool]]:
        """Stop what runs in gangs that have lost a member; (key, why, is it done) of the held tasks that are to end.

        One that is done was left out of a gang that has ended well; the gangs of the others can't be whole.
        """
        if not self._periods.is_due("watch", now):
            return []
        snapshot = self._store.snapshot()
        running = [
            (task, holder)
            for task in self._keeper.running.values()
            if (holder := snapshot.holders.get(task.lease.request_id)) is not None and holder.gang
        ]
        waiting = [(key, one) for key, one in held.items() if one.seat is not None]
        seats = {_seat(holder) for _, holder in running} | {one.seat for _, one in waiting if one.seat is not None}
        if not seats:
            return []
        members = self._tasks.members(seats)
        self._stop_broken(running, members, snapshot, now)
        self._told = {one.request_id: self._told.get(one.request_id, "") for _, one in waiting}
        placed = _newest_attempts(snapshot.holders.values())
        self._sizes.step([one for _, one in waiting], members, placed, now)
        ends = list(self._ends(waiting, members, placed, now))
        done = [held[key].request_id for key, _, is_done in ends if is_done]
        if done:
            self._tasks.finish(done, now)
        return ends

    def _stop_broken(
        self,
        running: Collection[tuple[RunningTask, PendingRequest]],
        members: Mapping[str, Mapping[int, str | None]],
        snapshot: Snapshot,
        now: datetime,
    ) -> None:
        """Tell members to stop: at once where the others are gone, and with the time to save where they have it too."""
        again = _newest_attempts((*snapshot.pending, *snapshot.holders.values()))
        leases = {lease.id: lease for lease in snapshot.leases}
        ending = {
            snapshot.holders[lease.request_id].gang
            for lease in leases.values()
            if lease.state is LeaseState.PREEMPTED and lease.request_id in snapshot.holders
        }
        moves: list[tuple[LeaseMove, timedelta | None]] = []
        for task, holder in running:
            lease = leases.get(task.lease.id)
            if lease is None or lease.state is LeaseState.PREEMPTED:
                continue
            gang, number, _ = parse_placement_name(holder.gang)
            states = [(rank, state) for rank, state in sorted(members[gang].items()) if rank < holder.gang_size]
            gone = [(rank, state) for rank, state in states if state not in _ACTIVE_STATES]
            cause = ""
            if gone:
                cause = f"{_ranks_text(gone[:1])} of its gang, so that all go on together later"
            elif again[gang].number > number:
                cause = "another rank of its gang waits to begin again, with all others"
            if cause:
                moves.append((LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, cause), timedelta(0)))
            elif holder.gang in ending:
                cause = "another rank of its gang has to give its devices back"
                moves.append((LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, cause), None))
        if not moves:
            return
        outcomes = self._store.move([move for move, _ in moves], now)
        for (move, grace), outcome in zip(moves, outcomes, strict=True):
            if isinstance(outcome, Lease):
                self._preemptions.tell(outcome, move.cause, now, grace)

    def _ends(
        self,
        waiting: Iterable[tuple[Any, PendingTask]],
        members: Mapping[str, Mapping[int, str | None]],
        placed: Collection[str],
        now: datetime,
    ) -> Iterator[tuple[Any, str, bool]]:
        """Those that wait for a member that does not come; the others' logs say whom they wait for."""
        for key, one in waiting:
            seat = one.seat
            assert seat is not None
            if seat.gang in placed:  # it waits for those to end, or is about to be handed over
                if one.is_left_out:
                    self._tell(one, f"Its gang runs with {one.gang_size} of {seat.size} ranks, without this one", now)
                continue
            others = {rank: state for rank, state in members[seat.gang].items() if rank != seat.rank}
            over = [(rank, state) for rank, state in sorted(others.items()) if state in _FINAL_STATES]
            if one.is_left_out and _has_succeeded(others, one.gang_size):
                text = f"The gang has ended well with {one.gang_size} of {seat.size} ranks: this one was not needed"
                write_task_log(one.workload.log_path, text, now)
                yield key, text, True
            elif len(others) < seat.size - 1:
                text = f"the task has {len(others) + 1} instances from {seat.first_index} on"
                remedy = f"Expand it over a multiple of {seat.size} values, or ask for another gang"
                yield key, f"Gang of {seat.size}: {text}. {remedy}.", False
            elif over:
                text = f"{_ranks_text(over)}, and does not run again by itself"
                yield key, f"Gang of {seat.size}: {text}. Clear all {seat.size} ranks together.", False
            else:
                missing = [(rank, state) for rank, state in sorted(others.items()) if state not in _ACTIVE_STATES]
                text = f"Waiting for its gang: {_ranks_text(missing)}" if missing else ""
                if any(state == TaskInstanceState.SCHEDULED for _, state in missing):
                    text += ". If it stays so, max_active_tasks or the pool lets Airflow queue no more of them"
                self._tell(one, text, now)

    def _tell(self, one: PendingTask, text: str, now: datetime) -> None:
        if text and self._told[one.request_id] != text:
            self._told[one.request_id] = text
            write_task_log(one.workload.log_path, text, now)


def _newest_attempts(requests: Iterable[PendingRequest]) -> dict[str, GangAttempt]:
    """Gang → the newest of its placements among these requests."""
    found: dict[str, GangAttempt] = {}
    for one in requests:
        if one.gang:
            gang, number, _ = parse_placement_name(one.gang)
            if gang not in found or found[gang].number < number:
                found[gang] = GangAttempt(number, one.gang_size)
    return found


def _seat(holder: PendingRequest) -> GangMember:
    size = parse_placement_name(holder.gang).most or holder.gang_size
    return gang_member(holder.dag_id, holder.run_id, holder.task_id, holder.map_index, size)


def _has_succeeded(others: Mapping[int, str | None], size: int) -> bool:
    return all(others.get(rank) == TaskInstanceState.SUCCESS for rank in range(size))


def _ranks_text(ranks: Collection[tuple[int, str | None]]) -> str:
    """``rank 2 is up_for_retry, rank 3 is not queued``; of many, the first few."""
    shown = [f"rank {rank} is {state or 'not queued'}" for rank, state in list(ranks)[:4]]
    return ", ".join(shown) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
