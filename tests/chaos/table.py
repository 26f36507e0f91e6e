"""The table of a session: one row a fault, as text and as JSON lines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What one fault came to."""

    fault: str
    backend: str
    seed: int
    found_s: float | None
    """From the fault until Airflow knew that the run of the task was over; None if it was not."""
    recovered_s: float
    """From the fault to a step beyond the failure point."""
    above_start_s: float
    """The same without what a training's plain start takes."""
    lost_steps: int
    tries: int
    double_leases: int
    leases_left: int
    lost_tasks: int
    mixed_checkpoints: int
    fresh_s: float
    """How long the hundred fresh tasks took."""


class Table:
    """Rows as they come."""

    def __init__(self, path: Path | None) -> None:
        self.rows: list[Row] = []
        self._path = path

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def print(self) -> None:
        """All rows, as text."""
        if not self.rows:
            return
        names = list(asdict(self.rows[0]))
        cells = [names, *([_text(value) for value in asdict(row).values()] for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
        print()
        for line in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
