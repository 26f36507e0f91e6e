"""Teams get devices by their weights. A team with a quota lends what it does not use, and gets it back first.

Hierarchical fair share of device-time: on each level of the tree of `TeamShares`, the team goes next whose use divided
by its weight is the smallest. The use of a team is its dominant share (Ghodsi et al., NSDI 2011): of all accelerators
or of all cores, whichever is larger. Deviations: use is device-time and not what is held at one moment. It consists of

- what the team's ended runs held, halved each `USAGE_HALF_LIFE_S`;
- what its live requests have held so far;
- what it holds now, for an hour ahead (`CHARGED_S`), so that one decision does not give one team everything that is
  free. A request that is put into the queue is charged in the same way.

All devices of a kind count alike.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import Estimates, decayed
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.team_shares import TeamPath, TeamShares
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_age, by_priority
from hetero_airflow.policies.core.request_progress import RequestProgress, requested_devices
from hetero_airflow.policies.core.reservation import PreemptionPlan

CHARGED_S = 3600.0
"""A team that holds devices is charged for them for this time ahead."""

_KINDS = ("accelerator", "cpu")


@dataclass(frozen=True, slots=True)
class _Turns:
    """The order of one decision."""

    teams: Entitlement
    turns: dict[str, int]
    """Request id → its place in the queue."""
    above_quota: frozenset[str]
    """Ids of the requests that hold, or would hold, devices above a quota."""

    def order(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        return sorted(pending, key=lambda request: self.turns[request.id])

    def may_overtake(self, pending: PendingRequest, head: PendingRequest) -> bool:
        return self.teams.team_of(pending) != self.teams.team_of(head)

    def rank(self, progress: RequestProgress, estimates: Estimates) -> Rank:
        return (float(progress.pending.id in self.above_quota),)


class FairShare(ListPolicy):
    """By the turns of teams, and within a team by priority; tight placement, backfill by other teams.

    Requests above their team's quota come last and get only what no other request can use now. Where leases can be
    taken back, those above a quota are, for requests within theirs; weights alone take nothing back. While a team's
    request is the head, other requests of the team don't overtake it: they would use up the team's turn, so that
    other teams could delay the head for ever.
    """

    period_s = 600.0
    """Turns change while work runs."""

    def __init__(self) -> None:
        super().__init__("fair_share", by_age, TightFitScorer(), preemption=self._plan_preemptions)
        self._last: tuple[Snapshot, datetime, _Turns] | None = None

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        turns = self._turns(snapshot, now)
        return self._schedule(snapshot, index, turns.order, turns.may_overtake, now)

    def _turns(self, snapshot: Snapshot, now: datetime) -> _Turns:
        if self._last is None or self._last[0] is not snapshot or self._last[1] != now:
            teams = Entitlement(snapshot, now)
            queue, borrowers = teams.in_order(snapshot.pending)
            turns = {request.id: turn for turn, request in enumerate(queue)}
            self._last = (snapshot, now, _Turns(teams, turns, teams.borrowed | borrowers))
        return self._last[2]

    def _plan_preemptions(self, index: WorkerIndex, snapshot: Snapshot, now: datetime) -> PreemptionPlan:
        return LeastLossPreemption(self.name, PreemptionRules(self._turns(snapshot, now).rank), index, snapshot, now)


@dataclass(slots=True, eq=False)
class Team:
    """A node of the tree during one decision."""

    path: TeamPath
    weight: float
    quota: float
    parent: Team | None
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0.0))
    """Kind → part of all such devices times seconds, including what is charged ahead."""
    held: float = 0.0
    """Accelerators that it holds, or would hold if all requests before it in the queue were placed."""

    @property
    def lineage(self) -> Iterable[Team]:
        """The team and all teams that it is a part of, from the bottom up."""
        team: Team | None = self
        while team is not None:
            yield team
            team = team.parent

    @property
    def turn(self) -> tuple[float, TeamPath]:
        """The team with the smallest goes next."""
        return max(self.used.values()) / self.weight, self.path

    def hold(self, devices: float) -> None:
        """Add this number of accelerators to the team and all that it is a part of."""
        for team in self.lineage:
            team.held += devices

    def would_borrow(self, devices: float) -> bool:
        """Whether this number of more accelerators puts it, or a team that it is a part of, above the quota."""
        return devices > 0 and any(team.held + devices > team.quota for team in self.lineage)


class Entitlement:
    """The teams of a snapshot, and which requests hold borrowed devices."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._snapshot = snapshot
        self._shares: TeamShares = snapshot.estimates.shares
        self._teams: dict[TeamPath, Team] = {}
        self._device_counts = _device_counts(snapshot)
        self._held: list[tuple[Team, float, Lease]] = []
        """Who holds how many accelerators by which lease."""
        amounts: defaultdict[tuple[Team, str], list[float]] = defaultdict(list)
        known = snapshot.estimates
        for dag_id, classes in known.used_device_s.items():
            for name, amount in classes.items():
                kind = "cpu" if name.startswith("generic/") else "accelerator"
                amounts[self._leaf(dag_id), kind].append(decayed(amount, known.used_at or now, now))
        for pending in snapshot.pending:
            kind, devices = _requested(pending)
            amounts[self._leaf(pending.dag_id), kind].append(sum(pending.attained_service_s.values()) * devices)
        for lease in snapshot.leases:
            holder = snapshot.holders.get(lease.request_id)
            if holder is None:
                continue
            team = self._leaf(holder.dag_id)
            kind, devices = _requested(holder)
            held_s = max(0.0, (now - lease.granted_at).total_seconds()) + sum(holder.attained_service_s.values())
            amounts[team, kind].append((held_s + CHARGED_S) * devices)
            if kind == "accelerator":
                self._held.append((team, devices, lease))
                team.hold(devices)
        for (team, kind), parts in amounts.items():
            self._charge(team, kind, math.fsum(parts))
        ids = set(self._find_borrowed())
        gangs = {snapshot.holders[request_id].gang for request_id in ids} - {""}
        holders = snapshot.holders.values()
        self.borrowed = frozenset(holder.id for holder in holders if holder.id in ids or holder.gang in gangs)
        """Ids of the requests that hold what a team has above its quota: its youngest, and gangs as a whole."""

    def _leaf(self, dag_id: str) -> Team:
        """The node of a team's own requests, beside those of the teams below it."""
        return self._team((*self._shares.path_of(dag_id), ""))

    def _team(self, path: TeamPath) -> Team:
        team = self._teams.get(path)
        if team is None:
            parent = self._team(path[:-1]) if path else None
            team = Team(path, self._shares.weight(path), self._shares.quota(path), parent)
            self._teams[path] = team
        return team

    def _charge(self, team: Team, kind: str, device_s: float) -> None:
        for above in team.lineage:
            above.used[kind] += device_s / max(self._device_counts[kind], 1.0)

    def _find_borrowed(self) -> Iterable[str]:
        youngest_first = sorted(self._held, key=lambda entry: (-entry[2].token, entry[2].id))
        over: dict[TeamPath, float] = {team.path: team.held - team.quota for team in self._teams.values()}
        for team, devices, lease in youngest_first:
            if any(over[above.path] > 0 for above in team.lineage):
                for above in team.lineage:
                    over[above.path] -= devices
                yield lease.request_id

    def team_of(self, pending: PendingRequest) -> TeamPath:
        """The team to which a request belongs."""
        return self._shares.path_of(pending.dag_id)

    def in_order(self, pending: Iterable[PendingRequest]) -> tuple[list[PendingRequest], frozenset[str]]:
        """The requests in the order of their teams' turns, borrowers last; and the ids of the borrowers.

        Within a team by priority. Call it once: the queue is charged as if it were placed.
        """
        queues: defaultdict[TeamPath, list[PendingRequest]] = defaultdict(list)
        for request in by_priority(pending, self._snapshot):
            queues[self._leaf(request.dag_id).path].append(request)
        entitled = self._take_turns(queues, can_borrow=False)
        ids = {request.id for request in entitled}
        rest = {path: [request for request in queue if request.id not in ids] for path, queue in queues.items()}
        borrowers = self._take_turns(rest, can_borrow=True)
        return [*entitled, *borrowers], frozenset(request.id for request in borrowers)

    def _take_turns(
        self, queues: Mapping[TeamPath, Sequence[PendingRequest]], *, can_borrow: bool
    ) -> list[PendingRequest]:
        """The requests of the queues that are within a quota, or with `can_borrow` all, in the order of the turns."""
        left = {path: list(reversed(queue)) for path, queue in queues.items() if queue}
        children: defaultdict[TeamPath, set[TeamPath]] = defaultdict(set)
        for path in left:
            for team in self._teams[path].lineage:
                if team.parent is not None:
                    children[team.parent.path].add(team.path)
        turns = {path: [self._teams[child].turn for child in paths] for path, paths in children.items()}
        for heap in turns.values():
            heapq.heapify(heap)
        order: list[PendingRequest] = []
        while turns.get(()):
            order += self._next_turn((), left, turns, can_borrow)
        return order

    def _next_turn(
        self,
        path: TeamPath,
        left: Mapping[TeamPath, list[PendingRequest]],
        turns: Mapping[TeamPath, list[tuple[float, TeamPath]]],
        can_borrow: bool,
    ) -> Iterable[PendingRequest]:
        """The next request below a node of the tree; nothing if its team would have to borrow for it."""
        child = self._teams[turns[path][0][1]]
        if child.path in left:
            request = left[child.path].pop()
            kind, devices = _requested(request)
            may_have = can_borrow or kind == "cpu" or not child.would_borrow(devices)
            if may_have:
                self._charge(child, kind, CHARGED_S * devices)
                child.hold(devices if kind == "accelerator" else 0.0)
            in_turn, is_over = [request] if may_have else [], not left[child.path]
        else:
            in_turn = list(self._next_turn(child.path, left, turns, can_borrow))
            is_over = not turns[child.path]
        if is_over:
            heapq.heappop(turns[path])
        else:
            heapq.heapreplace(turns[path], child.turn)
        return in_turn


def _requested(pending: PendingRequest) -> tuple[str, float]:
    """The kind and the number of devices that a request wants, by its first alternative."""
    kind = "cpu" if pending.request.alternatives[0].kind == "cpu" else "accelerator"
    return kind, requested_devices(pending.request)


def _device_counts(snapshot: Snapshot) -> dict[str, float]:
    """Kind → the number of devices; each CPU core counts as one."""
    devices = [device for worker in snapshot.workers for device in worker.devices]
    cores = sum(len(device.cores) for device in devices if device.kind == "cpu")
    return {"cpu": float(cores), "accelerator": float(sum(device.kind != "cpu" for device in devices))}
