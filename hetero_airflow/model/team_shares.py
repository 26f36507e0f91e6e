"""Who is entitled to how much: teams in a tree, with weights and quotas, and which DAGs are theirs. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hetero_airflow.errors import SettingsError, shorten

TeamPath = tuple[str, ...]
"""A place in the tree: the names of the teams from the top down."""

MAX_NUMBER = 1e6
"""No weight and no quota is greater."""

_NUMBER = r"[0-9]*\.?[0-9]+"
_ENTRY = re.compile(rf"([^=]+)=\s*({_NUMBER})\s*(?:max\s+({_NUMBER})\s*)?")
_REMEDY = "Write each as PATH=WEIGHT or PATH=WEIGHT max DEVICES, such as research=3, prod=5 max 8, research/nlp_*=2"


@dataclass(frozen=True, slots=True)
class TeamShare:
    """What one team, or the DAGs of one pattern, are entitled to."""

    path: TeamPath
    """The last name is also a pattern of DAG ids, as for files: ``nightly_*``."""
    weight: float = 1.0
    """Its part of what its parent has, beside its siblings' weights."""
    quota: float | None = None
    """Accelerators that it may hold before it borrows; None for any number."""


@dataclass(frozen=True, slots=True)
class TeamShares:
    """Teams in the order in which they were written; the first whose last name matches a DAG id has the DAG.

    A DAG that is nobody's is a team of its own with the weight 1, as is a team that is only a part of paths.

    >>> shares = TeamShares.parse("research=3, prod=5 max 8, research/nlp_*=2")
    >>> shares.path_of("nlp_train"), shares.path_of("other")
    (('research', 'nlp_*'), ('other',))
    >>> shares.weight(("research",)), shares.weight(("other",)), shares.quota(("prod",))
    (3.0, 1.0, 8.0)
    """

    teams: tuple[TeamShare, ...] = ()

    @classmethod
    def parse(cls, text: str, where: str = "shares") -> TeamShares:
        """The shares that a text names, parted by commas, semicolons or lines; none where it is empty.

        :param where: what errors call the text
        :raises SettingsError: a part that can't be read, or a path that is named twice
        """
        teams: dict[TeamPath, TeamShare] = {}
        for part in filter(str.strip, re.split(r"[,;\n]", text)):
            found = _ENTRY.fullmatch(part)
            path = tuple(name.strip() for name in found[1].split("/")) if found else ()
            if found is None or not all(path):
                raise SettingsError(f"{where} = {shorten(part.strip())}", found="no share", remedy=_REMEDY)
            weight, quota = float(found[2]), None if found[3] is None else float(found[3])
            if not 0 < weight <= MAX_NUMBER or not (quota is None or quota <= MAX_NUMBER):
                raise SettingsError(
                    f"{where} = {shorten(part.strip())}",
                    found=f"a weight of {weight:g}" + ("" if quota is None else f" and a quota of {quota:g}"),
                    remedy=f"Give weights above 0, and no number above {MAX_NUMBER:g}",
                )
            if path in teams:
                raise SettingsError(
                    f"{where} = {shorten(part.strip())}",
                    found=f"{'/'.join(path)} with the weight {teams[path].weight:g} before it",
                    remedy="Name each path once",
                )
            teams[path] = TeamShare(path, weight, quota)
        return cls(tuple(teams.values()))

    def path_of(self, dag_id: str) -> TeamPath:
        """Where the DAG stands in the tree."""
        return next((one.path for one in self.teams if fnmatchcase(dag_id, one.path[-1])), (dag_id,))

    def weight(self, path: TeamPath) -> float:
        """Of the team at that place."""
        return next((one.weight for one in self.teams if one.path == path), 1.0)

    def quota(self, path: TeamPath) -> float:
        """Accelerators that the team at that place may hold before it borrows; infinite where it has no quota."""
        return next((one.quota for one in self.teams if one.path == path and one.quota is not None), math.inf)


NO_TEAM_SHARES = TeamShares()
