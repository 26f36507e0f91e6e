"""Rows that a statement is given as one JSON text: it works on all of them in one round trip.

A statement for each row costs a round trip, a parse and a plan each: granting and releasing a lease took 13 of
them. And a statement whose text grows with its rows is compiled anew for each number of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, BigInteger, Text, bindparam, cast, column, func, select
from sqlalchemy.sql.expression import FromClause

_TYPES: dict[str, type[Text] | type[BigInteger]] = {"text": Text, "number": BigInteger}

ROWS = "rows"
"""The parameter that `as_rows` goes to."""


def as_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the text that `given` reads; a column that a row lacks is NULL there."""
    return json.dumps(rows)


@lru_cache(maxsize=64)
def given(dialect: str, **columns: str) -> FromClause:
    """The rows of the parameter `rows` as a table, to join with; each column is a "text" or a "number".

    >>> print(select(given("sqlite", key="text").c.key))  # doctest: +ELLIPSIS
    SELECT given.key...
    FROM (SELECT json_extract(each.value, :json_extract_1) AS key...
    FROM json_each(:rows) AS each) AS given
    """
    rows = bindparam(ROWS, type_=Text)
    types = {name: _TYPES[kind] for name, kind in columns.items()}
    if dialect == "postgresql":
        listed = [column(name, type_) for name, type_ in types.items()]
        return (
            func.json_to_recordset(cast(rows, JSON)).table_valued(*listed, name="given").render_derived(with_types=True)
        )
    each = func.json_each(rows).table_valued("value", name="each")
    values = [func.json_extract(each.c.value, f"$.{name}", type_=type_).label(name) for name, type_ in types.items()]
    return select(*values).subquery("given")
