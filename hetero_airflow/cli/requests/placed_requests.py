"""Which tasks the live leases belong to: a lease only knows the id of its request."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Engine, select

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.store import tables
from hetero_airflow.store.sql.reads import read_pending
from hetero_airflow.store.sql.transaction import chunks, read_transaction


def placed_requests(engine: Engine, ids: Iterable[str]) -> dict[str, PendingRequest]:
    """Id → request, for those of the ids that the store knows.

    :raises StoreUnavailable: the database is down, locked or not migrated
    """
    with read_transaction(engine) as connection:
        rows = [
            row
            for chunk in chunks(ids)
            for row in connection.execute(select(tables.request).where(tables.request.c.id.in_(chunk)))
        ]
    found = (read_pending(row, DeviceRequest.model_validate_json) for row in rows)
    return {pending.id: pending for pending in found if pending is not None}
