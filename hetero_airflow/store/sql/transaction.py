"""Transactions of the SQL store: one writer at a time, consistent reads, and this project's errors.

A writer first updates the one row of ``hetero_state``. On PostgreSQL this row lock makes writers wait for each other.
So they can't deadlock or see half of each other's work, and the `changed` of the rows grows in the order of the
commits.

SQLite has one writer per file anyway. There the first statement has to be a write: like ``BEGIN IMMEDIATE`` it requests
the write lock at once, and waits as long as the connection's busy timeout (5 s by default). A transaction that reads
first and writes later can fail without waiting ("database is locked"), since what it has read may be out of date.

A writer that hangs must not stop the others forever. On PostgreSQL, the wait for the row ends after `LOCK_TIMEOUT_S`
(the wait for the whole table, which a migration may lock, does not). The server ends the session of a writer that is
idle for three times as long, which releases the lock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import URL, Connection, Engine, Row, Select, Table, Text, bindparam, func, literal, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hetero_airflow.errors import StoreError, StoreUnavailable
from hetero_airflow.store import tables
from hetero_airflow.store.sql.json_rows import ROWS, insert_rows, rows_json
from hetero_airflow.validation import first_problem

T = TypeVar("T")

LOCK_TIMEOUT_S = 10.0
"""How long to wait for another writer; on SQLite the engine's busy timeout counts instead."""

_STATE = (tables.state.c.sequence, tables.state.c.fence, tables.state.c.pruned)
_READ_STATE = select(*_STATE)
_TAKE_LOCK = update(tables.state).values(sequence=tables.state.c.sequence).returning(*_STATE)
_LIMITS = select(
    literal(1).label("row"),
    func.set_config("lock_timeout", bindparam("lock_ms", type_=Text), True).label("lock"),
    func.set_config("idle_in_transaction_session_timeout", bindparam("idle_ms", type_=Text), True).label("idle"),
).cte("limits")
_LIMIT_AND_TAKE_LOCK = _TAKE_LOCK.where(tables.state.c.id == _LIMITS.c.row)
"""PostgreSQL sets the limits before it locks the joined row: one round trip less per transaction."""


