"""Gangs: instances of one mapped task that are placed together, their sizes and their names."""

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s

MAX_MEMBERS = 1024

_MAX_NAME = 280
"""Characters of a gang's name without number and size; the store's column has 320."""

DEFAULT_FULL_SIZE_WAIT_S = 60.0
"""A worker that restarts may need this time to come back."""

_NAME = re.compile(r"(?P<gang>.*) #(?P<number>\d{1,9})(?: with \d{1,4} of (?P<full_size>\d{1,4}))?", re.DOTALL)
_REMEDY = 'Write 4, or "2:4" to go on with 2 or 3 where 4 can\'t be had within a minute, or "2:4@10m"'


@dataclass(frozen=True, slots=True)
class GangMember:
    """The place of a task instance in its gang."""

    dag_id: str
    run_id: str
    task_id: str
    first_index: int
    """The map index of rank 0; the other ranks follow."""
    size: int
    rank: int

    @property
    def gang(self) -> str:
        """The name of the gang: equal for all its members and different for every other gang.

        >>> GangMember("etl", "manual__1", "fit", 4, size=4, rank=2).gang
        'etl.fit[4-7] (manual__1)'
        """
        name = f"{self.dag_id}.{self.task_id}[{self.first_index}-{self.first_index + self.size - 1}] ({self.run_id})"
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{name[: _MAX_NAME - len(digest) - 1]}~{digest}"


def gang_member(dag_id: str, run_id: str, task_id: str, map_index: int, size: int) -> GangMember:
    """The place of instance `map_index` if each `size` consecutive instances are a gang.

    >>> gang_member("etl", "manual__1", "fit", 6, 4).rank
    2
    """
    return GangMember(dag_id, run_id, task_id, map_index // size * size, size, map_index % size)


def placement_name(gang: str, number: int, size: int, full_size: int) -> str:
    """The name of one placement of a gang. Each new placement gets the next number.

    So members that still run do not belong to the gang that the returned members wait for.

    >>> placement_name("etl.fit[4-7] (manual__1)", 2, 3, 4)
    'etl.fit[4-7] (manual__1) #2 with 3 of 4'
    """
    return f"{gang} #{number}" + (f" with {size} of {full_size}" if size < full_size else "")


class PlacementName(NamedTuple):
    """The parts of a placement's name."""

    gang: str
    number: int
    full_size: int | None
    """The size of the whole gang, if fewer members are placed."""


def parse_placement_name(name: str) -> PlacementName:
    """The parts of a placement's name; the number is 0 if the name has none.

    >>> parse_placement_name("etl.fit[4-7] (manual__1) #2 with 3 of 4")
    PlacementName(gang='etl.fit[4-7] (manual__1)', number=2, full_size=4)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return PlacementName(name, 0, None)
    return PlacementName(match["gang"], int(match["number"]), int(match["full_size"]) if match["full_size"] else None)


class GangSize(NamedTuple):
    """How many instances of a mapped task are placed together."""

    max_members: int = 1
    min_members: int = 1
    full_size_wait_s: float = DEFAULT_FULL_SIZE_WAIT_S
    """How long all members wait before fewer of them run without the others."""

    @property
    def text(self) -> str:
        """The text form that `parse_gang` reads."""
        if self.min_members == self.max_members:
            return str(self.max_members)
        return f"{self.min_members}:{self.max_members}@{self.full_size_wait_s:g}s"


def parse_gang(value: object) -> GangSize:
    """The size of a gang from the argument of an operator; 1 where there is none.

    >>> parse_gang(4)
    GangSize(max_members=4, min_members=4, full_size_wait_s=60.0)
    >>> parse_gang("2:4@10m").text
    '2:4@600s'

    :raises RequestError: the argument is not a valid size
    """
    if value is None:
        return GangSize()
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    numbers, _, wait = text.partition("@")
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", numbers)
    if match is None:
        raise RequestError("gang", value, found="no number of tasks", remedy=_REMEDY)
    minimum, maximum = int(match[1]), int(match[2] or match[1])
    if maximum > MAX_MEMBERS:
        raise RequestError("gang", value, found=f"a size above the limit of {MAX_MEMBERS}", remedy=_REMEDY)
    if not 1 <= minimum <= maximum:
        raise RequestError("gang", value, found="no range of sizes from 1 up", remedy=_REMEDY)
    if wait and minimum == maximum:
        raise RequestError("gang", value, found="a wait, but no smaller size", remedy=_REMEDY)
    return GangSize(maximum, minimum, parse_duration_s(wait, "gang") if wait else DEFAULT_FULL_SIZE_WAIT_S)
