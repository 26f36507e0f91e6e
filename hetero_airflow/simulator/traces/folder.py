"""Finds the file of a trace in the folder of the data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten

VARIABLE = "HETERO_AIRFLOW_TRACES"
_SHOWN = 40


def trace_folder(folder: Path | None) -> Path:
    """The given folder, or the one that the environment variable HETERO_AIRFLOW_TRACES names; it must exist."""
    given = folder or Path(os.environ.get(VARIABLE, ""))
    if given == Path() or not given.is_dir():
        raise TraceError(
            f"the folder of traces ({VARIABLE})",
            found="no value" if given == Path() else f"no folder {shorten(str(given))}",
            remedy=f"Set {VARIABLE} to a folder with gavel/, openb/, muri/ or philly/ in it; "
            "the loaders' docstrings say where each is published",
        )
    return given


def find_file(folder: Path, stem: str, suffixes: Sequence[str]) -> Path:
    """The first of the files ``stem + suffix`` that exists.

    :raises TraceError: none exists; the error names the traces that do
    """
    for suffix in suffixes:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    there = sorted(path.name for path in islice(folder.glob("*"), 10_000) if path.name.endswith(tuple(suffixes)))
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    raise TraceError(
        f"the trace {folder.name}/{stem} ({' or '.join(stem + suffix for suffix in suffixes)})",
        found=f"{', '.join(there[:_SHOWN]) or 'no such file'}{more}" if folder.is_dir() else f"no folder {folder.name}",
        remedy="Name one of these, or fetch the data set (the loader's docstring says where)",
    )
