"""Progress that a task reports itself, without a loop of `checkpoint.steps`."""

import os
from functools import lru_cache
from pathlib import Path

from hetero_airflow.contract.progress_file import ProgressFile
from hetero_airflow.errors import RequestError
from hetero_airflow.model.run import MAX_STEPS
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.settings import CONTROL_VARIABLE


def progress(step: int, total: int | None = None) -> None:
    """Report that a step has just ended. The scheduler learns from it how fast the task is on each device model.

    Call it after each step, or as often as you like: a call costs a comparison, and a write of 50 us once a second.
    A loop of `checkpoint.steps` reports by itself, and then this does nothing; so do other ranks than the first, and
    a process without an executor.

    :param step: its number, counted from 0. If a task begins again, it may be a smaller one
    :param total: how many steps there are in all; the time that is left is estimated from it
    :raises RequestError: they are no whole numbers from 0, or the step is not below the total

    >>> from hetero_airflow.runtime import progress
    >>> for step in range(3):
    ...     progress(step, total=3)
    """
    for name, value in (("step", step), ("total", total)):
        if isinstance(value, bool) or not ((value is None and name == "total") or isinstance(value, int)):
            raise RequestError(name, value, found="no whole number", remedy="Give the number as an int, from 0")
        if value is not None and not 0 <= value <= MAX_STEPS:
            raise RequestError(name, value, found="a number out of range", remedy=f"Use 0 to {MAX_STEPS}")
    if total is not None and step >= total:
        raise RequestError("step", step, found=f"a total of {total}", remedy="Count steps from 0 to below the total")
    folder = os.environ.get(CONTROL_VARIABLE)
    if folder and rank() == 0:
        _file(folder).done(step, total)


@lru_cache(maxsize=1)
def _file(folder: str) -> ProgressFile:
    return ProgressFile(Path(folder), can_save=False)
