"""The store as plain Python values: for the simulator and for tests. One thread, nothing survives it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

from hetero_airflow.errors import StoreError
from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.device_health import NO_ERRORS, DeviceHealth
from hetero_airflow.model.heartbeat import ServerHeartbeat, WorkerHeartbeat, next_server_heartbeat
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import TERMINAL, TRANSITIONS, Claim, Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Reason, Refuse, Wait
from hetero_airflow.model.run import Run
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.codec import REASON, clean_cause, decision_columns, decision_json
from hetero_airflow.store.cores import choose_cores
from hetero_airflow.store.inventory import DeviceRecord, merge_inventory, worker_with_devices
from hetero_airflow.store.lease_rules import are_grantable, check_move, lease_id, leased_device_class, run_end_of
from hetero_airflow.store.snapshot_builder import SnapshotBuilder
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
    ServerAlive,
    StartDelayed,
    StoreEvent,
    WorkerAlive,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.units import MILLI_PER_DEVICE


@dataclass(slots=True)
class _WorkerRecord:
    reported: Worker
    state: WorkerState
    seen_at: datetime
    leases: frozenset[str] | None = None
    """Those that its agent told of last."""
    devices: dict[str, DeviceRecord] = field(default_factory=dict)
    telemetry: tuple[Telemetry, ...] = ()


@dataclass(slots=True)
class _RequestRecord:
    pending: PendingRequest
    state: str = "waiting"
    ended_at: datetime | None = None
    cause: str = ""
    lease_ids: tuple[str, ...] = ()
    newest: Decision | None = None
    """Since it was submitted."""
    decided_at: datetime | None = None
    """When that was made."""
    delay: Reason | None = None
    """Why it does not run yet, of one that was placed."""
    before: list[tuple[datetime, Decision]] | None = None
    """The decisions before the newest, where history is kept and there are any."""

    @property
    def decisions(self) -> Iterator[tuple[datetime, Decision]]:
        """All that are kept, newest first."""
        if self.newest is not None and self.decided_at is not None:
            yield self.decided_at, self.newest
        yield from reversed(self.before or ())


class MemoryStore:
    """A `Store` with its `History` and `Presence` in this process's memory.

    :param keeps_history: False forgets ended requests, their leases, and all but the newest decision
        at once, so that a long simulation needs no more memory than what lives; an ended lease is
        then not found
    """

    def __init__(self, *, keeps_history: bool = True) -> None:
        self._keeps_history = keeps_history
        self._view = SnapshotBuilder()
        self._sequence = 0
        self._token = 0
        self._hosts: dict[str, _WorkerRecord] = {}
        self._requests: dict[str, _RequestRecord] = {}
        self._leases: dict[str, Lease] = {}
        self._runs: deque[Run] = deque(maxlen=MAX_RUNS)
        self._bars: defaultdict[str, dict[tuple[str, HoldKind], Hold]] = defaultdict(dict)
        """Worker id → (device id, kind) → bar."""
        self._health: dict[tuple[str, str], DeviceHealth] = {}
        self._cores: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._server: ServerHeartbeat | None = None

    # -- Store ---------------------------------------------------------------------------------------------------------

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Take note of what happened, in order."""
        is_visible = False
        for event in events:
            if isinstance(event, WorkerSeen):
                is_visible |= self._see(event, now)
            elif isinstance(event, WorkerAlive):
                self._hear(event, now)
            elif isinstance(event, WorkerLost):
                is_visible |= self._lose(event.worker_id)
            elif isinstance(event, ServerAlive):
                self._server = next_server_heartbeat(self._server, now, is_new=event.is_new)
            elif isinstance(event, RequestSubmitted):
                is_visible |= self._submit(event.pending)
            elif isinstance(event, CheckpointSaved):
                is_visible |= self._save(event, now)
            elif isinstance(event, StartDelayed):
                self._delay(event)
            elif isinstance(event, HoldPlaced):
                bar = replace(event.bar, cause=clean_cause(event.bar.cause))
                is_visible |= self._bar(bar.worker_id, bar.device_id, bar.kind, bar)
            elif isinstance(event, HoldLifted):
                is_visible |= self._bar(event.worker_id, event.device_id, event.kind, None)
            elif isinstance(event, HealthNoted):
                self._health[event.worker_id, event.device_id] = event.health
            elif isinstance(event, HealthChanged):
                is_visible |= self._change_health(event)
            else:
                is_visible |= self._end(event.request_id, "waiting", now, event.cause)
        self._sequence += is_visible

    def snapshot(self) -> Snapshot:
        """The present state; cheap when nothing has changed since the last call."""
        return self._view.snapshot(self._sequence)

    def commit(self, plan: Plan, now: datetime, expires_at: datetime, news: Sequence[StoreEvent] = ()) -> CommitResult:
        """Grant the placements of a plan and keep every decision's account; see the port."""
        self.record(news, now)
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
                self._keep(request, decision, now)
                if isinstance(decision, Refuse):
                    has_ended |= self._end(decision.request_id, "waiting", now, str(decision.reason))
        self._sequence += bool(leases) or has_ended
        return CommitResult(tuple(leases), tuple(refused))

    def renew(self, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
        """Extend the leases given as (lease id, token); the ids that are not held with that token any more."""
        gone: set[str] = set()
        is_visible = False
        for held_id, token in holds:
            lease = self._view.lease(held_id)
            if lease is None or lease.token != token:
                gone.add(held_id)
                continue
            state = LeaseState.PREEMPTED if lease.state == LeaseState.PREEMPTED else LeaseState.ACTIVE
            if lease.state != state or lease.expires_at != expires_at:
                self._put(lease.model_copy(update={"state": state, "expires_at": expires_at}))
                is_visible = True
        self._sequence += is_visible
        return frozenset(gone)

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; the outcome of each move, in order; see the port."""
        return tuple(self._move(move, now) for move in moves)

    def _move(self, move: LeaseMove, now: datetime) -> Lease | StoreError:
        lease = check_move(move, self._leases.get(move.lease_id))
        if isinstance(lease, StoreError):
            return lease
        moved = lease.model_copy(update={"state": move.to})
        self._put(moved)
        if move.to in TERMINAL:
            self._remember(lease, move, now)
            for claim in lease.claims:
                self._free(lease.worker_id, claim)
            self._end(lease.request_id, "placed", now, move.cause or TRANSITIONS[lease.state, move.to])
        self._sequence += 1
        return moved

    # -- History -------------------------------------------------------------------------------------------------------

    def request_history(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> RequestHistory | None:
        """The newest request of a task instance, or None if it never asked."""
        asked = (dag_id, run_id, task_id, map_index)
        own = [r for r in self._requests.values() if _task_instance(r.pending) == asked]
        if not own:
            return None
        newest = max(own, key=lambda r: (r.pending.submitted_at, r.pending.try_number, r.pending.id))
        decisions = [decision_json(decision_columns(d), at) for at, d in newest.decisions]
        if newest.delay is not None:
            decisions[0]["reason"] = REASON.dump_python(newest.delay, mode="json", exclude_none=True)
        leases = tuple(self._leases[lease_id] for lease_id in newest.lease_ids)
        return RequestHistory(newest.pending, newest.state, newest.ended_at, newest.cause, leases, tuple(decisions))

    def telemetry(self) -> dict[tuple[str, str], Telemetry]:
        """(worker id, device id) → last reading."""
        return {(i, reading.device_id): reading for i, host in self._hosts.items() for reading in host.telemetry}

    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """(worker id, device id) → what is remembered of its errors; without those that are `WELL`."""
        return {key: health for key, health in self._health.items() if health != NO_ERRORS}

    def runs(self, since: int = 0) -> tuple[Run, ...]:
        """The leases that ended after that sequence and of which it is known how, in the order of their ends."""
        newer = takewhile(lambda run: run.sequence > since, reversed(self._runs))
        return tuple(newer)[::-1]

    def prune(self, before: datetime) -> int:
        """Delete ended requests, their leases and decisions from before that time; how many requests went."""
        old = [i for i, r in self._requests.items() if r.ended_at is not None and r.ended_at < before]
        for request_id in old:
            self._forget(request_id)
        for request in self._requests.values():
            if request.state == "waiting":
                request.before = None if request.newest is not None else [*request.decisions][:1] or None
        return len(old)

    # -- Presence ------------------------------------------------------------------------------------------------------

    def last_seen(self) -> dict[str, datetime]:
        """Worker id → when it was last seen."""
        return {worker_id: host.seen_at for worker_id, host in self._hosts.items()}

    def heartbeats(self) -> Mapping[str, WorkerHeartbeat]:
        """Worker id → what its agent said last; without workers for which none speaks, or that are lost since."""
        told = {worker_id: (host.seen_at, host.leases) for worker_id, host in self._hosts.items()}
        return {
            worker_id: WorkerHeartbeat(at, leases) for worker_id, (at, leases) in told.items() if leases is not None
        }

    def server_heartbeat(self) -> ServerHeartbeat | None:
        """When the API server was there; None if it never was."""
        return self._server

    # -- events --------------------------------------------------------------------------------------------------------

    def _see(self, seen: WorkerSeen, now: datetime) -> bool:
        host = self._hosts.get(seen.worker.id)
        may_come = self._may_come(host, seen)
        if host is None:
            if not may_come:
                return False
            host = self._hosts[seen.worker.id] = _WorkerRecord(seen.worker, WorkerState.ONLINE, now)
        elif not may_come or (host.reported == seen.worker and host.state == WorkerState.ONLINE):
            _record_heartbeat(host, seen, now)
            return False
        host.devices = merge_inventory(host.devices, seen.worker, host.seen_at)
        host.reported, host.state = seen.worker, WorkerState.ONLINE
        _record_heartbeat(host, seen, now)
        self._show_worker(host)
        return True

    def _may_come(self, host: _WorkerRecord | None, seen: WorkerSeen) -> bool:
        """Whether the worker is online or may be now; see `WorkerSeen`."""
        if not seen.leases or (host is not None and host.state == WorkerState.ONLINE):
            return True
        known = (self._leases.get(lease_id) for lease_id in seen.leases)
        is_held = all(one and one.worker_id == seen.worker.id and one.state not in TERMINAL for one in known)
        return is_held and host is not None and seen.leases <= (host.leases or frozenset())

    def _hear(self, alive: WorkerAlive, now: datetime) -> None:
        host = self._hosts.get(alive.worker_id)
        if host is not None and host.state == WorkerState.ONLINE:
            _record_heartbeat(host, alive, now)

    def _lose(self, worker_id: str) -> bool:
        host = self._hosts.get(worker_id)
        if host is None or host.state == WorkerState.LOST:
            return False
        host.state, host.leases = WorkerState.LOST, None
        self._show_worker(host)
        return True

    def _bar(self, worker_id: str, device_id: str, kind: HoldKind, bar: Hold | None) -> bool:
        """Put up the bar, or take off the one of that kind; whether a snapshot shows it."""
        bars, key = self._bars[worker_id], (device_id, kind)
        if bars.get(key) == bar:
            return False
        if bar is None:
            del bars[key]
        else:
            bars[key] = bar
        host = self._hosts.get(worker_id)
        if host is not None:
            self._show_worker(host)
        return host is not None

    def _change_health(self, event: HealthChanged) -> bool:
        before = self._health.get((event.worker_id, event.device_id), NO_ERRORS)
        health, bar = event.change(before)
        if health == before:
            return False
        self._health[event.worker_id, event.device_id] = health
        clean = None if bar is None else replace(bar, cause=clean_cause(bar.cause))
        return self._bar(event.worker_id, event.device_id, HoldKind.QUARANTINED, clean)

    def _show_worker(self, host: _WorkerRecord) -> None:
        shown = worker_with_devices(host.reported, (record.device for record in host.devices.values()), host.state)
        self._view.put_worker(shown, self._bars[host.reported.id].values())
        usage = {device_id: record.usage for device_id, record in host.devices.items()}
        self._view.put_usage(host.reported.id, usage, replace=True)

    def _submit(self, pending: PendingRequest) -> bool:
        request = self._requests.get(pending.id)
        if request is None:
            self._requests[pending.id] = _RequestRecord(pending)
        elif request.state == "ended":
            request.pending, request.state, request.ended_at, request.cause = pending, "waiting", None, ""
            self._put_by(request)
        else:
            return False
        self._view.put_pending(pending)
        return True

    def _save(self, saved: CheckpointSaved, now: datetime) -> bool:
        lease = self._view.lease(saved.lease_id)
        if lease is None or lease.token != saved.token:
            return False
        self._put(lease.model_copy(update={"saved_at": now}))
        return True

    def _delay(self, delayed: StartDelayed) -> None:
        request = self._requests.get(delayed.request_id)
        if request is not None and request.state == "placed" and isinstance(request.newest, Place):
            request.delay = delayed.reason

    def _end(self, request_id: str, state: str, now: datetime, cause: str) -> bool:
        request = self._requests.get(request_id)
        if request is None or request.state != state:
            return False
        request.state, request.ended_at, request.cause = "ended", now, clean_cause(cause)
        self._view.drop_pending(request_id)
        self._view.drop_holder(request_id)
        if not self._keeps_history:
            self._forget(request_id)
        return True

    def _forget(self, request_id: str) -> None:
        for own in self._requests.pop(request_id).lease_ids:
            del self._leases[own]

    # -- leases --------------------------------------------------------------------------------------------------------

    def _grant(self, place: Place, now: datetime, expires_at: datetime) -> Lease | None:
        host = self._hosts.get(place.worker_id)
        if host is None or host.state != WorkerState.ONLINE or not are_grantable(place.claims):
            return None
        granted: dict[str, DeviceRecord] = {}
        claims: list[Claim] = []
        for claim in place.claims:
            known = host.devices.get(claim.device_id)
            record = None if known is None else known.grant(claim, now)
            cores = None if record is None else self._choose_cores(place.worker_id, record, claim)
            if record is None or cores is None or holds_on(record.device, self._bars[place.worker_id].values()):
                return None
            granted[claim.device_id] = record
            claims.append(replace(claim, cores=cores) if cores else claim)
        host.devices.update(granted)
        self._view.put_usage(place.worker_id, {device_id: record.usage for device_id, record in granted.items()})
        self._token += 1
        request = self._requests[place.request_id]
        request.state = "placed"
        self._view.put_holder(request.pending)
        self._view.put_dag_token(request.pending.dag_id, self._token)
        for claim in claims:
            if claim.cores:
                self._cores[place.worker_id, claim.device_id].update(claim.cores)
        lease = Lease(
            id=lease_id(place.request_id, self._token),
            request_id=place.request_id,
            worker_id=place.worker_id,
            alternative=place.alternative,
            claims=tuple(claims),
            token=self._token,
            state=LeaseState.GRANTED,
            granted_at=now,
            expires_at=expires_at,
        )
        request.lease_ids += (lease.id,)
        self._put(lease)
        return lease

    def _remember(self, lease: Lease, move: LeaseMove, now: datetime) -> None:
        end, devices = run_end_of(move), self._hosts[lease.worker_id].devices
        if end is None:
            return
        leased = leased_device_class(
            lease.claims, {key: devices[key].device for key in (c.device_id for c in lease.claims)}
        )
        assert leased is not None, "a device stays known for as long as it is leased"
        pending = self._requests[lease.request_id].pending
        run = Run(
            self._sequence + 1,
            pending.id,
            pending.task,
            pending.request.alternatives[0],
            *leased,
            (now - lease.granted_at).total_seconds(),
            end,
            now,
            pending.attained_service_s,
        )
        self._runs.append(run)

    def _choose_cores(self, worker_id: str, record: DeviceRecord, claim: Claim) -> tuple[int, ...] | None:
        if record.device.kind != "cpu":
            return ()
        taken = self._cores[worker_id, record.device.id]
        return choose_cores(record.device.cores, taken, claim.share_milli // MILLI_PER_DEVICE)

    def _put(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        if lease.state in TERMINAL:
            self._view.drop_lease(lease.id)
        else:
            self._view.put_lease(lease)

    def _free(self, worker_id: str, claim: Claim) -> None:
        host = self._hosts[worker_id]
        record = host.devices[claim.device_id].free(claim)
        if claim.cores:
            self._cores[worker_id, claim.device_id].difference_update(claim.cores)
        if record is None:
            del host.devices[claim.device_id]
            self._show_worker(host)
        else:
            host.devices[claim.device_id] = record
            self._view.put_usage(worker_id, {claim.device_id: record.usage})

    def _keep(self, request: _RequestRecord, decision: Decision, now: datetime) -> None:
        if isinstance(decision, Wait) and decision == request.newest:
            return
        self._put_by(request)
        request.newest, request.decided_at = decision, now

    def _put_by(self, request: _RequestRecord) -> None:
        """Move the newest decision to those before it."""
        if self._keeps_history and request.newest is not None and request.decided_at is not None:
            request.before = request.before or []
            request.before.append((request.decided_at, request.newest))
        request.newest = request.delay = None


def _record_heartbeat(host: _WorkerRecord, event: WorkerSeen | WorkerAlive, now: datetime) -> None:
    host.seen_at = now
    host.telemetry = event.telemetry or host.telemetry
    host.leases = host.leases if event.leases is None else event.leases


def _task_instance(pending: PendingRequest) -> tuple[str, str, str, int]:
    return pending.dag_id, pending.run_id, pending.task_id, pending.map_index
