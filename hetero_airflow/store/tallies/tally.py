"""What is counted, and the buckets of measured times. Pure."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from hetero_airflow.model.device import Device
from hetero_airflow.model.run import RunEnd

BOUNDS_S = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 259200, 604800)
"""Upper bounds of the buckets, in seconds: from one heartbeat to a week."""

NO_BOUND = "+Inf"
"""The bucket of the times above the last bound."""

UNKNOWN_END = "unknown"
"""The label of a lease whose task never ran, or whose end nobody knows."""


class TallyName(StrEnum):
    """What is counted."""

    WAITED = "waited"
    """Granted leases, with the time that the request waited; the label is the model of the devices."""
    HELD = "held"
    """Ended leases, with the time from grant to end; the label is the model of the devices."""
    ENDED = "ended"
    """Ended leases; the label is a `RunEnd` or `UNKNOWN_END`."""
    PREEMPTED = "preempted"
    """Leases whose tasks were asked to save and end; no label."""
    REFUSED = "refused"
    """Requests that no known worker could ever serve; the label is the code of the reason."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often something happened since the tables were made."""

    name: TallyName
    label: str
    bucket: str
    """For measured times, the upper bound in seconds or `NO_BOUND`; else empty."""
    count: int
    total_ms: int
    """Sum of the measured times, in milliseconds; integers add up without rounding."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One thing that happened."""

    name: TallyName
    label: str | None = None
    """None for the model of the lease's devices."""
    lease_id: str | None = None
    elapsed: timedelta | None = None

    @property
    def bucket(self) -> str:
        """Where its time belongs; empty if none was measured."""
        return "" if self.elapsed is None else bucket_of(self.elapsed)

    @property
    def elapsed_ms(self) -> int:
        """Its time in milliseconds. The clocks of two schedulers differ, so a negative one counts as 0."""
        return 0 if self.elapsed is None else max(0, round(self.elapsed / timedelta(milliseconds=1)))


def bucket_of(elapsed: timedelta) -> str:
    """The bucket of a time: the first bound that is not below it.

    >>> [bucket_of(timedelta(seconds=s)) for s in (-1, 1, 1.001, 604800, 604801)]
    ['1', '1', '5', '604800', '+Inf']
    """
    position = bisect_left(BOUNDS_S, elapsed.total_seconds())
    return str(BOUNDS_S[position]) if position < len(BOUNDS_S) else NO_BOUND


def ended_label(end: RunEnd | None) -> str:
    """The label of an ended lease."""
    return UNKNOWN_END if end is None else end.value


def model_label(device: Device) -> str:
    """The label of a lease that holds this device; `split_model_label` reads it.

    >>> from hetero_airflow.testing import a_device
    >>> model_label(a_device())
    'nvidia/gpu/a100-sxm4-40gb'
    """
    return f"{device.vendor}/{device.kind}/{device.model}"


def split_model_label(label: str) -> tuple[str, str, str]:
    """Vendor, kind and model; all empty for a lease from before models were noted."""
    vendor, kind, model = label.split("/")
    return vendor, kind, model


def cumulative(tallies: Iterable[Tally]) -> list[tuple[str, int]]:
    """(upper bound, number of times up to it) for each bucket, from the tallies of one label.

    A row with another bound, from another version, counts in the next larger bucket.

    >>> rows = [Tally(TallyName.HELD, "", bucket, count, 0) for bucket, count in (("5", 2), ("7", 1), ("+Inf", 4))]
    >>> [pair for pair in cumulative(rows) if pair[0] in ("1", "5", "15", "+Inf")]
    [('1', 0), ('5', 2), ('15', 3), ('+Inf', 7)]
    """
    counts = [(float(tally.bucket), tally.count) for tally in tallies]
    bounds = [*map(str, BOUNDS_S), NO_BOUND]
    return [(bound, sum(count for upper, count in counts if upper <= float(bound))) for bound in bounds]
