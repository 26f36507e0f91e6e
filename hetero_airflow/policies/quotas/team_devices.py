"""The tree of teams, and how many accelerators each of them holds, measured against its quota."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.team_shares import TeamPath, TeamShares


@dataclass(slots=True, eq=False)
class Team:
    """A node of the tree of teams during one decision."""

    path: TeamPath
    weight: float
    quota: float
    parent: "Team | None"
    held: float = 0.0
    """The accelerators that it and all teams below it hold."""
    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Kind → part of all such devices times seconds; see `fair_share`."""

    @property
    def lineage(self) -> "Iterator[Team]":
        """The team and all teams that it is a part of, from the bottom up."""
        team: Team | None = self
        while team is not None:
            yield team
            team = team.parent

    @property
    def turn(self) -> tuple[tuple[float, TeamPath], ...]:
        """The team with the smallest borrows next: on each level of the tree, the least held for its weight."""
        return tuple((team.held / team.weight, team.path) for team in reversed(list(self.lineage)))

    def hold(self, devices: float) -> None:
        """Add this number of accelerators to the team and to all that it is a part of."""
        for team in self.lineage:
            team.held += devices


class TeamTree:
    """The teams that a decision has come across."""

    def __init__(self, shares: TeamShares) -> None:
        self._shares = shares
        self._teams: dict[TeamPath, Team] = {}

    def team_at(self, path: TeamPath) -> Team:
        """The team with that path."""
        team = self._teams.get(path)
        if team is None:
            parent = self.team_at(path[:-1]) if path else None
            team = self._teams[path] = Team(path, self._shares.weight(path), self._shares.quota(path), parent)
        return team


class DevicesByTeam(TeamTree):
    """The teams of a snapshot, with the accelerators that they hold."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.estimates.shares)
        self._by_dag: dict[str, Team] = {}
        self._leases: list[tuple[Team, float, Lease]] = []
        """(team, number of accelerators, lease)."""
        for lease in snapshot.leases:
            holder = snapshot.holders.get(lease.request_id)
            if holder is not None:
                team, devices = self.team_of(holder), holder.request.alternatives[lease.alternative].accelerators
                team.hold(devices)
                self._leases.append((team, devices, lease))

    def team_of(self, pending: PendingRequest) -> Team:
        """The team to which a request belongs."""
        team = self._by_dag.get(pending.dag_id)
        if team is None:
            team = self._by_dag[pending.dag_id] = self.team_at(self._shares.path_of(pending.dag_id))
        return team

    def exceeded_by(self, unit: Sequence[PendingRequest]) -> Team | None:
        """The lowest team whose quota the placement of the unit would exceed; None if all quotas hold.

        All members of a gang are in one DAG, and so in one team.
        """
        devices = wanted_accelerators(unit)
        lineage = self.team_of(unit[0]).lineage
        return next((team for team in lineage if devices > 0 and team.held + devices > team.quota), None)

    def hold(self, unit: Sequence[PendingRequest]) -> None:
        """Count a unit as placed."""
        self.team_of(unit[0]).hold(wanted_accelerators(unit))

    def borrowed(self, snapshot: Snapshot) -> frozenset[str]:
        """Ids of the requests that hold what a team has above its quota: its youngest, and gangs as a whole."""
        over = {team.path: team.held - team.quota for team in self._teams.values()}
        ids: set[str] = set()
        for team, devices, lease in sorted(self._leases, key=lambda entry: (-entry[2].token, entry[2].id)):
            if any(over[above.path] > 0 for above in team.lineage):
                for above in team.lineage:
                    over[above.path] -= devices
                ids.add(lease.request_id)
        gangs = {snapshot.holders[request_id].gang for request_id in ids} - {""}
        return frozenset(holder.id for holder in snapshot.holders.values() if holder.id in ids or holder.gang in gangs)


def wanted_accelerators(unit: Iterable[PendingRequest]) -> float:
    """How many accelerators the members of a unit take together, each by its largest alternative.

    >>> from hetero_airflow.testing import a_pending
    >>> wanted_accelerators([a_pending("a", ["gpu:4", "gpu:2"]), a_pending("b", "gpu:0.25"), a_pending("c", "cpu:8")])
    4.25
    """
    return sum(_most_accelerators(pending.request) for pending in unit)


@lru_cache(maxsize=4096)
def _most_accelerators(request: DeviceRequest) -> float:
    return max(alternative.accelerators for alternative in request.alternatives)
