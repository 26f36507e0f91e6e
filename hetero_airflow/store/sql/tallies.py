"""Counts of what happened in the store, which outlive the rows that pruning deletes.

A counter of Prometheus may not fall, and the cost of a scrape may not grow with the history. So what happened is not
counted from the rows of leases and decisions. Each transaction adds to a few rows here, with one statement. If it
fails, or is committed again after a conflict, nothing is counted twice. All schedulers add to the same rows.

Rejected: counters in the memory of each scheduler. They start at 0 after a restart, and each scheduler would need an
address that Prometheus can reach.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache

from sqlalchemy import Connection, Insert, func, select
from sqlalchemy.dialects import postgresql, sqlite

from hetero_airflow.model.device import Device
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store import tables
from hetero_airflow.store.sql.json_rows import json_table
from hetero_airflow.store.sql.transaction import WriteTransaction

_LEASE, _TALLY = tables.lease.c, tables.tally.c
_NO_MODEL = "//"
"""The label of a lease from before models were noted."""

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
    LOADED = "loaded"
    """The time for which steps waited for data, of tasks that report it; the label is the model of the devices."""
    COMPUTED = "computed"
    """The time for which they computed."""
    SAVED = "saved"
    """The time for which they waited until their state was copied."""


STEP_TIMES = {TallyName.LOADED: "data", TallyName.COMPUTED: "compute", TallyName.SAVED: "save"}
"""What the time of steps was spent on, as in `TimeShares`."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often something happened since the tables were made."""

    name: TallyName
    label: str
    bucket: str
    """For times with a histogram, the upper bound in seconds or `NO_BOUND`; else empty."""
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
        """Where its time belongs; empty if none was measured, or if only the sum counts."""
        return "" if self.elapsed is None or self.name in STEP_TIMES else bucket_of(self.elapsed)

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


def add_tallies(transaction: WriteTransaction, occurrences: Sequence[Occurrence]) -> None:
    """Count what happened, in one statement. The leases' rows must be written before."""
    rows = [
        {
            "name": occurrence.name,
            "label": occurrence.label,
            "key": occurrence.lease_id,
            "bucket": occurrence.bucket,
            "elapsed_ms": occurrence.elapsed_ms,
        }
        for occurrence in occurrences
    ]
    transaction.execute_rows(_add, rows)


def read_tallies(connection: Connection) -> tuple[Tally, ...]:
    """All tallies, ordered by name and label. Their number depends on the models of devices, not on the history."""
    rows = connection.execute(select(tables.tally).order_by(_TALLY.name, _TALLY.label, _TALLY.bucket))
    return tuple(Tally(TallyName(row.name), row.label, row.bucket, row.number, row.total_ms) for row in rows)


@lru_cache(maxsize=2)
def _add(dialect: str) -> Insert:
    events = json_table(dialect, name="text", label="text", key="text", bucket="text", elapsed_ms="number")
    label = func.coalesce(events.c.label, _LEASE.device_model, _NO_MODEL).label("label")
    sums = (func.count().label("number"), func.sum(events.c.elapsed_ms).label("elapsed_ms"))
    counted = (
        select(events.c.name, label, events.c.bucket, *sums)
        .join_from(events, tables.lease, _LEASE.id == events.c.key, isouter=True)
        .where(events.c.name.is_not(None))  # SQLite needs a WHERE before ON CONFLICT
        .group_by(events.c.name, label, events.c.bucket)
    )
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    put = insert(tables.tally).from_select(["name", "label", "bucket", "number", "total_ms"], counted)
    return put.on_conflict_do_update(
        index_elements=["name", "label", "bucket"],
        set_={
            "number": _TALLY.number + put.excluded.number,
            "total_ms": _TALLY.total_ms + put.excluded.total_ms,
        },
    )
