"""The processes that use NVIDIA GPUs and MIG instances, as NVML lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


def lease_users(ids: Iterable[str]) -> dict[str, tuple[int, ...]] | None:
    """Id of a GPU or MIG instance → the processes that use it; None if NVML can't tell."""
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        try:
            pids = {id_: device_pids(pynvml, asker(pynvml), pynvml.nvmlDeviceGetHandleByUUID(id_)) for id_ in ids}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    answered = {id_: users for id_, users in pids.items() if users is not None}
    return answered if len(answered) == len(pids) else None


def asker(pynvml: Any) -> Callable[..., Any]:
    """A function that calls NVML and returns None where NVML has no answer."""

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError:
            return None

    return ask


def device_pids(pynvml: Any, ask: Callable[..., Any], handle: Any) -> tuple[int, ...] | None:
    """The processes that compute or draw on a device; None if NVML can't tell."""
    compute = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if compute is None:
        return None
    graphics = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
    return tuple(sorted({int(process.pid) for process in (*compute, *graphics)}))
