"""The store in memory, for the simulator and for tests. For one thread; its content ends with the process."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from hetero_airflow.errors import StoreError
from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.lease import TERMINAL, TRANSITIONS, Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Reason, Refuse, Wait
from hetero_airflow.model.run import EndedRun, ServiceRecord, Transition
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.codec import REASON, clean_cause, decision_columns, decision_json, merged_transitions
from hetero_airflow.store.lease_rules import check_move, granted_lease, leased_device_class, run_end_of
from hetero_airflow.store.memory_workers import MemoryWorkers
from hetero_airflow.store.speeds.in_memory import MemorySpeeds
from hetero_airflow.store.store import (
    MAX_RUNS,
    CheckpointSaved,
    CommitResult,
    HealthNoted,
    HoldLifted,
    HoldPlaced,
    LeaseMove,
    RequestHistory,
    RequestSubmitted,
    RequestWithdrawn,
    SchedulerDecided,
    ServerAlive,
    StartClaimed,
    StartDelayed,
    StoreEvent,
    TransitionsNoted,
    WorkerAlive,
    WorkerForgotten,
    WorkerLost,
    WorkerSeen,
)


@dataclass(slots=True)
class _RequestRecord:
    pending: PendingRequest
    state: str = "waiting"
    ended_at: datetime | None = None
    cause: str = ""
    lease_ids: tuple[str, ...] = ()
    decisions: list[tuple[datetime, Decision]] = field(default_factory=list)
    """Oldest first."""
    newest: Decision | None = None
    """The newest decision since the request was submitted."""
    delay: Reason | None = None
    """Why a placed request does not run yet."""
    transitions: tuple[Transition, ...] = ()


class MemoryStore(MemoryWorkers, MemorySpeeds):
    """What `SqlStore` does, in this process's memory.

    :param keeps_history: False deletes ended requests, their leases, and all decisions except the newest at once, so
        that a long simulation needs memory only for live requests. An ended lease is then not found.
    """

    def __init__(self, *, keeps_history: bool = True) -> None:
        MemoryWorkers.__init__(self)
        MemorySpeeds.__init__(self)
        self._keeps_history = keeps_history
        self._sequence = 0
        self._token = 0
        self._requests: dict[str, _RequestRecord] = {}
        self._leases: dict[str, Lease] = {}
        self._runs: deque[EndedRun] = deque(maxlen=MAX_RUNS)
        self._recorders: dict[type, Callable[[Any, datetime], bool]] = {
            WorkerSeen: self._see,
            WorkerAlive: self._hear,
            WorkerLost: self._lose,
            WorkerForgotten: self._forget,
            ServerAlive: self._hear_server,
            SchedulerDecided: self._note_decision,
            HoldPlaced: self._place_hold,
            HoldLifted: self._lift_hold,
            HealthNoted: self._note_health,
            HealthChanged: self._change_health,
            RequestSubmitted: self._submit,
            RequestWithdrawn: self._withdraw,
            CheckpointSaved: self._save,
            StartClaimed: self._claim_start,
            StartDelayed: self._delay,
            TransitionsNoted: self._note_transitions,
        }
        """Type of event → records one, and returns whether a snapshot shows the change."""

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Record the events in order."""
        is_visible = False
        for event in events:
            is_visible |= self._recorders[type(event)](event, now)
        self._sequence += is_visible

    def snapshot(self) -> Snapshot:
        """The current state; cheap if nothing has changed since the last call."""
        return self._builder.snapshot(self._sequence)

    def commit(
        self, plan: Plan, now: datetime, expires_at: datetime, events: Sequence[StoreEvent] = ()
    ) -> CommitResult:
        """Grant the placements of a plan and store every decision with its explanation; see the port."""
        self.record(events, now)
        leases: list[Lease] = []
        refused: list[str] = []
        has_ended = False
        for decision in plan.decisions:
            request = self._requests.get(decision.request_id)
            is_waiting = request is not None and request.state == "waiting"
            if isinstance(decision, Place):
                lease = self._grant(decision, now, expires_at) if is_waiting else None
                if lease is None:
                    refused.append(decision.request_id)
                    continue
                leases.append(lease)
            if request is not None and is_waiting:
                self._keep_decision(request, decision, now)
                if isinstance(decision, Refuse):
                    has_ended |= self._end(decision.request_id, "waiting", now, str(decision.reason))
        self._sequence += bool(leases) or has_ended
        return CommitResult(tuple(leases), tuple(refused))

    def renew(self, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
        """Extend leases, given as (lease id, token); returns the ids that are no longer held with that token."""
        forgotten_ids: set[str] = set()
        is_visible = False
        for lease_id, token in holds:
            lease = self._builder.lease(lease_id)
            if lease is None or lease.token != token:
                forgotten_ids.add(lease_id)
                continue
            state = LeaseState.PREEMPTED if lease.state == LeaseState.PREEMPTED else LeaseState.ACTIVE
            if lease.state != state or lease.expires_at != expires_at:
                self._put_lease(lease.model_copy(update={"state": state, "expires_at": expires_at}))
                is_visible = True
        self._sequence += is_visible
        return frozenset(forgotten_ids)

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; returns the result of each move, in order; see the port."""
        return tuple(self._move(move, now) for move in moves)

    def _move(self, move: LeaseMove, now: datetime) -> Lease | StoreError:
        lease = check_move(move, self._leases.get(move.lease_id))
        if isinstance(lease, StoreError):
            return lease
        moved = lease.model_copy(update={"state": move.to})
        self._put_lease(moved)
        if move.to in TERMINAL:
            self._keep_run(lease, move, now)
            self._free(lease, now)
            self._end(lease.request_id, "placed", now, move.cause or TRANSITIONS[lease.state, move.to])
        self._sequence += 1
        return moved

    def request_history(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> RequestHistory | None:
        """The newest request of a task instance, or None if it never had one."""
        task = (dag_id, run_id, task_id, map_index)
        requests = [request for request in self._requests.values() if _task_instance(request.pending) == task]
        if not requests:
            return None
        newest = max(requests, key=lambda r: (r.pending.submitted_at, r.pending.try_number, r.pending.id))
        decisions = [decision_json(decision_columns(decision), at) for at, decision in reversed(newest.decisions)]
        if newest.delay is not None:
            decisions[0]["reason"] = REASON.dump_python(newest.delay, mode="json", exclude_none=True)
        leases = tuple(self._leases[lease_id] for lease_id in newest.lease_ids)
        end = newest.ended_at, newest.cause
        return RequestHistory(newest.pending, newest.state, *end, leases, tuple(decisions), newest.transitions)

    def runs(self, since: int = 0) -> tuple[EndedRun, ...]:
        """The leases that ended after this sequence in a known way, ordered by their ends."""
        newer = takewhile(lambda run: run.sequence > since, reversed(self._runs))
        return tuple(newer)[::-1]

    def service_records(self, request_ids: Collection[str]) -> dict[str, ServiceRecord]:
        """Request id → what it has had under its leases, for those of the requests that had one which is over."""
        runs: defaultdict[str, list[EndedRun]] = defaultdict(list)
        for run in self._runs:
            if run.request_id in request_ids and run.request_id in self._requests:
                runs[run.request_id].append(run)
        return {id_: ServiceRecord.of(self._requests[id_].pending.submitted_at, own) for id_, own in runs.items()}

    def prune(self, before: datetime) -> int:
        """Delete requests that ended before this time and what else is old; returns how many requests."""
        old = [i for i, r in self._requests.items() if r.ended_at is not None and r.ended_at < before]
        for request_id in old:
            self._delete(request_id)
        for request in self._requests.values():
            if request.state == "waiting":
                del request.decisions[:-1]
        dag_ids = {request.pending.dag_id for request in self._requests.values()}
        self._sequence += self._builder.drop_dag_tokens(dag_ids)
        while self._runs and self._runs[0].ended_at < before:
            self._runs.popleft()
        self._prune_workers(before)
        self._prune_speeds(before)
        return len(old)

    def _submit(self, event: RequestSubmitted, now: datetime) -> bool:
        pending = event.pending
        request = self._requests.get(pending.id)
        if request is None:
            self._requests[pending.id] = _RequestRecord(pending)
        elif request.state == "ended":
            request.pending, request.state, request.ended_at, request.cause = pending, "waiting", None, ""
            request.newest = request.delay = None
        else:
            return False
        self._builder.put_pending(pending)
        return True

    def _withdraw(self, event: RequestWithdrawn, now: datetime) -> bool:
        return self._end(event.request_id, "waiting", now, event.cause)

    def _save(self, event: CheckpointSaved, now: datetime) -> bool:
        lease = self._builder.lease(event.lease_id)
        if lease is None or lease.token != event.token:
            return False
        self._put_lease(lease.model_copy(update={"saved_at": now}))
        return True

    def _claim_start(self, event: StartClaimed, now: datetime) -> bool:
        lease = self._builder.lease(event.lease_id)
        if lease is None or lease.token != event.token or lease.starter is not None:
            return False
        self._put_lease(lease.model_copy(update={"starter": event.starter}))
        return True

    def _delay(self, event: StartDelayed, now: datetime) -> bool:
        request = self._requests.get(event.request_id)
        if request is not None and request.state == "placed" and isinstance(request.newest, Place):
            request.delay = event.reason
        return False

    def _note_transitions(self, event: TransitionsNoted, now: datetime) -> bool:
        request = self._requests.get(event.request_id)
        if request is not None:
            request.transitions = merged_transitions(request.transitions, event.transitions)
        return False

    def _end(self, request_id: str, state: str, now: datetime, cause: str) -> bool:
        request = self._requests.get(request_id)
        if request is None or request.state != state:
            return False
        request.state, request.ended_at, request.cause = "ended", now, clean_cause(cause)
        self._builder.drop_pending(request_id)
        self._builder.drop_holder(request_id)
        if not self._keeps_history:
            self._delete(request_id)
        return True

    def _delete(self, request_id: str) -> None:
        for lease_id in self._requests.pop(request_id).lease_ids:
            del self._leases[lease_id]

    def _grant(self, place: Place, now: datetime, expires_at: datetime) -> Lease | None:
        claims = self._take(place, now)
        if claims is None:
            return None
        self._token += 1
        lease = granted_lease(place, claims, self._token, now, expires_at)
        request = self._requests[place.request_id]
        request.state = "placed"
        request.lease_ids += (lease.id,)
        self._builder.put_holder(request.pending)
        self._builder.put_dag_token(request.pending.dag_id, self._token)
        self._put_lease(lease)
        return lease

    def _put_lease(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        if lease.state in TERMINAL:
            self._builder.drop_lease(lease.id)
        else:
            self._builder.put_lease(lease)

    def _keep_run(self, lease: Lease, move: LeaseMove, now: datetime) -> None:
        end = run_end_of(move)
        if end is None:
            return
        devices = self._workers[lease.worker_id].devices
        leased = leased_device_class(lease.claims, {c.device_id: devices[c.device_id].device for c in lease.claims})
        assert leased is not None, "a device stays known while it is leased"
        pending = self._requests[lease.request_id].pending
        alternative, held_s = pending.request.alternatives[0], (now - lease.granted_at).total_seconds()
        run = EndedRun(
            self._sequence + 1,
            pending.id,
            pending.task,
            alternative,
            *leased,
            held_s,
            end,
            now,
            pending.attained_service_s,
        )
        self._runs.append(run)

    def _keep_decision(self, request: _RequestRecord, decision: Decision, now: datetime) -> None:
        if isinstance(decision, Wait) and decision == request.newest:
            return
        if not self._keeps_history:
            request.decisions.clear()
        request.decisions.append((now, decision))
        request.newest, request.delay = decision, None


def _task_instance(pending: PendingRequest) -> tuple[str, str, str, int]:
    return pending.dag_id, pending.run_id, pending.task_id, pending.map_index
