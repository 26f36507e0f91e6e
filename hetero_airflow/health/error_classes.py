"""What an XID, the number of an error that NVIDIA's driver reports, says of the GPU.

Source: NVIDIA, "Xid Errors", the Xid Catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column
"Resolution Bucket (Immediate Action)". RESET_GPU, RESTART_BM, RESTART_VM, CHECK_MECHANICALS and the workflows of 48
and 74 take a GPU out at once; RESTART_APP with CHECK_APP, RESTART_APP of decoders, and mere news never count; what is
left (IGNORE or RESTART_APP, but CONTACT_SUPPORT if it goes on) counts by rate.

Deviations: 94 (RESTART_APP) takes a GPU out at once, since a burn-in over the rest of its memory costs a minute and a
second loss costs a task; 109 (RESET_GPU) counts by rate, since NVIDIA's own device plugin for Kubernetes
(internal/rm/health.go) takes it, like 13, 31, 43, 45 and 68, for an application's error; 144 to 150, whose
workflow reads bits that NVML does not tell, count by rate; 167, 171 and 172, for which the catalogue has no action
yet, are as bad as 79 and 48.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """How much an error says of the device."""

    FATAL = "fatal"
    """It can't be used as it is: out at once."""
    COUNTED = "counted"
    """Hardware may be behind it: out when there are several in a while."""
    TASK = "task"
    """A task took the hardware for the cause of its failure: out when another says the same in a while."""
    APPLICATION = "application"
    """The application's own, or mere news: never counts, however many there are."""


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
    11: "invalid push buffer",
    13: "graphics engine exception",
    14: "test message",
    25: "invalid push buffer",
    31: "GPU memory page fault",
    32: "invalid push buffer",
    37: "driver firmware error",
    43: "GPU stopped processing the application",
    45: "clean-up after previous errors",
    60: "video processor exception",
    66: "illegal access by driver",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data sent to GPU",
    **dict.fromkeys((82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142), "video or image engine error"),
    106: "test message",
    107: "test message",
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

XIDS: dict[int, tuple[ErrorClass, str]] = {
    xid: (error_class, text)
    for error_class, texts in (
        (ErrorClass.FATAL, _FATAL),
        (ErrorClass.COUNTED, _COUNTED),
        (ErrorClass.APPLICATION, _APPLICATION),
    )
    for xid, text in texts.items()
}
"""XID → its class and what it is, in a few words."""


def classify_xid(xid: int) -> tuple[ErrorClass, str]:
    """The class of an XID, and a text for people; one that the table does not have counts by rate.

    >>> classify_xid(79)
    (<ErrorClass.FATAL: 'fatal'>, 'XID 79, GPU has fallen off the bus')
    >>> classify_xid(45)[0], classify_xid(9999)
    (<ErrorClass.APPLICATION: 'application'>, (<ErrorClass.COUNTED: 'counted'>, 'XID 9999'))
    """
    if xid not in XIDS:
        return ErrorClass.COUNTED, f"XID {xid}"
    error_class, text = XIDS[xid]
    return error_class, f"XID {xid}, {text}"
