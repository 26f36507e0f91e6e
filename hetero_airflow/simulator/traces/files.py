"""Finds trace files, reads their rows, and checks the fields.

Files may come from anybody. They are read as a stream, and every line, number and text has a bound. An error names the
file, the line, the field and what to do.
"""

import csv
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten

VARIABLE = "HETERO_AIRFLOW_TRACES"
_SHOWN = 40
MAX_LINE_BYTES = 10_000
"""The longest line of the public traces has 311."""
MAX_ROWS = 1_000_000
MAX_TEXT = 200
MAX_NUMBER = 1e15
"""1000 times the largest number of the public traces, and still exact as a float."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?")


def trace_folder(folder: Path | None) -> Path:
    """The given folder, or the one that the environment variable HETERO_AIRFLOW_TRACES names; it must exist."""
    chosen = folder or Path(os.environ.get(VARIABLE, ""))
    if chosen == Path() or not chosen.is_dir():
        raise TraceError(
            f"the folder of traces ({VARIABLE})",
            found="no value" if chosen == Path() else f"no folder {shorten(str(chosen))}",
            remedy=f"Set {VARIABLE} to a folder with gavel/, openb/, muri/ or philly/ in it; "
            "the loaders' docstrings say where each is published",
        )
    return chosen


def find_file(folder: Path, stem: str, suffixes: Sequence[str]) -> Path:
    """The first of the files ``stem + suffix`` that exists.

    :raises TraceError: none exists; the error names the traces that do
    """
    for suffix in suffixes:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    names = sorted(path.name for path in islice(folder.glob("*"), 10_000) if path.name.endswith(tuple(suffixes)))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise TraceError(
        f"the trace {folder.name}/{stem} ({' or '.join(stem + suffix for suffix in suffixes)})",
        found=f"{', '.join(names[:_SHOWN]) or 'no such file'}{more}" if folder.is_dir() else f"no folder {folder.name}",
        remedy="Name one of these, or fetch the data set (the loader's docstring says where)",
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a trace.

    >>> row = Row("a.csv", 7, {"gpus": "-1"})
    >>> row.integer("gpus", least=1)
    Traceback (most recent call last):
    hetero_airflow.errors.TraceError: a.csv, line 7, gpus='-1' can't be used; found a number below 1. Mend \
the line or remove it.
    """

    file: str
    line: int
    fields: Mapping[str, str]

    def wrong(self, field: str, found: str, remedy: str = "Mend the line or remove it") -> TraceError:
        """The error about a field of this line."""
        where = f"{self.file}, line {self.line}, {field}={shorten(self.fields.get(field))}"
        return TraceError(where, found=found, remedy=remedy, line=self.line, field=field)

    def text(self, field: str) -> str:
        """A printable text of 1 to 200 characters."""
        value = self.fields[field].strip()
        if not value:
            raise self.wrong(field, "no text")
        if len(value) > MAX_TEXT:
            raise self.wrong(field, f"more than {MAX_TEXT} characters")
        if not value.isprintable():
            raise self.wrong(field, "characters that can't be printed")
        return value

    def number(self, field: str, least: float = 0.0, most: float = MAX_NUMBER) -> float:
        """A finite number from `least` to `most`."""
        value = self.fields[field].strip()
        if _NUMBER.fullmatch(value) is None:
            raise self.wrong(field, "no finite number")
        number = float(value)
        if not least <= number <= most:
            raise self.wrong(field, f"a number below {least:g}" if number < least else f"a number above {most:g}")
        return number

    def integer(self, field: str, least: int = 0, most: int = 10**15) -> int:
        """A whole number from `least` to `most`; ``4.0`` is one."""
        number = self.number(field, least, most)
        if not number.is_integer():
            raise self.wrong(field, "a number with a fraction")
        return int(number)


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV file, plain or gzip, whose first line names at least `columns`."""
    lines = _lines(path)
    header = next(lines, "")
    names = _split(path, 1, header, _split_csv)
    missing = [column for column in columns if column not in names]
    if missing or len(set(names)) < len(names):
        raise TraceError(
            f"{path.name}, line 1: the columns {', '.join(columns)}",
            found=f"{shorten(header.strip())}" + (f", which lacks {', '.join(missing)}" if missing else ""),
            remedy="Put the names of the columns into the first line, each once",
            line=1,
            field=missing[0] if missing else None,
        )
    return _rows(path, lines, names, 2, _split_csv)


def tab_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a file without a header, whose fields are `columns`, separated by tabs."""
    return _rows(path, _lines(path), columns, 1, lambda line: line.split("\t"))


