"""Bars that show how far simulations have come, on standard error and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hetero_airflow.cli.output import clean, console

ProgressCallback = Callable[[int, int, float], None]

_HOUR_S = 3600.0


@contextmanager
def progress_bars() -> Iterator[Callable[[str], ProgressCallback]]:
    """A function that starts the bar of a policy, and gives what is called with jobs ended, jobs, simulated seconds."""
    output = console(sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[hours]:.0f} h simulated"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=output, transient=True, disable=not output.is_terminal) as bars:

        def start(policy: str) -> ProgressCallback:
            bar = bars.add_task(clean(policy), total=None, hours=0.0)
            return lambda ended, total, now_s: bars.update(bar, completed=ended, total=total, hours=now_s / _HOUR_S)

        yield start