@dataclass(slots=True)
class WriteTransaction:
    """An open transaction that holds the writers' lock."""

    connection: Connection
    stamp: int
    """The sequence for the `changed` of the rows that it writes."""
    fence: int
    """The token of the newest lease."""
    is_visible: bool = False
    """Whether it changed something that a snapshot shows; then the sequence grows."""
    changed_workers: set[str] = field(default_factory=set)
    """Ids of the workers whose state, devices or holds it wrote."""

    @property
    def dialect(self) -> str:
        """SQLAlchemy's name of the database: sqlite or postgresql."""
        return self.connection.dialect.name

    def note_deletion(self) -> None:
        """Let every reader look for deleted rows: some that a snapshot shows are deleted, which no `changed` tells."""
        self.connection.execute(update(tables.state).values(pruned=self.stamp))
        self.is_visible = True

    def execute_rows(self, make: Callable[[str], Any], rows: Sequence[dict[str, Any]], **values: Any) -> int:
        """Execute once, for all rows, the statement on a `json_table`; returns the number of changed rows.

        :param make: returns the statement for a dialect
        """
        if not rows:
            return 0
        return int(self.connection.execute(make(self.dialect), {ROWS: rows_json(rows), **values}).rowcount)

    def insert_rows(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        """Insert all rows in one statement; they have the columns of the first row."""
        if rows:
            self.connection.execute(insert_rows(self.dialect, table, *rows[0]), {ROWS: rows_json(rows)})

    def execute_many(self, statement: Any, rows: Sequence[dict[str, Any]]) -> None:
        """Execute the statement once per row."""
        if rows:
            self.connection.execute(statement, rows)


@contextmanager
def write_transaction(engine: Engine) -> Iterator[WriteTransaction]:
    """Holds the writers' lock until the transaction is committed, or rolled back by an exception.

    :raises StoreUnavailable: the database is down, locked for too long, or not migrated
    """
    with _translated(engine), engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            milliseconds = round(1000 * LOCK_TIMEOUT_S)
            limits = {"lock_ms": str(milliseconds), "idle_ms": str(3 * milliseconds)}
            state = connection.execute(_LIMIT_AND_TAKE_LOCK, limits).one_or_none()
        else:
            state = connection.execute(_TAKE_LOCK).one_or_none()
        if state is None:
            raise _not_migrated(engine, "no row in hetero_state")
        transaction = WriteTransaction(connection, stamp=state.sequence + 1, fence=state.fence)
        yield transaction
        if transaction.is_visible:
            connection.execute(update(tables.state).values(sequence=transaction.stamp, fence=transaction.fence))


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction whose statements all see the same state. It blocks no other.

    :raises StoreUnavailable: the database is down, locked for too long, or not migrated
    """
    with _translated(engine), engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        if engine.dialect.name == "sqlite":
            _begin(connection)
        yield connection


def read_state(engine: Engine, connection: Connection) -> tuple[int, int]:
    """The sequence, and the sequence of the last deletion."""
    state = connection.execute(_READ_STATE).one_or_none()
    if state is None:
        raise _not_migrated(engine, "no row in hetero_state")
    return state.sequence, state.pruned


def chunks(values: Iterable[T], size: int = 500) -> Iterator[list[T]]:
    """The values in lists that every database accepts in one statement (older SQLite accepts 999 values)."""
    rest = iter(values)
    while chunk := list(islice(rest, size)):
        yield chunk


def read_chunks(connection: Connection, query: Select[Any], column: Any, values: Iterable[str]) -> Iterator[Row[Any]]:
    """The rows of the query with one of the values in the column."""
    for chunk in chunks(values):
        yield from connection.execute(query.where(column.in_(chunk)))


def _begin(connection: Connection) -> None:
    """Begin a transaction: sqlite3 does so only at the first write, and without one each read sees another state."""
    if not connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
        connection.exec_driver_sql("BEGIN")


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        raise _unavailable(engine, error) from (None if _holds_secret(engine.url, error) else error)
    except ValidationError as error:
        raise StoreError(
            "a row of the store as JSON",
            found=" at ".join(reversed([part for part in first_problem(error) if part])),
            remedy="Another version of hetero-airflow or a person wrote it: run one version, and `airflow db migrate`",
        ) from error


def _unavailable(engine: Engine, error: Exception) -> StoreUnavailable:
    cause = getattr(error, "orig", None) or error
    text = " ".join(str(cause).split())[:300] or type(cause).__name__
    for secret in _secrets(engine.url):
        text = text.replace(secret, "***")
    code = getattr(cause, "pgcode", None)
    if code in ("42P01", "42703") or text.startswith(("no such table", "no such column")):
        return _not_migrated(engine, text)
    if code == "55P03" or "database is locked" in text:
        return StoreUnavailable(
            f"the writers' lock of {_name(engine.url)}",
            found=text,
            remedy="Another process holds it for too long: look for one that hangs; the next cycle tries again",
        )
    return StoreUnavailable(
        f"the store in {_name(engine.url)}",
        found=text,
        remedy="Check that the database of [database] sql_alchemy_conn runs and is reachable from this host",
    )


def _not_migrated(engine: Engine, found: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the tables hetero_* in {_name(engine.url)}", found=found, remedy="Run `airflow db migrate`"
    )


def _name(url: URL) -> str:
    """Name of the database without user, password and options.

    >>> from sqlalchemy import make_url
    >>> _name(make_url("postgresql+psycopg2://u:secret@db:5432/airflow")), _name(make_url("sqlite:////a.db"))
    ('postgresql airflow at db', 'sqlite /a.db')
    """
    return f"{url.get_backend_name()} {url.database or 'in memory'}" + (f" at {url.host}" if url.host else "")


def _secrets(url: URL) -> list[str]:
    secrets = [url.password, *(value for key, value in url.query.items() if "pass" in key.lower())]
    return [str(secret) for secret in secrets if secret]


def _holds_secret(url: URL, error: Exception) -> bool:
    return any(secret in str(error) for secret in _secrets(url))
