"""Device errors: their classes, the class of each XID (an error number of NVIDIA's driver), and ECC errors. Pure.

Source: NVIDIA, "Xid Errors", the Xid Catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column
"Resolution Bucket (Immediate Action)". RESET_GPU, RESTART_BM, RESTART_VM, CHECK_MECHANICALS and the workflows of 48
and 74 are fatal. RESTART_APP with CHECK_APP, RESTART_APP of decoders, and pure notifications never count. The rest
(IGNORE or RESTART_APP, but CONTACT_SUPPORT if it continues) counts by rate.

Deviations: 94 (RESTART_APP) is fatal, because a burn-in over the rest of the memory costs a minute and a second loss
costs a task. 109 (RESET_GPU) counts by rate, because NVIDIA's own device plugin for Kubernetes (internal/rm/health.go)
treats it, like 13, 31, 43, 45 and 68, as an application's error. 144 to 150 count by rate, because their workflow reads
bits that NVML does not report. 167, 171 and 172, for which the catalogue has no action yet, are as bad as 79 and 48.
"""

from collections.abc import Iterable
from enum import StrEnum

from hetero_airflow.model.device import Telemetry


class ErrorClass(StrEnum):
    """How much an error says about the device."""

    FATAL = "fatal"
    """The device is unusable: one error takes it out."""
    COUNTED = "counted"
    """The hardware may be the cause: several errors within the window take the device out."""
    TASK = "task"
    """A task failed with a hardware error: a second task with one within the window takes the device out."""
    APPLICATION = "application"
    """An application's error or a pure notification: never counts."""


_FATAL = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halted",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU could not be initialised",
    151: "key rotation error",
    155: "NVLink error in software",
    156: "resource retired, reset needed",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
_APPLICATION = {
    **dict.fromkeys((11, 25, 32), "invalid push buffer"),
    13: "graphics engine exception",
    **dict.fromkeys((14, 106, 107), "test message"),
    31: "GPU memory page fault",
    37: "driver firmware error",
    43: "GPU stopped processing the application",
    45: "clean-up after previous errors",
    60: "video processor exception",
    66: "illegal access by driver",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data sent to GPU",
    **dict.fromkeys((82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142), "video or image engine error"),
    154: "recovery action changed",  # the probe reads the action itself
    162: "power smoothing engaged",
    163: "power smoothing disengaged",
}
_COUNTED = {
    8: "GPU stopped processing",
    38: "driver firmware error",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    44: "graphics engine fault during context switch",
    63: "memory row remapped",
    67: "illegal access by driver",
    92: "high rate of single-bit ECC errors",
    109: "context switch timeout",
    121: "chip-to-chip link error",
    137: "NVLink privilege error",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    157: "resource could not be retired",
}

_TEXTS = {ErrorClass.FATAL: _FATAL, ErrorClass.COUNTED: _COUNTED, ErrorClass.APPLICATION: _APPLICATION}

XIDS: dict[int, tuple[ErrorClass, str]] = {
    xid: (error_class, text) for error_class, texts in _TEXTS.items() for xid, text in texts.items()
}
"""XID → its class and a short description."""


def classify_xid(xid: int) -> tuple[ErrorClass, str]:
    """The class of an XID, and a text for people. An XID that is not in the table counts by rate.

    >>> classify_xid(79)
    (<ErrorClass.FATAL: 'fatal'>, 'XID 79, GPU has fallen off the bus')
    >>> classify_xid(45)[0], classify_xid(9999)
    (<ErrorClass.APPLICATION: 'application'>, (<ErrorClass.COUNTED: 'counted'>, 'XID 9999'))
    """
    if xid not in XIDS:
        return ErrorClass.COUNTED, f"XID {xid}"
    error_class, text = XIDS[xid]
    return error_class, f"XID {xid}, {text}"


def ecc_text(errors: int) -> str:
    """A number of ECC errors, for people.

    >>> ecc_text(1), ecc_text(2)
    ('1 uncorrected ECC error', '2 uncorrected ECC errors')
    """
    return f"{errors} uncorrected ECC error{'s' if errors > 1 else ''}"


class EccCounters:
    """New uncorrected ECC errors, from counters that only show a total; remembers each device's counter.

    >>> counters = EccCounters()
    >>> counters.new_errors([Telemetry(device_id="GPU-0", ecc_errors=7)])
    []
    >>> counters.new_errors([Telemetry(device_id="GPU-0", ecc_errors=9)])
    [('GPU-0', 2)]
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def new_errors(self, readings: Iterable[Telemetry]) -> list[tuple[str, int]]:
        """(device id, errors since its last reading), of the devices with new errors. A first reading shows none."""
        grown = []
        for reading in readings:
            if reading.ecc_errors is None:
                continue
            more = reading.ecc_errors - self._counters.get(reading.device_id, reading.ecc_errors)
            self._counters[reading.device_id] = reading.ecc_errors
            if more > 0:
                grown.append((reading.device_id, more))
        return grown
