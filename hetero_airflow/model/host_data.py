"""What the data cache of a host holds and has saved, as its agent or scheduler reports it."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hetero_airflow.model.data_url import digest_of

MAX_HELD = 200
"""Objects and folders in one report: 6 KB of JSON."""

NAME_DIGITS = 16

HeldName = Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{NAME_DIGITS}}}$")]

_Count = Annotated[int, Field(ge=0, le=2**62)]
_Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class CacheCounts(BaseModel):
    """What the tasks of a host had of its cache since the cache folder was made. The numbers only grow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hits: _Count = 0
    """Objects that a process found in the cache; each once per process."""
    misses: _Count = 0
    """Objects that a process read from the store."""
    read_bytes: _Count = 0
    """Bytes that were read from the store."""
    read_s: _Seconds = 0
    """For how long processes read from the store; several reads at once of a process count once."""
    saved_bytes: _Count = 0
    """Bytes of the hits."""
    saved_s: _Seconds = 0
    """How long reading these bytes would have taken at the average speed of the host's reads until then."""


class HostData(BaseModel):
    """The report of one host.

    >>> HostData(held={held_name("s3://lake/train/"): 1 << 30}).held
    {'967199bb1ee6ac45': 1073741824}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    held: Annotated[Mapping[HeldName, _Count], Field(max_length=MAX_HELD)] = {}
    """`held_name` of an object or a folder → cached bytes of it. Only those that were used last."""
    counts: CacheCounts = CacheCounts()


def held_name(url: str) -> str:
    """The name of an object or folder in `HostData.held`: nobody reads keys of a bucket from a report."""
    return digest_of(url)[:NAME_DIGITS]
