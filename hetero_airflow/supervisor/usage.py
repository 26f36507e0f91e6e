"""What a task uses at the moment, as its supervisor can see it from outside."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from hetero_airflow.runtime.notice import DUMP_SIGNAL
from hetero_airflow.runtime.task_lease import TaskLease

_RANK = "hetero_airflow.runtime.rank_process"


def cpu_s(pid: int) -> float:
    """Seconds that a process, its descendants, and those of them that have ended, have computed so far."""
    total = 0.0
    with suppress(psutil.Error):
        own = psutil.Process(pid)
        times = own.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
        for child in own.children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
    return total


def dumping_ranks(pid: int) -> list[int]:
    """The ranks of torchrun below a process that show their stacks at `DUMP_SIGNAL`.

    It would end all others: torchrun itself, whose command names the ranks' too, and a rank that has just begun.
    """
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if _RANK in child.cmdline() and _catches(child.pid):
                    found.append(child.pid)
    return found


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal: bit n - 1 of ``SigCgt`` in ``/proc/PID/status`` is signal n."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (DUMP_SIGNAL - 1) & 1)


def utilization(lease: TaskLease) -> float | None:
    """The part of the last moments, 0 to 1, in which a kernel ran on the busiest of the leased devices.

    By NVML's ``nvmlDeviceGetUtilizationRates``; None for other vendors' devices, simulated ones, and MIG instances, of
    which NVML does not say it.
    """
    if lease.vendor != "nvidia" or lease.simulated:
        return None
    pynvml = import_module("pynvml")
    busiest: float | None = None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for number, id_ in enumerate(lease.ids):  # of those in a pod, all are its own
                by = pynvml.nvmlDeviceGetHandleByIndex if lease.is_slot else pynvml.nvmlDeviceGetHandleByUUID
                rates = pynvml.nvmlDeviceGetUtilizationRates(by(number if lease.is_slot else id_))
                busiest = max(busiest or 0.0, rates.gpu / 100)
        finally:
            pynvml.nvmlShutdown()
    return busiest
