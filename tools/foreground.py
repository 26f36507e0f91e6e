"""An Airflow in the foreground of a terminal: one a folder, and stopped whole whatever ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from local_airflow import LocalAirflow

from hetero_airflow.cli.output import cell, show
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StillRunning(RuntimeError):
    """The folder has an Airflow already."""

    def __init__(self, home: Path, pids: list[int]) -> None:
        self.pids = pids
        numbers = " ".join(map(str, pids))
        super().__init__(
            f"Asked for an Airflow in {home}; one runs there already (processes {numbers}). "
            f"Stop it where it was started, or with: kill {numbers}"
        )


def refuse_second(home: Path) -> None:
    """Nothing, unless a process works in this folder, as the components of an Airflow of ours do.

    :raises StillRunning: one does
    """
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.cwd() == str(home):
                pids.append(process.pid)
    if pids:
        raise StillRunning(home, pids)


@contextmanager
def running_airflow(home: Path, *, is_scheduling: bool = True) -> Iterator[LocalAirflow]:
    """An Airflow with the example DAGs and, where the environment names any, with simulated devices.

    :param is_scheduling: whether DAGs start by their own schedules too, as they do once they are unpaused
    :raises StillRunning: the folder has one already
    :raises KeyboardInterrupt: the terminal or another process asked to stop
    """
    refuse_second(home)
    simulated = os.environ.get(SIMULATED_DEVICES_VARIABLE, "")
    settings = {"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": str(is_scheduling)}
    airflow = LocalAirflow(home, ROOT / "dags", simulated=simulated, settings=settings)
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        airflow.start()
        yield airflow
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # what was started is stopped, however often one asks
        show(cell("Stopping Airflow …"))
        airflow.stop()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
