"""Teams get devices by their weights. Their quotas hold under every policy, see `quotas`.

Hierarchical fair share of device-time: on each level of the tree of `TeamShares`, the team goes next whose use divided
by its weight is the smallest. The use of a team is its dominant share (Ghodsi et al., NSDI 2011): of all accelerators
or of all cores, whichever is larger. Deviations: use is device-time and not what is held at one moment. It consists of

- what the team's ended runs held, halved each `USAGE_HALF_LIFE_S`;
- what its live requests have held so far;
- what it holds now, for an hour ahead (`CHARGED_S`), so that one decision does not give one team everything that is
  free. A request that is put into the queue is charged in the same way.

All devices of a kind count alike.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import Estimates, decayed
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.team_shares import TeamPath
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_age, by_priority
from hetero_airflow.policies.core.request_progress import RequestProgress
from hetero_airflow.policies.quotas.team_devices import Team, TeamTree

CHARGED_S = 3600.0
"""A team that holds devices is charged for them for this time ahead."""


class FairShare(ListPolicy):
    """By the turns of teams, and within a team by priority; tight placement, backfill by other teams.

    Weights take nothing back, but a request waits for leases that are being taken back. While a team's request is the
    head, other requests of the team don't overtake it: they would use up the team's turn, so that other teams could
    delay the head for ever.
    """

    period_s = 600.0
    """Turns change while work runs."""

    def __init__(self) -> None:
        preemption = partial(LeastLossPreemption, "fair_share", PreemptionRules(_rank))
        super().__init__("fair_share", by_age, TightFitScorer(), preemption=preemption)

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        teams = Entitlement(snapshot, now)
        turns = {request.id: turn for turn, request in enumerate(teams.in_order(snapshot.pending))}

        def order(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
            return sorted(pending, key=lambda request: turns[request.id])

        def may_overtake(pending: PendingRequest, head: PendingRequest) -> bool:
            return teams.team_of(pending) != teams.team_of(head)

        return self._schedule(snapshot, index, order, may_overtake, now)


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank:
    return (0.0,)


class Entitlement(TeamTree):
    """The teams of a snapshot, and what they have used."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        super().__init__(snapshot.estimates.shares)
        self._snapshot = snapshot
        self._device_counts = _device_counts(snapshot)
        amounts: defaultdict[tuple[Team, str], list[float]] = defaultdict(list)
        estimates = snapshot.estimates
        for dag_id, classes in estimates.used_device_s.items():
            for name, amount in classes.items():
                kind = "cpu" if name.startswith("generic/") else "accelerator"
                amounts[self._leaf(dag_id), kind].append(decayed(amount, estimates.used_at or now, now))
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
        for (team, kind), parts in amounts.items():
            self._charge(team, kind, math.fsum(parts))

    def _leaf(self, dag_id: str) -> Team:
        """The node of a team's own requests, beside those of the teams below it."""
        return self.team_at((*self._shares.path_of(dag_id), ""))

    def _charge(self, team: Team, kind: str, device_s: float) -> None:
        for above in team.lineage:
            above.used[kind] += device_s / max(self._device_counts[kind], 1.0)

    def team_of(self, pending: PendingRequest) -> TeamPath:
        """The team to which a request belongs."""
        return self._shares.path_of(pending.dag_id)

    def in_order(self, pending: Iterable[PendingRequest]) -> list[PendingRequest]:
        """The requests in the order of their teams' turns, within a team by priority.

        Call it once: the queue is charged as if it were placed.
        """
        queues: defaultdict[TeamPath, list[PendingRequest]] = defaultdict(list)
        for request in by_priority(pending, self._snapshot):
            queues[self._leaf(request.dag_id).path].append(request)
        children: defaultdict[TeamPath, set[TeamPath]] = defaultdict(set)
        for path, queue in queues.items():
            queue.reverse()
            for team in self._teams[path].lineage:
                if team.parent is not None:
                    children[team.parent.path].add(team.path)
        turns = {path: [_turn(self._teams[child]) for child in paths] for path, paths in children.items()}
        for heap in turns.values():
            heapq.heapify(heap)
        order: list[PendingRequest] = []
        while turns.get(()):
            order.append(self._next_turn((), queues, turns))
        return order

    def _next_turn(
        self,
        path: TeamPath,
        queues: Mapping[TeamPath, list[PendingRequest]],
        turns: Mapping[TeamPath, list[tuple[float, TeamPath]]],
    ) -> PendingRequest:
        """The next request below a node of the tree."""
        child = self._teams[turns[path][0][1]]
        if child.path in queues:
            request = queues[child.path].pop()
            kind, devices = _requested(request)
            self._charge(child, kind, CHARGED_S * devices)
            is_over = not queues[child.path]
        else:
            request = self._next_turn(child.path, queues, turns)
            is_over = not turns[child.path]
        if is_over:
            heapq.heappop(turns[path])
        else:
            heapq.heapreplace(turns[path], _turn(child))
        return request


def _turn(team: Team) -> tuple[float, TeamPath]:
    """The team with the smallest goes next."""
    return max(team.used.values(), default=0.0) / team.weight, team.path


def _requested(pending: PendingRequest) -> tuple[str, float]:
    """The kind and the number of devices that a request wants, by its first alternative."""
    first = pending.request.alternatives[0]
    return "cpu" if first.kind == "cpu" else "accelerator", first.devices


def _device_counts(snapshot: Snapshot) -> dict[str, float]:
    """Kind → the number of devices; each CPU core counts as one."""
    devices = [device for worker in snapshot.workers for device in worker.devices]
    cores = sum(len(device.cores) for device in devices if device.kind == "cpu")
    return {"cpu": float(cores), "accelerator": float(sum(device.kind != "cpu" for device in devices))}
