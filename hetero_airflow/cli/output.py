"""Printing: escaped names, durations for people, tables, JSON."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hetero_airflow.units import format_duration

PIPE_WIDTH = 120
"""The width in columns if the output is not a terminal and COLUMNS is not set."""

UNBROKEN_WIDTH = 12
"""Words of up to this width are not broken, even in a narrow table."""

_GAP = 2


def clean(value: object) -> str:
    """The text of a value. Characters that could move the cursor, or colour or reverse the output, are escaped.

    >>> print(clean("job\\x1b[31m\\n\\u202e"))
    job\\x1b[31m\\n\\u202e
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def clean_all(value: Any) -> Any:
    """A JSON value with each of its strings cleaned.

    >>> clean_all({"a\\n": ["b\\n", 1]})
    {'a\\\\n': ['b\\\\n', 1]}
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean_all(key): clean_all(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_all(item) for item in value]
    return value


def cell(*lines: object, style: str = "") -> Text:
    """One line per value, cleaned; it is never read as markup."""
    return Text("\n".join(clean(line) for line in lines), style=style)


def table(headers: Sequence[str], rows: Iterable[Sequence[Text]], whole: int | None = None) -> Table:
    """A table without lines, so that a pipe gets plain columns; long cells are wrapped.

    :param headers: if all are empty, the table has no header
    :param whole: the number of the column whose lines are never broken, since people copy from it
    """
    result = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=any(headers))
    cells = [list(row) for row in rows]
    for number, header in enumerate(headers):
        column = "\n".join((header, *(row[number].plain for row in cells)))
        if number == whole:
            result.add_column(header, no_wrap=True, min_width=max(map(cell_len, column.split("\n"))))
        else:
            longest = max(map(cell_len, column.split()), default=1)
            result.add_column(header, overflow="fold", min_width=min(longest, UNBROKEN_WIDTH))
    for row in cells:
        result.add_row(*row)
    return result


def console(file: TextIO | None = None) -> Console:
    """A console that uses colour only on a terminal. It reads no markup or emoji codes, and highlights no numbers."""
    file = file or sys.stdout
    if isinstance(file, TextIOWrapper):
        file.reconfigure(errors="backslashreplace")  # the terminal may not support ×
    is_narrow_pipe = not file.isatty() and "COLUMNS" not in os.environ
    width = PIPE_WIDTH if is_narrow_pipe else None
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def show(*parts: RenderableType) -> None:
    """Print to standard output. Lines of text are not broken, so that people can copy them.

    A table that does not fit is printed wider than the terminal, since rich would drop columns.
    """
    output = console()
    width = output.width
    for part in parts:
        if isinstance(part, Table):
            output.width = max(width, sum((column.min_width or 0) + _GAP for column in part.columns) - _GAP)
        output.print(part, soft_wrap=isinstance(part, Text), crop=False)


def show_json(value: Any) -> None:
    """Print a JSON value as ASCII, which is safe on every terminal and in every pipe."""
    console().out(json.dumps(value, indent=2))


def age(then: datetime, now: datetime) -> str:
    """The time since `then` in its two largest units; ``0 s`` if `then` is in the future.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> age(noon, noon + timedelta(seconds=42)), age(noon, noon + timedelta(seconds=90061)), age(noon, noon)
    ('42 s', '1 d 1 h', '0 s')
    """
    return format_duration((now - then).total_seconds())


def moment(time: datetime) -> str:
    """A time for people.

    >>> moment(datetime(2026, 1, 1, 12, tzinfo=UTC))
    '2026-01-01 12:00:00 UTC'
    """
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
