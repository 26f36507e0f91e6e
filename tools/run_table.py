"""Writes the table of a run's life into docs/architecture.md, from `hetero_airflow.executor.runs`."""

import inspect
import re
from pathlib import Path
from typing import Any

from hetero_airflow.executor import commands, runs
from hetero_airflow.executor.events import first_sentence
from hetero_airflow.executor.run import Phase

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BLOCK = re.compile(r"(?<=<!-- runs -->\n).*?(?=<!-- end runs -->)", re.S)


def table() -> str:
    """One row for each kind of event and each function that handles it."""
    rows = ["| what is found out | in the phases | what follows | commands |", "|---|---|---|---|"]
    for event, handlers in runs.TABLE.items():
        for handler in dict.fromkeys(handlers.values()):
            phases = ", ".join(phase.value for phase in Phase if handlers.get(phase) is handler)
            cells = f"**{event.__name__}**: {first_sentence(event)}", phases, _summary(handler), _commands(handler)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _commands(handler: Any) -> str:
    """What a handler may command."""
    found = set(re.findall(r"\bcommands\.(\w+)\(", _source(handler)))
    return ", ".join(name for name in vars(commands) if name in found)


def _source(function: Any) -> str:
    """The body of a function, with those of the functions of its module that it calls."""
    body = inspect.getsource(function).partition("\n")[2]
    return body + "".join(_source(getattr(runs, name)) for name in re.findall(r"\b(_\w+)\(", body))


def _summary(handler: Any) -> str:
    return inspect.cleandoc(handler.__doc__).split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: table(), PAGE.read_text()))
