"""An Airflow in the foreground of a terminal. A folder has at most one, and all its processes stop at the end."""

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
    """An Airflow already runs in the folder."""

    def __init__(self, home: Path, pids: list[int]) -> None:
        self.pids = pids
        numbers = " ".join(map(str, pids))
        super().__init__(
            f"Asked for an Airflow in {home}; found a running one (processes {numbers}). "
            f"Stop it in its terminal, or with: kill {numbers}"
        )


def refuse_second(home: Path) -> None:
    """Check that no process has this folder as its working directory, as the components of an Airflow have.

    :raises StillRunning: there is such a process
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
    """Run an Airflow with the example DAGs, and with the simulated devices that the environment names.

    :param is_scheduling: whether unpaused DAGs also start by their schedules
    :raises StillRunning: an Airflow already runs in the folder
    :raises KeyboardInterrupt: the terminal or another process sent a signal to stop
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
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the stop
        show(cell("Stopping Airflow …"))
        airflow.stop()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