def unique(rows: Iterable[Row], field: str) -> Iterator[Row]:
    """The rows; no two may have the same value of the field."""
    lines: dict[str, int] = {}
    for row in rows:
        first = lines.setdefault(row.fields[field], row.line)
        if first != row.line:
            raise row.wrong(field, f"the same in line {first}", "Remove one of the lines, or give it a name of its own")
        yield row


def in_order(rows: Iterable[Row], field: str) -> Iterator[Row]:
    """The rows; the number in the field may not decrease."""
    last = 0.0
    for row in rows:
        number = row.number(field)
        if number < last:
            raise row.wrong(field, f"less than the {last:g} before it", f"Sort the lines by {field}")
        last = number
        yield row


def _split_csv(line: str) -> list[str]:
    """The fields of one line of CSV."""
    return next(csv.reader([line], strict=True), [])


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """The content of a file, plain or gzip, which must not be longer than the limit."""
    with _open(path) as file:
        content = _guarded(path, None, lambda: file.read(limit_bytes + 1))
    if len(content) > limit_bytes:
        raise TraceError(
            path.name, found=f"more than {limit_bytes} bytes", remedy="Give the file as its publisher made it"
        )
    return content


def _rows(
    path: Path, lines: Iterator[str], columns: Sequence[str], first: int, split: Callable[[str], list[str]]
) -> Iterator[Row]:
    for number, line in enumerate(lines, first):
        if number - first >= MAX_ROWS:
            raise _line_error(path, number, "", f"more than {MAX_ROWS} jobs", "Cut the trace into parts")
        if not line.strip():
            continue
        fields = _split(path, number, line, split)
        if len(fields) != len(columns):
            remedy = "Mend the line or remove it; the file may be cut off here"
            found = f"{len(fields)} in {shorten(line.strip())}"
            raise _line_error(path, number, f": {len(columns)} fields", found, remedy)
        yield Row(path.name, number, dict(zip(columns, fields, strict=True)))


def _split(path: Path, number: int, line: str, split: Callable[[str], list[str]]) -> list[str]:
    try:
        return [field.strip() for field in split(line.rstrip("\r\n"))]
    except csv.Error as error:
        found = f"no line of CSV ({error})"
        raise _line_error(path, number, f": {shorten(line)}", found, "Mend the quotes") from error


def _lines(path: Path) -> Iterator[str]:
    with _open(path) as file:
        number = 0
        while line := _guarded(path, number + 1, lambda: file.readline(MAX_LINE_BYTES + 1)):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                found, remedy = f"more than {MAX_LINE_BYTES} bytes", "Give one job a line"
            elif not line.endswith(b"\n"):
                found, remedy = "no end of line", "Fetch the file again, or end its last line if that is whole"
            else:
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                    continue
                except UnicodeDecodeError:
                    found, remedy = "bytes that are not UTF-8", "Fetch the file again, or convert it to UTF-8"
            raise _line_error(path, number, f": {shorten(line[:80])}", found, remedy)


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _guarded(path: Path, line: int | None, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (OSError, EOFError, zlib.error) as error:
        where = path.name if line is None else f"{path.name}, line {line}"
        raise TraceError(
            where, found=f"a file that ends early or is damaged ({error})", remedy="Fetch the file again", line=line
        ) from error


def _line_error(path: Path, number: int, asked: str, found: str, remedy: str) -> TraceError:
    return TraceError(f"{path.name}, line {number}{asked}", found=found, remedy=remedy, line=number)
