"""Team shares: teams in a tree with weights and quotas, and the DAGs that belong to them."""

import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hetero_airflow.errors import SettingsError, shorten

TeamPath = tuple[str, ...]
"""A team's place in the tree: the names of the teams from the top down."""

MAX_NUMBER = 1e6
"""The greatest weight and the greatest quota."""

_NUMBER = r"[0-9]*\.?[0-9]+"
_ENTRY = re.compile(rf"([^=]+)=\s*({_NUMBER})\s*(?:max\s+({_NUMBER})\s*)?")
_REMEDY = "Write each as PATH=WEIGHT or PATH=WEIGHT max DEVICES, such as research=3, prod=5 max 8, research/nlp_*=2"


@dataclass(frozen=True, slots=True)
class TeamShare:
    """The share of one team, or of the DAGs that match one pattern."""

    path: TeamPath
    """The last name is also a glob pattern of DAG ids: ``nightly_*``."""
    weight: float = 1.0
    """Its part of its parent's share, relative to the weights of its siblings."""
    quota: float | None = None
    """Accelerators that it may hold before it borrows; None for no limit."""


@dataclass(frozen=True, slots=True)
class TeamShares:
    """Teams in the order of the setting. A DAG belongs to the first team whose last name matches its id.

    A DAG without a team is its own team with weight 1. A team that only appears inside paths also has weight 1.

    >>> shares = TeamShares.parse("research=3, prod=5 max 8, research/nlp_*=2")
    >>> shares.path_of("nlp_train"), shares.path_of("other")
    (('research', 'nlp_*'), ('other',))
    >>> shares.weight(("research",)), shares.weight(("other",)), shares.quota(("prod",))
    (3.0, 1.0, 8.0)
    """

    teams: tuple[TeamShare, ...] = ()

    @classmethod
    def parse(cls, text: str, where: str = "shares") -> "TeamShares":
        """The shares in a text, separated by commas, semicolons or lines; none if it is empty.

        :param where: the name of the text in errors
        :raises SettingsError: an entry is not valid, or a path is named twice
        """
        teams: dict[TeamPath, TeamShare] = {}
        for part in filter(str.strip, re.split(r"[,;\n]", text)):
            match = _ENTRY.fullmatch(part)
            path = tuple(team.strip() for team in match[1].split("/")) if match else ()
            name = f"{where} = {shorten(part.strip())}"
            if match is None or not all(path):
                raise SettingsError(name, found="no share", remedy=_REMEDY)
            weight, quota = float(match[2]), None if match[3] is None else float(match[3])
            if not 0 < weight <= MAX_NUMBER or not (quota is None or quota <= MAX_NUMBER):
                found = f"a weight of {weight:g}" + ("" if quota is None else f" and a quota of {quota:g}")
                remedy = f"Give weights above 0, and no number above {MAX_NUMBER:g}"
                raise SettingsError(name, found=found, remedy=remedy)
            if path in teams:
                found = f"{'/'.join(path)} with the weight {teams[path].weight:g} before it"
                raise SettingsError(name, found=found, remedy="Name each path once")
            teams[path] = TeamShare(path, weight, quota)
        return cls(tuple(teams.values()))

    @property
    def has_quotas(self) -> bool:
        """Whether any team has a quota."""
        return any(team.quota is not None for team in self.teams)

    def path_of(self, dag_id: str) -> TeamPath:
        """The path of the DAG's team."""
        return next((team.path for team in self.teams if fnmatchcase(dag_id, team.path[-1])), (dag_id,))

    def weight(self, path: TeamPath) -> float:
        """The weight of the team with that path."""
        return next((team.weight for team in self.teams if team.path == path), 1.0)

    def quota(self, path: TeamPath) -> float:
        """Accelerators that the team with that path may hold before it borrows; infinite if it has no quota."""
        return next((team.quota for team in self.teams if team.path == path and team.quota is not None), math.inf)


NO_TEAM_SHARES = TeamShares()
