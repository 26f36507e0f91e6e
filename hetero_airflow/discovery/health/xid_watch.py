"""Reports XIDs of NVIDIA's driver when they happen, through an event set of NVML.

NVML reports an XID only to a process that waits in an event set at that moment. So one process waits all the time:
``python -m hetero_airflow.discovery.health.xid_watch PID`` writes one JSON line for each XID, and ends when process PID
is no longer its parent. `XidWatch` starts it and reads the lines. It is a process, not a thread, because a call into a
hung driver can't be ended (see `hetero_airflow.discovery`). The calls, for a GPU that falls off the bus::

    nvmlDeviceGetSupportedEventTypes(handle)                     0x1f
    nvmlDeviceRegisterEvents(handle, nvmlEventTypeXidCriticalError, events)
    nvmlEventSetWait(events, 1000)                               eventType 0x8, eventData 79, or raises "Timeout"
    nvmlEventSetWait(events, 1000)                               raises "GPU is lost"
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from hetero_airflow.model.device import Device

COMMAND = (sys.executable, "-P", "-m", "hetero_airflow.discovery.health.xid_watch")

XID_FALLEN_OFF = 79
"""Also reported for a GPU that NVML calls lost: the driver's own event may have come before the process waited."""

_WAIT_MS = 1000
_REPORT_EVERY_S = 1.0
_RESTART_AFTER_S = 60.0
_MAX_READ_BYTES = 1 << 16


class XidEvent(BaseModel):
    """One XID. In MIG mode the device is the whole GPU."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    xid: int
    at: AwareDatetime


class XidWatch:
    """Runs the waiting process and reads its output; `poll` never blocks."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = [*command, str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._rest = b""

    def poll(self) -> list[XidEvent]:
        """The XIDs since the last call, in their order.

        Starts the process if none runs, at most once a minute; never again after it found no GPU that can have XIDs.
        """
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self._start()
            return []
        has_ended = self._process.poll() is not None
        events = self._read()
        if has_ended:
            self._start_at = float("inf") if self._process.returncode == 0 else time.monotonic() + _RESTART_AFTER_S
            self.close()
        return events

    def close(self) -> None:
        """End the process; may be called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process, self._rest = None, b""

    def _start(self) -> None:
        self._start_at = time.monotonic() + _RESTART_AFTER_S
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _read(self) -> list[XidEvent]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), _MAX_READ_BYTES)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_MAX_READ_BYTES:]
        events = []
        for line in lines:
            with suppress(ValidationError):  # a line that a library prints
                events.append(XidEvent.model_validate_json(line))
        return events


def can_have_xids(devices: Iterable[Device]) -> bool:
    """Whether one of the devices has a driver that reports XIDs."""
    return any(device.vendor == "nvidia" and not device.simulated for device in devices)


def report_xids(
    pynvml: Any, report: Callable[[XidEvent], None], is_wanted: Callable[[], bool], now: Callable[[], datetime]
) -> None:
    """Report XIDs while `is_wanted`, or until no GPU is left that can have one.

    The same XID of the same GPU is reported at most once a second, so that many of them cost nothing.

    :param pynvml: the module, after nvmlInit()
    """
    reported: dict[tuple[str, int], datetime] = {}

    def report_limited(uuid: str, xid: int) -> None:
        at = now()
        before = reported.get((uuid, xid))
        if before is None or not 0 <= (at - before).total_seconds() < _REPORT_EVERY_S:
            reported[uuid, xid] = at
            report(XidEvent(uuid=uuid, xid=xid, at=at))

    handles = _handles(pynvml)
    while handles and is_wanted():
        events = pynvml.nvmlEventSetCreate()
        try:
            if not _register(pynvml, handles, events):
                return
            _wait_for_xids(pynvml, events, handles, report_limited, is_wanted)
        except pynvml.NVMLError_GpuIsLost:
            lost = [uuid for uuid, handle in handles.items() if _is_lost(pynvml, handle)]
            if not lost:
                raise
            for uuid in lost:
                report_limited(uuid, XID_FALLEN_OFF)
                del handles[uuid]
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)


def _wait_for_xids(
    pynvml: Any,
    events: Any,
    handles: Mapping[str, Any],
    report: Callable[[str, int], None],
    is_wanted: Callable[[], bool],
) -> None:
    uuids = {_address(handle): uuid for uuid, handle in handles.items()}
    while is_wanted():
        try:
            event = pynvml.nvmlEventSetWait(events, _WAIT_MS)
        except pynvml.NVMLError_Timeout:
            continue
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError and _address(event.device) in uuids:
            report(uuids[_address(event.device)], int(event.eventData))


def _handles(pynvml: Any) -> dict[str, Any]:
    handles = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            handles[uuid.decode() if isinstance(uuid, bytes) else uuid] = handle
    return handles


def _register(pynvml: Any, handles: dict[str, Any], events: Any) -> bool:
    """Register the GPUs for XID events. Returns whether one of them supports XID events."""
    has_any = False
    for handle in handles.values():
        with suppress(pynvml.NVMLError_NotSupported):
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
                has_any = True
    return has_any


def _is_lost(pynvml: Any, handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_GpuIsLost:
        return True
    except pynvml.NVMLError:
        return False
    return False


def _address(handle: Any) -> int | None:
    """The pointer in a handle: NVML gives the same one each time, Python a new object."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def main(arguments: Sequence[str]) -> int:
    """Argument: the id of the parent process."""
    parent = int(arguments[0])
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return 0
    with os.fdopen(os.dup(1), "wb", buffering=0) as answer:
        os.dup2(2, 1)  # output that the library prints can't damage the answer

        def report(event: XidEvent) -> None:
            answer.write(event.model_dump_json().encode() + b"\n")

        with suppress(BrokenPipeError):
            report_xids(pynvml, report, lambda: os.getppid() == parent, lambda: datetime.now(UTC))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
