"""Limits the vendors' software to the leased devices.

Sources of the variables' meaning: NVIDIA's CUDA programming guide (CUDA_VISIBLE_DEVICES takes
UUIDs of GPUs and MIG instances), AMD's ROCm "GPU isolation" page (ROCR_VISIBLE_DEVICES selects
first, HIP_VISIBLE_DEVICES counts within what is left), Ascend's CANN reference
(ASCEND_RT_VISIBLE_DEVICES takes logical numbers), Google's libtpu (TPU_VISIBLE_CHIPS, with the
bounds that a part of a host needs). Each runtime reads the variables of its own process only, so
they replace those with which the agent was started.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.settings import LEASE_VARIABLE

_HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ASCEND_RT_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_CHIPS": "",
}
"""The variables for vendors of which the lease has no device."""

_ROCR_ID = re.compile(r"GPU-[0-9a-f]{1,16}")
"""The only ids that ROCr knows: the KFD's unique id (ROCm/ROCR-Runtime, amd_filter_device.cpp). Other GPUs have their
numbers: the list ends at the first word that ROCr does not know."""

_CUDA_NUMBERED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-.*")
"""The UUID of a Jetson's GPU, without the ``GPU-`` that CUDA wants before it. Such a GPU has its number."""

_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


def lease_environment(lease: TaskLease, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that bind a process to its lease. Set them before a framework is imported.

    :param inherited: the environment to which they are added; its options for torch's allocator are kept

    >>> lease = TaskLease(id="l", token=1, worker="a", vendor="nvidia", kind="gpu", model="a100", ids=("GPU-8f",),
    ...                   indexes=(3,), memory_bytes=2**35, share=0.5)
    >>> environment = lease_environment(lease)
    >>> environment["CUDA_VISIBLE_DEVICES"], environment["XLA_PYTHON_CLIENT_MEM_FRACTION"]
    ('GPU-8f', '0.5')
    """
    visible = {} if lease.is_slot else {**_HIDDEN, **_visible(lease)}  # a pod sees only its own devices anyway
    if visible and "TPU_VISIBLE_DEVICES" in (inherited or {}):
        visible["TPU_VISIBLE_DEVICES"] = visible["TPU_VISIBLE_CHIPS"]  # its older name
    variables = {LEASE_VARIABLE: lease.model_dump_json(), **visible}
    if lease.share is not None:
        options = [(inherited or {}).get("PYTORCH_ALLOC_CONF"), f"per_process_memory_fraction:{lease.share:g}"]
        variables["PYTORCH_ALLOC_CONF"] = ",".join(option for option in options if option)
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{lease.share:g}"
    if lease.cores:
        variables["OMP_NUM_THREADS"] = str(len(lease.cores))
    return variables


def _visible(lease: TaskLease) -> dict[str, str]:
    pairs, indexes = list(zip(lease.ids, lease.indexes, strict=True)), ",".join(map(str, lease.indexes))
    if lease.kind == "cpu":
        return {}
    if lease.vendor == "nvidia":
        ids = ",".join(str(number) if _CUDA_NUMBERED.fullmatch(id_) else id_ for id_, number in pairs)
        return {"CUDA_VISIBLE_DEVICES": ids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if lease.vendor == "amd":
        ids = ",".join(id_ if lease.simulated or _ROCR_ID.fullmatch(id_) else str(number) for id_, number in pairs)
        return {"ROCR_VISIBLE_DEVICES": ids, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(lease.ids))))}
    if lease.vendor == "ascend":
        return {"ASCEND_RT_VISIBLE_DEVICES": indexes}
    if lease.vendor == "google":
        bounds = _TPU_BOUNDS.get(len(lease.ids))
        shape = {"TPU_CHIPS_PER_PROCESS_BOUNDS": bounds, "TPU_PROCESS_BOUNDS": "1,1,1"} if bounds else {}
        return {"TPU_VISIBLE_CHIPS": indexes, **shape}
    return {}


@contextmanager
def bound_to_lease(lease: TaskLease) -> Iterator[None]:
    """Set the lease's environment and CPU affinity for this process and its children; restore them at the end."""
    affinity = os.sched_getaffinity(0)
    cores = set() if lease.is_slot else affinity.intersection(lease.cores)  # the cgroup of a pod limits its cores
    with environment_set(lease_environment(lease, os.environ)):
        try:
            if cores:
                os.sched_setaffinity(0, cores)
            yield
        finally:
            os.sched_setaffinity(0, affinity)


@contextmanager
def environment_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process and its children; restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
