"""What a task uses at the moment, as its supervisor can see it from outside."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import psutil

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


def rank_pids(pid: int) -> list[int]:
    """The ranks that torchrun has started below a process."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if _RANK in child.cmdline():
                    found.append(child.pid)
    return found


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
            for id_ in lease.ids:
                rates = pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByUUID(id_))
                busiest = max(busiest or 0.0, rates.gpu / 100)
        finally:
            pynvml.nvmlShutdown()
    return busiest
