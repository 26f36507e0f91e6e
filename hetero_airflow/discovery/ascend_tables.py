"""Reads the tables of npu-smi by the names of their columns. Pure.

A cell of a header row holds one or more names with two or more spaces between them; a row below has as many values in
that cell. A chip has one row below each header row; lines of dashes divide the chips::

    | NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
    +===========================+===============+====================================================+
    | 0     Ascend910           | OK            | 178.8       36                0    / 0             |
    | 0     0                   | 0000:9D:00.0  | 0           0    / 0          3397 / 65536         |
    +------------------------------------------------------------------------------------------------+

npu-smi 26 has five columns in its table of processes, 25 has four (nyaterm issue 268, vllm-ascend issue 12980).
Nothing is left out without a word: a chip has a doubt if one of its cells does not fit, and a row of the processes that
does not fit makes the users of all chips unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hetero_airflow.errors import shorten

MAX_ROWS = 16384

_VALUE = re.compile(r"[^\s/]+\s*/\s*[^\s/]+|\S+")
"""A value in a cell: a word, or used and total with a slash."""

_NAMES = re.compile(r"\s{2,}")
_NO_PROCESS = re.compile(r"No running processes found in NPU [0-9]{1,6}", re.ASCII)
_PID = "process id"
_PHYSICAL = ("phy-id", "device")
"""The number of /dev/davinci<n>, in newer and in older tools."""

USAGES = ("hbm-usage(mb)", "memory-usage(mb)")
"""A chip's own memory, and what it has without HBM."""

_KNOWN = frozenset({
    "npu", "name", "health", "power(w)", "temp(c)", "hugepages-usage(page)", "chip", *_PHYSICAL, "bus-id", "aicore(%)",
    *USAGES, _PID, "process name", "process memory(mb)", "process id in container",
})  # fmt: skip


class ChipRows(NamedTuple):
    """A chip in the first table."""

    npu: int
    chip: int
    values: Mapping[str, str]
    """Column's name in lower case → value, of the cells that could be read."""
    doubt: str | None
    """What is not understood."""

    @property
    def physical_id(self) -> int | None:
        """The number of the chip's device node; None if npu-smi prints none."""
        text = next((self.values[name] for name in _PHYSICAL if name in self.values), None)
        return int(text) if text is not None and is_number(text) else None


class Tables(NamedTuple):
    """What npu-smi's tables say."""

    chips: list[ChipRows]
    has_header: bool
    """Whether there is a table of chips."""
    lost_rows: str | None
    """Rows that belong to no chip that could be read."""
    pids: dict[tuple[int, int], list[int]] | None
    """(NPU, chip) → the processes that use it; None if there is no table of processes."""
    pids_doubt: str | None
    """Why the users of all chips are unknown."""


class _Table(NamedTuple):
    header: list[list[str]]
    groups: list[list[list[str]]]
    """The rows below, as their cells; lines of dashes divide the groups."""

    @property
    def names(self) -> list[str]:
        return [name for row in self.header for cell in row for name in _names(cell)]

    @property
    def text(self) -> str:
        """The header for a person."""
        return shorten(" / ".join(" | ".join(row) for row in self.header), limit=160)


