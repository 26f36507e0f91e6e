"""Topology: the levels of a cluster, and the grammar of ``topology="nvlink@10m"``."""

from dataclasses import dataclass
from enum import StrEnum

from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s
from hetero_airflow.validation import did_you_mean


class Level(StrEnum):
    """What two devices share, the nearest level first. Each level includes those before it."""

    NVLINK = "nvlink"
    """A direct link of any vendor: NVLink, xGMI, HCCS."""
    NUMA = "numa"
    """The same NUMA node: PCIe traffic between them stays on one socket."""
    HOST = "host"
    """The same host."""
    RACK = "rack"
    """The same rack: equal labels `RACK_LABEL` and `SITE_LABEL`."""
    SITE = "site"
    """The same site: equal labels `SITE_LABEL`. Workers without this label are all on one site."""
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
        """Whether the level is about the devices of one request; otherwise it is about the members of a gang."""
        return self.rank < Level.HOST.rank


_RANKS = {level: rank for rank, level in enumerate(Level)}

RACK_LABEL = "hetero/rack"
"""Label of a worker: its rack, or any set of hosts with the full bandwidth of their network cards between them."""

SITE_LABEL = "hetero/site"
"""Label of a worker: its site. Racks with the same name on two sites are different racks."""

NETWORK_LABEL = "hetero/network_gbps"
"""Label of a worker: the bandwidth of its network card, in Gbit/s."""

WIDE_AREA_LABEL = "hetero/site_gbps"
"""Label of a worker: the bandwidth from its site to other sites, in Gbit/s; between two sites the slower one counts."""

_LEVELS = tuple(level.value for level in Level if level is not Level.ANYWHERE)
_EXAMPLE = f'Write one of {", ".join(_LEVELS)}, and after an "@" how long to wait for it, as in "nvlink@10m"'


@dataclass(frozen=True, slots=True)
class Topology:
    """How close devices must be: those of one request, or from ``host`` on the members of a gang.

    >>> Topology.parse("nvlink@10m")
    Topology(level=<Level.NVLINK: 'nvlink'>, budget_s=600.0)
    >>> str(Topology.parse(" RACK@90s ")), str(Topology.parse("numa"))
    ('rack@90s', 'numa')
    """

    level: Level
    budget_s: float | None = None
    """Seconds after submission to wait for this level; then the request takes any devices. None: no limit."""

    @classmethod
    def parse(cls, value: object) -> "Topology":
        """The topology from a text.

        :raises RequestError: no level, or no duration after the "@"
        """
        if isinstance(value, Topology):
            return value
        if not isinstance(value, str) or len(value) > 64:
            found = (
                "more than 64 characters" if isinstance(value, str) else f"a value of the type {type(value).__name__}"
            )
            raise RequestError("topology", value, found=found, remedy=_EXAMPLE)
        word, at, budget = value.strip().partition("@")
        word = word.strip().lower()
        if word not in _LEVELS:
            remedy = f"{did_you_mean(word, _LEVELS)}{_EXAMPLE}"
            raise RequestError("topology", value, found="no level of a cluster", remedy=remedy)
        if not at:
            return cls(Level(word))
        try:
            return cls(Level(word), parse_duration_s(budget, "topology"))
        except RequestError as error:
            found = f'{error.found} after the "@"'
            raise RequestError("topology", value, found=found, remedy=error.remedy) from None

    def __str__(self) -> str:
        return self.level.value if self.budget_s is None else f"{self.level}@{_duration_text(self.budget_s)}"


def _duration_text(seconds: float) -> str:
    """The duration in the largest unit that keeps it exact, so that parsing gives the same value."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds % factor == 0:
            return f"{seconds / factor:.0f}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"
