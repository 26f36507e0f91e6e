"""Asks NVML, and tells "the chip has no such reading" from "the GPU does not answer"; the processes that use GPUs."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

_NO_SUCH_READING = frozenset({2, 3, 4, 6, 7, 13, 21, 22, 24, 25, 26, 27})
"""Values of nvmlReturn_t (nvml.h) with which a healthy GPU says that it, its driver or this user has no such reading:
invalid argument, not supported, no permission, not found, insufficient size, function not found, no data, no ECC on a
vGPU, no such frequency, version mismatch, deprecated, not ready. All others are failures, such as 999, unknown."""


class Asker:
    """Calls functions of NVML by their names; the answer is None where NVML gives none.

    `failures` has the calls that failed although the chip has the reading: name → (nvmlReturn_t, NVML's text).
    """

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.failures: dict[str, tuple[int, str]] = {}

    def __call__(self, name: str, *arguments: Any) -> Any:
        """NVML's answer; None if it gives none."""
        try:
            return getattr(self._pynvml, name)(*arguments)
        except AttributeError:
            return None  # nvidia-ml-py is older than the call
        except self._pynvml.NVMLError as error:
            code = int(getattr(error, "value", 999))
            if code not in _NO_SUCH_READING:
                self.failures[name] = (code, str(error))
            return None


def lease_users(ids: Iterable[str]) -> dict[str, tuple[int, ...]] | None:
    """Id of a GPU or MIG instance → the processes that use it; None if NVML can't tell."""
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        try:
            pids = {id_: device_pids(Asker(pynvml), pynvml.nvmlDeviceGetHandleByUUID(id_)) for id_ in ids}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    answered = {id_: users for id_, users in pids.items() if users is not None}
    return answered if len(answered) == len(pids) else None


def device_pids(ask: Asker, handle: Any) -> tuple[int, ...] | None:
    """The processes that compute or draw on a device; None if NVML can't tell.

    A chip or a MIG instance on which nothing can draw has no list of processes that draw.
    """
    compute = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    graphics = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
    if compute is None or (graphics is None and "nvmlDeviceGetGraphicsRunningProcesses" in ask.failures):
        return None
    return tuple(sorted({int(process.pid) for process in (*compute, *(graphics or ()))}))
