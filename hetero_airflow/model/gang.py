"""What makes instances of one mapped task a gang, and how such a gang is named. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from hetero_airflow.errors import RequestError

MAX_MEMBERS = 1024

_MAX_NAME = 300
"""Characters of a name without its number; the store keeps 320."""

_NUMBERED = re.compile(r"(?P<base>.*) #(?P<number>\d{1,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Seat:
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

        >>> Seat("etl", "manual__1", "fit", 4, size=4, rank=2).gang
        'etl.fit[4-7] (manual__1)'
        """
        name = f"{self.dag_id}.{self.task_id}[{self.first_index}-{self.first_index + self.size - 1}] ({self.run_id})"
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{name[: _MAX_NAME - len(digest) - 1]}~{digest}"


def seat_of(dag_id: str, run_id: str, task_id: str, map_index: int, size: int) -> Seat:
    """Where instance `map_index` sits if so many instances in a row are a gang.

    >>> seat_of("etl", "manual__1", "fit", 6, 4).rank
    2
    """
    return Seat(dag_id, run_id, task_id, map_index // size * size, size, map_index % size)


def numbered(gang: str, number: int) -> str:
    """The name of a placement of a gang: placed anew, it gets the next number.

    Members that still run are thereby none of the gang for which those that came back wait.
    """
    return f"{gang} #{number}"


def unnumbered(name: str) -> tuple[str, int]:
    """The gang and the number of the placement; 0 for a name without one.

    >>> unnumbered("etl.fit[4-7] (manual__1) #2")
    ('etl.fit[4-7] (manual__1)', 2)
    """
    found = _NUMBERED.fullmatch(name)
    return (found["base"], int(found["number"])) if found else (name, 0)


def parse_gang(value: object) -> int:
    """How many instances of a mapped task are placed together; 1 where nothing was said.

    :raises RequestError: no such number
    """
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_MEMBERS:
        raise RequestError(
            "gang", value, found="no number of tasks", remedy=f"Give a whole number from 1 to {MAX_MEMBERS}"
        )
    return value
