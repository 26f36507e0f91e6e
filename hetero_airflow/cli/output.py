"""How everything is printed: foreign names made harmless, durations for people, one console, JSON."""

from __future__ import annotations

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

PIPE_WIDTH = 120
"""Columns where the output is no terminal and COLUMNS is not set."""

UNBROKEN_WIDTH = 12
"""Words of up to this width are not broken, however narrow a table gets."""

_GAP = 2


def clean(value: object) -> str:
    """The text of a value, with whatever could move the cursor, colour or reverse the output escaped.

    >>> print(clean("job\\x1b[31m\\n\\u202e"))
    job\\x1b[31m\\n\\u202e
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def clean_all(value: Any) -> Any:
    """A JSON value with `clean` applied to each of its texts.

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
    """One line a value, cleaned, and never read as markup."""
    return Text("\n".join(clean(line) for line in lines), style=style)


def table(headers: Sequence[str], rows: Iterable[Sequence[Text]], whole: int | None = None) -> Table:
    """A table without lines, so that a pipe gets plain columns; what is too long goes on in the next line.

    :param headers: empty texts only for a table without a header
    :param whole: the column whose lines are never broken, since people copy from it
    """
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=any(headers))
    kept = [list(row) for row in rows]
    for number, header in enumerate(headers):
        cells = "\n".join((header, *(row[number].plain for row in kept)))
        if number == whole:
            made.add_column(header, no_wrap=True, min_width=max(map(cell_len, cells.split("\n"))))
        else:
            longest = max(map(cell_len, cells.split()), default=1)
            made.add_column(header, overflow="fold", min_width=min(longest, UNBROKEN_WIDTH))
    for row in kept:
        made.add_row(*row)
    return made


def console(file: TextIO | None = None) -> Console:
    """A console that colours only on a terminal, and reads no markup, emoji codes or numbers."""
    file = file or sys.stdout
    if isinstance(file, TextIOWrapper):
        file.reconfigure(errors="backslashreplace")  # a multiplication sign must not end the command
    is_narrow_pipe = not file.isatty() and "COLUMNS" not in os.environ
    width = PIPE_WIDTH if is_narrow_pipe else None
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def show(*parts: RenderableType) -> None:
    """Print to standard output. The lines of texts are left whole, so that what is copied from them is too.

    A table that can't be made as narrow as the terminal is printed wider, since rich would drop columns.
    """
    output = console()
    width = output.width
    for part in parts:
        if isinstance(part, Table):
            output.width = max(width, sum((column.min_width or 0) + _GAP for column in part.columns) - _GAP)
        output.print(part, soft_wrap=isinstance(part, Text), crop=False)


def show_json(value: Any) -> None:
    """Print a JSON value, in ASCII so that it is safe on every terminal and in every pipe."""
    console().out(json.dumps(value, indent=2))


def age(then: datetime, now: datetime) -> str:
    """The time since then, in its two greatest units; ``0 s`` for a time to come.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> age(noon, noon + timedelta(seconds=42)), age(noon, noon + timedelta(seconds=90061)), age(noon, noon)
    ('42 s', '1 d 1 h', '0 s')
    """
    rest = max(0, int((now - then).total_seconds()))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, rest = divmod(rest, length)
        if number or parts:
            parts.append((number, unit))
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number) or "0 s"


def moment(time: datetime) -> str:
    """A time as people read it.

    >>> moment(datetime(2026, 1, 1, 12, tzinfo=UTC))
    '2026-01-01 12:00:00 UTC'
    """
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
