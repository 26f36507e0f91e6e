"""The table of a session: one row a fault or a sequence, as text and as JSON lines."""

import json
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """The result of one fault."""

    fault: str
    backend: str
    seed: int
    found_s: float | None
    """From the fault until Airflow knew that the run of the task was over; None if it was not."""
    recovered_s: float
    """From the fault to a step beyond the failure point."""
    above_start_s: float
    """The same without the time of a training's normal start."""
    lost_steps: int
    tries: int
    double_leases: int
    leases_left: int
    lost_tasks: int
    mixed_checkpoints: int
    fresh_s: float
    """How long the hundred fresh tasks took."""


@dataclass(frozen=True)
class SequenceRow:
    """What one random sequence of faults came to."""

    sequence: str
    """Backend, number of schedulers, and seed."""
    seed: int
    schedulers: int
    faults: int
    """Those that found something to strike."""
    lost: int
    """Tasks that failed, or count as a success without having done their work."""
    doubles: int
    """Uses of a device that still had another user, by the witness."""
    shared_tokens: int
    """Tokens under which two processes used devices."""
    retries: int
    """Tries beyond the first and those that were asked for by a clear."""
    not_ended: int
    leases_left: int
    done_again: int
    """Work that was done completely and then once more, since its end could not be reported."""
    longest_wait_s: float
    """The longest time in which no task began or ended."""
    took_s: float


class Table:
    """Collects the rows of a session."""

    def __init__(self, path: Path | None) -> None:
        self.rows: list[Row | SequenceRow] = []
        self.path = path

    def add(self, row: Row | SequenceRow) -> None:
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def print(self) -> None:
        """All rows, as text."""
        for _, rows in groupby(self.rows, type):
            values = [asdict(row) for row in rows]
            cells = [list(values[0]), *([_text(value) for value in row.values()] for row in values)]
            widths = [max(len(line[column]) for line in cells) for column in range(len(values[0]))]
            print()
            for line in cells:
                print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def done_sequences(path: Path | None) -> set[str]:
    """The sequences that a file has rows of: a session that was cut off goes on with the others."""
    if path is None or not path.exists():
        return set()
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {row["sequence"] for row in rows if "sequence" in row}


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