def read_tables(info: str) -> Tables:
    """The chips and the processes in the answer of ``npu-smi info``."""
    tables = _tables(info.splitlines()[:MAX_ROWS])
    process_tables = [table for table in tables if any(name.startswith("process") for name in table.names)]
    chip_tables = [table for table in tables if table not in process_tables]
    chips: dict[tuple[int, int], ChipRows] = {}
    lost_rows: str | None = None
    for table in chip_tables:
        for rows in _rows_of_chips(table):
            chip = _chip(table, rows)
            if chip is None or (chip.npu, chip.chip) in chips:
                lost_rows = lost_rows or f"{shorten(' / '.join(map(' | '.join, rows)), limit=120)} below {table.text}"
            else:
                chips[chip.npu, chip.chip] = chip
    pids: dict[tuple[int, int], list[int]] = {}
    doubts = [_read_pids(table, chips.keys(), pids) for table in process_tables]
    doubt = next(filter(None, doubts), None)
    if not process_tables and lost_rows:
        doubt = f"no such table, but the row {lost_rows}"
    return Tables(list(chips.values()), bool(chip_tables), lost_rows, pids if process_tables else None, doubt)


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most 9 digits."""
    return text.isascii() and text.isdigit() and len(text) <= 9


def _tables(lines: Iterable[str]) -> list[_Table]:
    """All tables with a header: a row with at least two known names. The row of the version is above the first."""
    tables: list[_Table] = []
    is_after_line = True
    for row in map(_cells, lines):
        if row is None:
            is_after_line = True
        elif sum(name in _KNOWN for cell in row for name in _names(cell)) > 1:
            if not tables or tables[-1].groups:
                tables.append(_Table([], []))
            tables[-1].header.append(row)
            is_after_line = True
        elif tables:
            tables[-1].groups.extend([[]] if is_after_line else [])
            tables[-1].groups[-1].append(row)
            is_after_line = False
    return tables


def _cells(line: str) -> list[str] | None:
    """The cells of a row, one of them empty if the row is cut off; None for a line that is no row."""
    text = line.strip()
    if not text.startswith("|"):
        return None
    cells = [cell.strip() for cell in text[1:].split("|")]
    return cells[:-1] if text.endswith("|") and len(cells) > 1 else [*cells[:-1], ""]


def _names(cell: str) -> list[str]:
    return [name.lower() for name in _NAMES.split(cell) if name]


def _rows_of_chips(table: _Table) -> Iterator[list[list[str]]]:
    size = len(table.header)
    for group in table.groups:
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _chip(table: _Table, rows: Sequence[Sequence[str]]) -> ChipRows | None:
    """A chip from its rows; None if its numbers can't be read."""
    values: dict[str, str] = {}
    doubts = [f"{name} twice" for name in _KNOWN if table.names.count(name) > 1]
    for number, header in enumerate(table.header):
        row = rows[number] if number < len(rows) else []
        values |= _values(header, row)
        doubts += [f"no {name}" for cell in header for name in _names(cell) if name in _KNOWN and name not in values]
    doubts += [f"{name}, a new column" for name, text in values.items() if "/" in text and name not in _KNOWN]
    npu, chip = values.get("npu", ""), values.get("chip", "")
    if not (is_number(npu) and is_number(chip)):
        return None
    return ChipRows(int(npu), int(chip), values, ", ".join(doubts[:3]) or None)


def _values(header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    """Name → value of one row; nothing for a cell with another number of values than names.

    Only the last name of a cell may have a value with spaces, if it is that of a chip or of a process.
    """
    values: dict[str, str] = {}
    for cell, text in zip(header, row, strict=True) if len(header) == len(row) else ():
        names, words = _names(cell), _VALUE.findall(text)
        if names and names[-1] in ("name", "process name") and len(words) > len(names):
            words = [*words[: len(names) - 1], " ".join(words[len(names) - 1 :])]
        if len(words) == len(names):
            values |= dict(zip(names, words, strict=True))
    return values


def _read_pids(table: _Table, chips: Iterable[tuple[int, int]], pids: dict[tuple[int, int], list[int]]) -> str | None:
    """Add the processes of a table to `pids`; a text if it is not understood."""
    if len(table.header) != 1 or any(table.names.count(name) != 1 for name in ("npu", "chip", _PID)):
        return f"its header is {table.text}"
    known = {(str(npu), str(chip)) for npu, chip in chips}
    for row in (row for group in table.groups for row in group):
        if len(row) == 1 and _NO_PROCESS.fullmatch(row[0]):
            continue
        values = _values(table.header[0], row)
        npu, chip, pid = (values.get(name, "") for name in ("npu", "chip", _PID))
        if (npu, chip) not in known or not is_number(pid):
            return f"its row is {shorten(' | '.join(row))} below {table.text}"
        pids.setdefault((int(npu), int(chip)), []).append(int(pid))
    return None
