"""Commands that show the same picture again and again until the user quits."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Group, RenderableType
from rich.live import Live

from hetero_airflow.cli.output import cell, console
from hetero_airflow.errors import StoreUnavailable

INTERVAL_S = 2.0
QUIT = frozenset("qQ\x03\x04\x1b")
"""The keys that end it: q, Ctrl-C, Ctrl-D, Escape."""


def watch(make: Callable[[int], Iterable[RenderableType]]) -> None:
    """Draw a picture every two seconds on the whole terminal, until the user presses q or Ctrl-C.

    While the database does not answer, the last picture stays and a line says so.

    :param make: makes the picture; gets the height of the terminal in lines
    """
    output = console()
    picture: list[RenderableType] = []
    with suppress(KeyboardInterrupt), _keys() as pressed, Live(console=output, screen=True, auto_refresh=False) as live:
        while True:
            try:
                picture = list(make(output.height))
                problem: list[RenderableType] = []
            except StoreUnavailable as error:
                problem = [cell(error, style="red")]
            live.update(Group(*problem, *picture), refresh=True)
            if pressed() in QUIT:
                return


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Waits for the next key, at most `INTERVAL_S`; an empty text where none was pressed. The terminal is restored."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin) if os.isatty(stdin) else None
    if before is not None:
        tty.setcbreak(stdin)

    def pressed() -> str:
        readable, _, _ = select.select([stdin] if before is not None else [], [], [], INTERVAL_S)
        return os.read(stdin, 1).decode(errors="replace") if readable else ""

    try:
        yield pressed
    finally:
        if before is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
