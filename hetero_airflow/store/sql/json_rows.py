"""Passes many rows to one statement as one JSON parameter, so that a statement needs one round trip for all rows.

One statement per row costs a round trip, a parse and a plan each: granting and releasing a lease took 13 of them. A
statement whose text grows with its rows is compiled again for each number of rows, and PostgreSQL parses each value:
inserting 100 leases took 8 ms, and takes 2 ms like this (PostgreSQL 18, one loaded core).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.expression import FromClause
from sqlalchemy.types import TypeEngine

from hetero_airflow.store.utc_time import UtcDateTime

_TYPES: dict[str, TypeEngine[Any]] = {
    "text": sa.Text(),
    "number": sa.BigInteger(),
    "truth": sa.Boolean(),
    "time": sa.DateTime(timezone=True),
}

_TIME_LENGTH = len("2026-01-01 00:00:00.000000")
"""Length of a time as SQLAlchemy stores it in SQLite."""

ROWS = "rows"
"""The parameter that takes the text of `rows_json`."""


def rows_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the text that `given` reads; a column that a row lacks is NULL there.

    >>> rows_json([{"at": datetime(2026, 1, 1, tzinfo=UTC), "cores": 2}])
    '[{"at": "2026-01-01 00:00:00.000000+00:00", "cores": 2}]'
    """
    return json.dumps(rows, default=_time_text)


def _time_text(value: object) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError(
            f"{value!r} is no value of a row, or a time without a zone; give an aware time such as Clock.now()"
        )
    return value.astimezone(UTC).isoformat(" ", "microseconds")


def read_by_rows(
    connection: sa.Connection, make: Callable[[str], sa.Select[Any]], rows: Sequence[Mapping[str, Any]], **values: Any
) -> Sequence[sa.Row[Any]]:
    """The result of a query on a `json_table` with these rows; nothing for no rows.

    :param make: returns the query for a dialect
    """
    return connection.execute(make(connection.dialect.name), {ROWS: rows_json(rows), **values}).all() if rows else ()


def key_rows(keys: Iterable[str]) -> list[dict[str, str]]:
    """One row per key, sorted, with the key in the column `key`."""
    return [{"key": key} for key in sorted(keys)]


@lru_cache(maxsize=64)
def json_table(dialect: str, **columns: str) -> FromClause:
    """The parameter `rows` as a table to join with. A column is a "text", a "number", a "truth" or a "time".

    >>> print(sa.select(json_table("sqlite", key="text").c.key))  # doctest: +ELLIPSIS
    SELECT given.key...
    FROM (SELECT json_extract(each.value, :json_extract_1) AS key...
    FROM json_each(:rows) AS each) AS given
    """
    rows = sa.bindparam(ROWS, type_=sa.Text)
    if dialect == "postgresql":
        listed = [sa.column(name, _TYPES[kind]) for name, kind in columns.items()]
        return (
            sa.func.json_to_recordset(sa.cast(rows, sa.JSON))
            .table_valued(*listed, name="given")
            .render_derived(name="given", with_types=True)
        )
    each = sa.func.json_each(rows).table_valued("value", name="each")
    values = []
    for name, kind in columns.items():
        value = sa.func.json_extract(each.c.value, f"$.{name}", type_=_TYPES[kind])
        values.append((sa.func.substr(value, 1, _TIME_LENGTH) if kind == "time" else value).label(name))
    return sa.select(*values).subquery("given")


@lru_cache(maxsize=64)
def insert_rows(dialect: str, table: sa.Table, *names: str) -> sa.Insert:
    """A statement that inserts the rows of the parameter `rows`, with these columns."""
    rows = json_table(dialect, **{name: _kind(table.c[name].type) for name in names})
    return sa.insert(table).from_select(list(names), sa.select(*(rows.c[name] for name in names)))


def without_index(column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """The text column without its index, for a condition beside a key.

    SQLite would use this column's index instead of the key, and read all waiting requests for each key.
    """
    return column.concat("")


def _kind(type_: TypeEngine[Any]) -> str:
    if isinstance(type_, UtcDateTime):
        return "time"
    if isinstance(type_, sa.Boolean):
        return "truth"
    return "number" if isinstance(type_, sa.Integer) else "text"
