"""What makes instances of one mapped task a gang, and how such a gang is named. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s

MAX_MEMBERS = 1024

_MAX_NAME = 280
"""Characters of a name without its number and size; the store keeps 320."""

DEFAULT_FULL_SIZE_WAIT_S = 60.0
"""As long as a worker that starts again may take to be back."""

_NAME = re.compile(r"(?P<gang>.*) #(?P<number>\d{1,9})(?: with \d{1,4} of (?P<most>\d{1,4}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GangMember:
    """The place of a task instance in its gang."""

    dag_id: str
    run_id: str
    task_id: str
    first_index: int
    """The map index of rank 0; the others follow."""
    size: int
    rank: int

    @property
    def gang(self) -> str:
        """The same for all members, and of no other gang.

        >>> GangMember("etl", "manual__1", "fit", 4, size=4, rank=2).gang
        'etl.fit[4-7] (manual__1)'
        """
        name = f"{self.dag_id}.{self.task_id}[{self.first_index}-{self.first_index + self.size - 1}] ({self.run_id})"
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{name[: _MAX_NAME - len(digest) - 1]}~{digest}"


def gang_member(dag_id: str, run_id: str, task_id: str, map_index: int, size: int) -> GangMember:
    """Where instance `map_index` sits if so many instances in a row are a gang.

    >>> gang_member("etl", "manual__1", "fit", 6, 4).rank
    2
    """
    return GangMember(dag_id, run_id, task_id, map_index // size * size, size, map_index % size)


def placement_name(gang: str, number: int, size: int, most: int) -> str:
    """The name of a placement of a gang: placed anew, it gets the next number.

    Members that still run are thereby none of the gang for which those that came back wait.

    >>> placement_name("etl.fit[4-7] (manual__1)", 2, 3, 4)
    'etl.fit[4-7] (manual__1) #2 with 3 of 4'
    """
    return f"{gang} #{number}" + (f" with {size} of {most}" if size < most else "")


class PlacementName(NamedTuple):
    """What the name of a placement says."""

    gang: str
    number: int
    most: int | None
    """The size of the whole gang, where it is placed with fewer."""


def parse_placement_name(name: str) -> PlacementName:
    """The parts of a name; the number of one without any is 0.

    >>> parse_placement_name("etl.fit[4-7] (manual__1) #2 with 3 of 4")
    PlacementName(gang='etl.fit[4-7] (manual__1)', number=2, most=4)
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return PlacementName(name, 0, None)
    return PlacementName(found["gang"], int(found["number"]), int(found["most"]) if found["most"] else None)


class GangSize(NamedTuple):
    """How many instances of a mapped task are placed together."""

    most: int = 1
    least: int = 1
    patience_s: float = DEFAULT_FULL_SIZE_WAIT_S
    """How long all of them wait before fewer go on without the others."""

    @property
    def text(self) -> str:
        """As `parse_gang` reads it."""
        return f"{self.least}:{self.most}@{self.patience_s:g}s" if self.least < self.most else str(self.most)


def parse_gang(value: object) -> GangSize:
    """How many instances of a mapped task are placed together; 1 where nothing was said.

    >>> parse_gang(4)
    GangSize(most=4, least=4, patience_s=60.0)
    >>> parse_gang("2:4@10m").text
    '2:4@600s'

    :raises RequestError: no such number
    """
    if value is None:
        return GangSize()
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    numbers, _, patience = text.partition("@")
    found = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", numbers)
    if found is None:
        raise RequestError("gang", value, found="no number of tasks", remedy=_REMEDY)
    least, most = int(found[1]), int(found[2] or found[1])
    if not 1 <= least <= most <= MAX_MEMBERS or (patience and least == most):
        problem = "a time to wait for no less" if patience and least == most else f"no range within 1 to {MAX_MEMBERS}"
        raise RequestError("gang", value, found=problem, remedy=_REMEDY)
    return GangSize(most, least, parse_duration_s(patience, "gang") if patience else DEFAULT_FULL_SIZE_WAIT_S)


_REMEDY = 'Write 4, or "2:4" to go on with 2 or 3 where 4 can\'t be had within a minute, or "2:4@10m"'
