"""What teams have had of the devices, what they hold, and in which order that makes their requests. Pure.

Hierarchical fair share by device-time: on each level of the tree of `TeamShares`, the team goes next whose use, divided
by its weight, is the smallest. The use of a team is its dominant share (Ghodsi et al., NSDI 2011): of all
accelerators or of all cores, whichever it has more of. Deviations: use is device-time and not what is held at one
moment; it consists of

- what its ended runs held, halved each `USAGE_HALF_LIFE_S`;
- what its live requests have held so far;
- what it holds now, for an hour ahead (`CHARGED_S`), so that one decision does not give one team everything that is
  free; whoever is put into the queue is charged alike.

All devices of a kind count the same.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hetero_airflow.model.estimates import decayed
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.team_shares import TeamPath, TeamShares
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.request_progress import requested_devices

CHARGED_S = 3600.0
"""For how long ahead whoever holds devices is charged for them."""

_KINDS = ("accelerator", "cpu")


@dataclass(slots=True, eq=False)
class Team:
    """A node of the tree during one decision."""

    path: TeamPath
    weight: float
    quota: float
    parent: Team | None
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0.0))
    """Kind → part of all such devices times seconds, with what is charged ahead."""
    held: float = 0.0
    """Accelerators that it holds, or would hold if all before in the queue were placed."""

    @property
    def lineage(self) -> Iterable[Team]:
        """It and all that it is a part of, from the bottom up."""
        team: Team | None = self
        while team is not None:
            yield team
            team = team.parent

    @property
    def turn(self) -> tuple[float, TeamPath]:
        """Whose is the smallest goes next."""
        return max(self.used.values()) / self.weight, self.path

    def hold(self, devices: float) -> None:
        """Count so many accelerators more for it, and all that it is a part of."""
        for team in self.lineage:
            team.held += devices

    def borrows(self, devices: float) -> bool:
        """Whether with so many accelerators more, it or what it is a part of would hold more than its quota."""
        return devices > 0 and any(team.held + devices > team.quota for team in self.lineage)


class Entitlement:
    """The teams of a snapshot, and which of its leases are borrowed."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._snapshot = snapshot
        self._shares: TeamShares = snapshot.estimates.shares
        self._teams: dict[TeamPath, Team] = {}
        self._devices = _devices(snapshot)
        amounts: defaultdict[tuple[Team, str], list[float]] = defaultdict(list)
        known = snapshot.estimates
        for dag_id, classes in known.used_device_s.items():
            for name, amount in classes.items():
                kind = "cpu" if name.startswith("generic/") else "accelerator"
                amounts[self._leaf(dag_id), kind].append(decayed(amount, known.used_at or now, now))
        for one in snapshot.pending:
            kind, devices = _asked(one)
            amounts[self._leaf(one.dag_id), kind].append(sum(one.attained_service_s.values()) * devices)
        self._held: list[tuple[Team, float, Lease]] = []
        for lease in snapshot.leases:
            holder = snapshot.holders.get(lease.request_id)
            if holder is None:
                continue
            team = self._leaf(holder.dag_id)
            kind, devices = _asked(holder)
            held_s = max(0.0, (now - lease.granted_at).total_seconds()) + sum(holder.attained_service_s.values())
            amounts[team, kind].append((held_s + CHARGED_S) * devices)
            if kind == "accelerator":
                self._held.append((team, devices, lease))
                team.hold(devices)
        for (team, kind), parts in amounts.items():
            self._charge(team, kind, math.fsum(parts))
        ids = set(self._borrowed())
        gangs = {snapshot.holders[one].gang for one in ids} - {""}
        self.borrowed = frozenset(one.id for one in snapshot.holders.values() if one.id in ids or one.gang in gangs)
        """Ids of the requests that hold what a team has above its quota: its youngest, and gangs whole."""

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
            above.used[kind] += device_s / max(self._devices[kind], 1.0)

    def _borrowed(self) -> Iterable[str]:
        youngest = sorted(self._held, key=lambda entry: (-entry[2].token, entry[2].id))
        over: dict[TeamPath, float] = {team.path: team.held - team.quota for team in self._teams.values()}
        for team, devices, lease in youngest:
            if any(over[above.path] > 0 for above in team.lineage):
                for above in team.lineage:
                    over[above.path] -= devices
                yield lease.request_id

    def team_of(self, pending: PendingRequest) -> TeamPath:
        """Whose request it is."""
        return self._shares.path_of(pending.dag_id)

    def in_order(self, pending: Iterable[PendingRequest]) -> tuple[list[PendingRequest], frozenset[str]]:
        """The requests in the order of their teams' turns, borrowers last; and the ids of the borrowers.

        Within a team by priority. What is in the queue is charged as if it were placed: ask only once.
        """
        queues: defaultdict[TeamPath, list[PendingRequest]] = defaultdict(list)
        for one in by_priority(pending, self._snapshot):
            queues[self._leaf(one.dag_id).path].append(one)
        entitled = self._take_turns(queues, can_borrow=False)
        ids = {one.id for one in entitled}
        borrowers = self._take_turns(
            {path: [one for one in queue if one.id not in ids] for path, queue in queues.items()}, can_borrow=True
        )
        return [*entitled, *borrowers], frozenset(one.id for one in borrowers)

    def _take_turns(
        self, queues: Mapping[TeamPath, Sequence[PendingRequest]], *, can_borrow: bool
    ) -> list[PendingRequest]:
        """Those of the queues who are entitled, or with `can_borrow` all."""
        left = {path: list(reversed(queue)) for path, queue in queues.items() if queue}
        children: defaultdict[TeamPath, set[TeamPath]] = defaultdict(set)
        for path in left:
            for team in self._teams[path].lineage:
                if team.parent is not None:
                    children[team.parent.path].add(team.path)
        heaps = {path: [self._teams[child].turn for child in found] for path, found in children.items()}
        for heap in heaps.values():
            heapq.heapify(heap)
        order: list[PendingRequest] = []

        def serve(path: TeamPath) -> None:
            child = self._teams[heaps[path][0][1]]
            if child.path in left:
                one = left[child.path].pop()
                kind, devices = _asked(one)
                if can_borrow or kind == "cpu" or not child.borrows(devices):
                    order.append(one)
                    self._charge(child, kind, CHARGED_S * devices)
                    child.hold(devices if kind == "accelerator" else 0.0)
                is_over = not left[child.path]
            else:
                serve(child.path)
                is_over = not heaps[child.path]
            if is_over:
                heapq.heappop(heaps[path])
            else:
                heapq.heapreplace(heaps[path], child.turn)

        while heaps.get(()):
            serve(())
        return order


def _asked(pending: PendingRequest) -> tuple[str, float]:
    """Of which kind of devices a request wants how many, by its first alternative."""
    kind = "cpu" if pending.request.alternatives[0].kind == "cpu" else "accelerator"
    return kind, requested_devices(pending.request)


def _devices(snapshot: Snapshot) -> dict[str, float]:
    """Kind → how many there are, a core of a CPU as one."""
    devices = [device for worker in snapshot.workers for device in worker.devices]
    cores = sum(len(device.cores) for device in devices if device.kind == "cpu")
    return {"cpu": float(cores), "accelerator": float(sum(device.kind != "cpu" for device in devices))}
