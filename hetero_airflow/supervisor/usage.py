"""What a task uses at the moment, as its supervisor sees it from outside."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from hetero_airflow.contract.notice import DUMP_SIGNAL
from hetero_airflow.contract.task_lease import TaskLease

_RANK = "hetero_airflow.runtime.rank_process"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants so far, including those that have ended."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
    return total


def dumping_ranks(pid: int) -> list[int]:
    """The processes below a process that are ranks of torchrun and show their stacks at `DUMP_SIGNAL`.

    The signal would end others: torchrun itself, whose command names the ranks too, and ranks that just started.
    """
    ranks = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if _RANK in child.cmdline() and _catches(child.pid):
                    ranks.append(child.pid)
    return ranks


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal: bit n - 1 of ``SigCgt`` in ``/proc/PID/status`` is signal n."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (DUMP_SIGNAL - 1) & 1)


def utilization(lease: TaskLease) -> float | None:
    """The part of the last moments, 0 to 1, in which a kernel ran on the busiest of the leased devices.

    From NVML's ``nvmlDeviceGetUtilizationRates``. None for devices of other vendors, simulated ones, and MIG instances,
    for which NVML has no rates.
    """
    if lease.vendor != "nvidia" or lease.simulated:
        return None
    pynvml = import_module("pynvml")
    busiest: float | None = None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for number, id_ in enumerate(lease.ids):  # a pod sees only its own devices
                by = pynvml.nvmlDeviceGetHandleByIndex if lease.is_slot else pynvml.nvmlDeviceGetHandleByUUID
                rates = pynvml.nvmlDeviceGetUtilizationRates(by(number if lease.is_slot else id_))
                busiest = max(busiest or 0.0, rates.gpu / 100)
        finally:
            pynvml.nvmlShutdown()
    return busiest
