"""A store for tests: `SqlStore` in a SQLite database of its own."""

import sqlite3
import weakref
from functools import cache
from typing import Any

from sqlalchemy import StaticPool, create_engine

from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore

_COMPILED: dict[Any, Any] = {}
"""The statements that all these stores have compiled."""


@cache
def _empty_tables() -> bytes:
    """A database with empty tables. Copying it takes a tenth of the time of creating the tables."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    tables.metadata.create_all(engine)
    with engine.connect() as connection:
        content: bytes = connection.connection.dbapi_connection.serialize()
    engine.dispose()
    return content


class SqliteStore(SqlStore):
    """An empty store in this process's memory, for one thread. Its content ends with it."""

    def __init__(self) -> None:
        self._connection = connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.deserialize(_empty_tables())
        engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        engine = engine.execution_options(compiled_cache=_COMPILED)
        weakref.finalize(self, connection.close)  # called in the reverse order
        weakref.finalize(self, engine.dispose)
        super().__init__(engine)
        self._seen: tuple[int, Snapshot] | None = None

    def snapshot(self) -> Snapshot:
        """The current state. Tests ask for it all the time, so the database is read only after a write."""
        if self._seen is None or self._seen[0] != self._connection.total_changes:
            self._seen = self._connection.total_changes, super().snapshot()
        return self._seen[1]

    def invalidate(self) -> None:
        """Do nothing: each snapshot is current."""
