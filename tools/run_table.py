"""Writes the table of a run's life into docs/architecture.md, from `hetero_airflow.executor.runs`."""

import inspect
import re
from pathlib import Path
from typing import Any

from hetero_airflow.executor.events import first_sentence
from hetero_airflow.executor.run import LEASED, QUEUED, UNLEASED, Phase
from hetero_airflow.executor.runs import TABLE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BLOCK = re.compile(r"(?<=<!-- runs -->\n).*?(?=<!-- end runs -->)", re.S)
GROUPS = {"any phase with a lease": LEASED, "any phase without a lease": UNLEASED, "resolving or waiting": QUEUED}


def table() -> str:
    """One row for each kind of event and each function that handles it."""
    rows = ["| what is found out | in the phases | what follows |", "|---|---|---|"]
    for event, handlers in TABLE.items():
        for handler in dict.fromkeys(handlers.values()):
            phases = {phase for phase, other in handlers.items() if other is handler}
            rows.append(f"| **{event.__name__}**: {first_sentence(event)} | {_listed(phases)} | {_summary(handler)} |")
    return "\n".join(rows) + "\n"


def _listed(phases: set[Phase]) -> str:
    texts = []
    for text, group in GROUPS.items():
        if group <= phases:
            texts.append(text)
            phases = phases - group
    return ", ".join([*texts, *(phase.value for phase in Phase if phase in phases)])


def _summary(handler: Any) -> str:
    return inspect.cleandoc(handler.__doc__).split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: table(), PAGE.read_text()))
