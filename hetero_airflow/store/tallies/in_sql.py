"""Adds to the tallies in the transaction of what happened, and reads them."""

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import Connection, Insert, func, select
from sqlalchemy.dialects import postgresql, sqlite

from hetero_airflow.store import tables
from hetero_airflow.store.sql.json_rows import json_table
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.store.tallies.tally import Occurrence, Tally, TallyName

_LEASE, _TALLY = tables.lease.c, tables.tally.c
_NO_MODEL = "//"
"""The label of a lease from before models were noted."""


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
