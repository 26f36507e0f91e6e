# ruff: noqa: N801, N803, N816  the names are NVIDIA's
"""Stands in for the module pynvml: NVML's event calls over a script of what the waits answer.

`SCRIPT` holds one item a wait: (GPU's number, event type, data), "timeout", or ("lost", GPU's number). When it is over,
waits time out for ever. The names, the errors and the structures are those of nvidia-ml-py, which a test compares.
"""

import ctypes
import json
import os
import time

nvmlEventTypeXidCriticalError = 8


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_Timeout(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class struct_c_nvmlDevice_t(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int)]


c_nvmlDevice_t = ctypes.POINTER(struct_c_nvmlDevice_t)


class c_nvmlEventData_t(ctypes.Structure):
    _fields_ = [("device", c_nvmlDevice_t), ("eventType", ctypes.c_ulonglong), ("eventData", ctypes.c_ulonglong)]


SCRIPT = json.loads(os.environ.get("FAKE_XIDS", "[]"))
SUPPORTED = {0: 0x1F, 1: 0x1F}
LOST = set()
REGISTERED = []
_GPUS = [struct_c_nvmlDevice_t(0), struct_c_nvmlDevice_t(1)]


def nvmlInit():
    if os.environ.get("FAKE_NVML") == "missing":
        raise NVMLError_LibraryNotFound


def nvmlDeviceGetCount():
    return len(_GPUS)


def nvmlDeviceGetHandleByIndex(index):
    return ctypes.pointer(_GPUS[index])


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle.contents.number}"


def nvmlDeviceGetMemoryInfo(handle):
    if handle.contents.number in LOST:
        raise NVMLError_GpuIsLost


def nvmlEventSetCreate():
    REGISTERED.append([])
    return REGISTERED[-1]


def nvmlDeviceGetSupportedEventTypes(handle):
    if SUPPORTED[handle.contents.number] is None:
        raise NVMLError_NotSupported
    return SUPPORTED[handle.contents.number]


def nvmlDeviceRegisterEvents(handle, eventTypes, eventSet):
    eventSet.append((handle.contents.number, eventTypes))


def nvmlEventSetWait(eventSet, timeoutms):
    if not SCRIPT:
        time.sleep(0.01)
        raise NVMLError_Timeout
    item = SCRIPT.pop(0)
    if item == "timeout":
        raise NVMLError_Timeout
    if item[0] == "lost":
        LOST.add(item[1])
        raise NVMLError_GpuIsLost
    number, kind, data = item
    return c_nvmlEventData_t(ctypes.pointer(_GPUS[number]), kind, data)


def nvmlEventSetFree(eventSet):
    pass
