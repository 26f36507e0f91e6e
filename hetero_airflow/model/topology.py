"""How near together devices are to be: the levels of a cluster, and the grammar of ``topology="nvlink@10m"``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s


class Level(StrEnum):
    """What two devices have in common, the nearest first. Each level includes those before it."""

    NVLINK = "nvlink"
    """A direct link joins them, whatever its maker calls it: NVLink, xGMI, HCCS."""
    NUMA = "numa"
    """The same NUMA node: they reach each other over PCIe without crossing to another socket."""
    HOST = "host"
    """The same host."""
    RACK = "rack"
    """The same rack: the same labels `RACK_LABEL` and `SITE_LABEL`."""
    SITE = "site"
    """The same site: the same label `SITE_LABEL`; workers without it are all on one site."""
    ANYWHERE = "anywhere"
    """Nothing."""

    @property
    def rank(self) -> int:
        """0 for the nearest.

        >>> Level.NVLINK.rank, Level.SITE.rank
        (0, 4)
        """
        return _RANKS[self]

    @property
    def is_within_worker(self) -> bool:
        """Whether it is about the devices of one request; otherwise about the members of a gang."""
        return self.rank < Level.HOST.rank


_RANKS = {level: rank for rank, level in enumerate(Level)}

RACK_LABEL = "hetero/rack"
"""Label of a worker: its rack, or whatever set of hosts has the full bandwidth of their network cards between them."""

SITE_LABEL = "hetero/site"
"""Label of a worker: its site. Racks of one name on two sites are two racks."""

NETWORK_LABEL = "hetero/network_gbps"
"""Label of a worker: what its network card carries, in Gbit/s."""

WIDE_AREA_LABEL = "hetero/site_gbps"
"""Label of a worker: what its site's link to other sites carries, in Gbit/s; of two sites the slower link counts."""

_LEVELS = tuple(level.value for level in Level if level is not Level.ANYWHERE)
_EXAMPLE = f'Write one of {", ".join(_LEVELS)}, and after an "@" how long to wait for it, as in "nvlink@10m"'


@dataclass(frozen=True, slots=True)
class Topology:
    """How near together devices are to be: those of one request, or for ``host`` and beyond the members of a gang.

    >>> Topology.parse("nvlink@10m")
    Topology(level=<Level.NVLINK: 'nvlink'>, budget_s=600.0)
    >>> str(Topology.parse(" RACK@90s ")), str(Topology.parse("numa"))
    ('rack@90s', 'numa')
    """

    level: Level
    budget_s: float | None = None
    """Seconds to wait for it since the request was submitted, before what is there is taken. None: it must be."""

    @classmethod
    def parse(cls, value: object) -> Topology:
        """The demand that a text makes.

        :raises RequestError: not a level, or not a duration after the "@"
        """
        if isinstance(value, Topology):
            return value
        if not isinstance(value, str) or len(value) > 64:
            raise RequestError("topology", value, found=type(value).__name__, remedy=_EXAMPLE)
        word, at, budget = value.strip().partition("@")
        word = word.strip().lower()
        if word not in _LEVELS:
            raise RequestError("topology", value, found="no level of a cluster", remedy=_EXAMPLE)
        return cls(Level(word), parse_duration_s(budget, "topology") if at else None)

    def __str__(self) -> str:
        return self.level.value if self.budget_s is None else f"{self.level}@{_duration_text(self.budget_s)}"


def _duration_text(seconds: float) -> str:
    """In the largest unit that loses nothing, so that parsing it gives the same."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds % factor == 0:
            return f"{seconds / factor:.0f}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"
