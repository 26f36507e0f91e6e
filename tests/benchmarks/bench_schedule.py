"""Every policy on the public traces. Run it: ``make bench-schedule``, or with names of sections for some of them.

Writes its tables into ``docs/scheduling.md``, each between the two comments that name its section. Beside our policies,
every table has baselines that ignore speeds, know speeds, and know durations, the published number, and a lower or
upper bound. All rows are from one run of this command: no number is kept from another day. Needs HETERO_AIRFLOW_TRACES.
"""

import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_table import Table

SECTIONS = (
    "truth",
    "jct",
    "learned",
    "stream",
    "default",
    "makespan",
    "dags",
    "openb",
    "philly",
    "balance",
    "replay",
    "victims",
)
"""The sections. Each is a module ``bench_schedule_<name>.py`` beside this one, with a function ``tables``."""

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def run_section(name: str) -> Iterator[Table]:
    """The tables of a section."""
    module: Any = importlib.import_module(f"bench_schedule_{name}")
    yield from module.tables()


def write_section(page: Path, name: str, text: str) -> None:
    """Put a text between the two comments of a section."""
    pattern = rf"(<!-- bench {name} -->\n).*?(<!-- end {name} -->)"
    replaced, times = re.subn(pattern, lambda m: m[1] + text + m[2], page.read_text(), flags=re.DOTALL)
    if times != 1:
        raise SystemExit(f"{page.name} has no place for the section {name}: write its two comments first")
    page.write_text(replaced)


def main(names: list[str]) -> None:
    """Run the sections and write their tables."""
    unknown = sorted(set(names) - set(SECTIONS))
    if unknown:
        raise SystemExit(f"unknown sections: {', '.join(unknown)}. There are {', '.join(SECTIONS)}")
    for name in names or SECTIONS:
        begin = time.perf_counter()
        texts = []
        for table in run_section(name):
            texts.append(table.markdown())
            print(texts[-1], flush=True)
        write_section(PAGE, name, "\n".join(texts))
        print(f"== {name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
