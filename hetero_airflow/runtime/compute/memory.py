"""The memory of the leased device: how much this process may take, and how much a call takes at its highest.

On a GPU torch's allocator counts it. On a CPU the kernel does: the highest resident set since the last look
(``/proc/self/clear_refs``, Linux's proc(5)), compared with the lowest of the limits that end or kill a process. A call
that comes to such a limit must be avoided: MKL waits for memory without an end (torch 2.13, RLIMIT_DATA, 2026-11).
"""

import ctypes
import gc
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from hetero_airflow.discovery.cpu import memory_limits
from hetero_airflow.errors import RequestError

_HIGHEST = "5"
"""What clear_refs takes to forget the highest resident set."""

_M_MMAP_THRESHOLD = -3
_TIGHT, _ROOMY = 1 << 20, 32 << 20
"""From how many bytes on glibc maps a block, and so gives it back when it is free; 32 MiB is its own highest value.
Smaller free blocks stay in the heap, in pieces that a step of another shape can't use: a process near its limit then
fails at a step that is no larger than those before. Mapping costs time: a small transformer that is far from its limit
trains 1.7 times as long with 1 MiB (2026-11)."""

_TEXTS = ("can't allocate memory", "out of memory", "bad allocation", "std::bad_alloc", "could not create a primitive")
"""In errors of torch's CPU allocator, of CUDA and ROCm libraries, C++ and oneDNN, when memory is short."""


class DeviceMemory(Protocol):
    """The memory of a device, for this process."""

    limit_bytes: int
    """What the process may take, all in all."""

    def highest_bytes(self, call: Callable[[], object]) -> int:
        """What the process takes at most while the call runs, all in all."""

    def release(self) -> None:
        """Give back what is cached and not used."""

    def settle(self, *, is_tight: bool) -> None:
        """Prepare for the training; it takes nearly all of the memory, or much less."""


def device_memory(device: torch.device, leased_bytes: int | None) -> DeviceMemory:
    """The memory of a device.

    :param leased_bytes: the host memory of a CPU's lease; 0 or None if it has none
    :raises RequestError: nobody here can say how much memory a call takes
    """
    if device.type == "cuda":
        return _GpuMemory(device)
    if device.type == "cpu":
        return _HostMemory(leased_bytes)
    raise RequestError(
        "batch_size",
        device.type,
        found="a device whose memory torch does not count",
        remedy="Choose the size of a batch by hand on such devices",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


class _GpuMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        share = torch.cuda.get_per_process_memory_fraction(device)
        self.limit_bytes = min(int(share * total_bytes), free_bytes + torch.cuda.memory_reserved(device))

    def highest_bytes(self, call: Callable[[], object]) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        call()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def settle(self, *, is_tight: bool) -> None:
        self.release()


class _Limit(NamedTuple):
    bytes: int
    field: str
    """The field of /proc/self/status that the kernel compares with it."""


class _HostMemory:
    """A limit on data counts what is mapped and not only what is touched: the largest difference that was seen."""

    def __init__(self, leased_bytes: int | None) -> None:
        try:
            Path("/proc/self/clear_refs").write_text(_HIGHEST)
        except OSError as error:
            raise RequestError(
                "batch_size",
                None,
                found=f"a kernel that does not say how much memory a step takes ({error.strerror})",
                remedy="Choose the size of a batch by hand here",
            ) from error
        _map_blocks_from(_TIGHT)
        rss_bytes = _status_bytes("VmRSS")
        limits = [_Limit(leased_bytes, "VmRSS")] if leased_bytes else []
        for number, field in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft, _ = resource.getrlimit(number)
            limits += [_Limit(soft, field)] if soft != resource.RLIM_INFINITY else []
        limits += [_Limit(limit - used + rss_bytes, "VmRSS") for limit, used in memory_limits()]
        limits.append(_Limit(_available_bytes() + rss_bytes, "VmRSS"))
        left = {limit: limit.bytes - _status_bytes(limit.field) for limit in limits}
        lowest = min(left, key=left.__getitem__)
        self._field = lowest.field
        self._offset_bytes = _status_bytes(lowest.field) - rss_bytes
        self.limit_bytes = lowest.bytes

    def highest_bytes(self, call: Callable[[], object]) -> int:
        Path("/proc/self/clear_refs").write_text(_HIGHEST)
        call()
        self._offset_bytes = max(self._offset_bytes, _status_bytes(self._field) - _status_bytes("VmRSS"))
        return _status_bytes("VmHWM") + self._offset_bytes

    def release(self) -> None:
        gc.collect()
        with suppress(AttributeError):  # other C libraries than glibc
            ctypes.CDLL(None).malloc_trim(0)

    def settle(self, *, is_tight: bool) -> None:
        self.release()
        _map_blocks_from(_TIGHT if is_tight else _ROOMY)


def _map_blocks_from(size_bytes: int) -> None:
    with suppress(AttributeError):  # other C libraries than glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, size_bytes)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) << 10
    raise AssertionError(f"the kernel has {field} for each process")


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel has MemAvailable since Linux 3.14")
