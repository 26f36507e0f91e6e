"""What a task is told of its lease, and how it travels: as JSON in one environment variable."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.errors import NoLeaseError, shorten
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import Worker
from hetero_airflow.settings import LEASE_VARIABLE

_TORCH_TYPES = {"nvidia": "cuda", "amd": "cuda", "ascend": "npu", "google": "xla"}
"""Vendor → torch's device type; ROCm builds of torch call their devices cuda."""


_TORCH_BACKENDS = {"cuda": "nccl", "npu": "hccl"}
"""torch's device type → what its collectives go by; Gloo for all others."""


class TaskGang(BaseModel):
    """The tasks that were placed together with this one, each on a lease of its own."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Of this placement of the gang: placed anew, it has another one."""
    rank: int
    """This task's place in the gang, from 0; rank 0 is the leader."""
    hosts: tuple[str, ...]
    """Of the members' workers, by rank."""
    leader: str
    """Id of the leader's lease."""
    first_index: int
    """The leader's map index."""
    network: dict[str, str] = {}
    """Variables that the labels of this worker make: see `gang_network.network_settings`."""

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self.hosts)


class TaskLease(BaseModel):
    """The devices that this task may use, and no other task does.

    >>> lease = TaskLease(id="l1", token=7, worker="host-a", vendor="nvidia", kind="gpu", model="a100-sxm4-40gb",
    ...                   ids=("GPU-8f",), indexes=(3,), memory_bytes=2**35, share=None)
    >>> lease.torch_device, lease.is_cooperative
    ('cuda:0', False)
    """

    model_config = ConfigDict(frozen=True)

    id: str
    token: int
    """Fencing token: greater than that of every lease granted before."""
    worker: str
    vendor: str
    kind: str
    model: str
    ids: tuple[str, ...]
    """Names that the vendor's software accepts, in the order of its own numbers."""
    indexes: tuple[int, ...]
    """The numbers that the vendor's tools show on the host."""
    memory_bytes: int
    """Of each device; of a share, what the share comes to; of a CPU, the host memory asked for, 0 if none was."""
    share: float | None
    """None for whole devices. A share is cooperative: the task is told it and frameworks are set to keep
    to it, but no hardware barrier stops a task that takes more."""
    cores: tuple[int, ...] = ()
    """Ids of the CPU cores that are this task's alone; empty if it asked for none."""
    alternative: int = 0
    """Which of the request's alternatives was placed, from 0."""
    simulated: bool = False
    """True if the devices are not real."""
    is_slot: bool = False
    """True if the ids are slots of a node, whose device plugin chose the devices and shows the task no others."""
    gang: TaskGang | None = None
    """None for a task that was placed by itself."""
    is_remote: bool = False
    """Whether the next run of the task may be on another host."""

    @property
    def count(self) -> int:
        """How many devices; of a CPU, how many cores."""
        return len(self.cores) if self.kind == "cpu" else len(self.ids)

    @property
    def is_cooperative(self) -> bool:
        """Whether the device is shared, with nothing but the tasks' good behaviour between them."""
        return self.share is not None

    @property
    def torch_device(self) -> str:
        """The first device as torch names it. ``cpu`` for CPUs, FPGAs and simulated devices.

        Only leased devices are visible to the process, so the first is always number 0.
        """
        kind = None if self.simulated else _TORCH_TYPES.get(self.vendor)
        return f"{kind}:0" if kind and self.kind != "cpu" else "cpu"

    @property
    def torch_backend(self) -> str:
        """What torch.distributed's collectives between such devices go by: ``nccl``, ``hccl`` or ``gloo``."""
        return _TORCH_BACKENDS.get(self.torch_device.partition(":")[0], "gloo")

    def __str__(self) -> str:
        amount = f"{self.share:g} of a (cooperative)" if self.share is not None else f"{self.count} ×"
        mark = " (simulated)" if self.simulated else ""
        return f"{amount} {self.vendor}/{self.model}{mark} on {self.worker}: {', '.join(self.ids)}"


def task_lease(lease: Lease, worker: Worker, alternative: Alternative) -> TaskLease:
    """What the task is told of a lease that the store granted on this worker."""
    devices = {device.id: device for device in worker.devices}
    cpu_cores = tuple(core for claim in lease.claims for core in claim.cores)
    claims = [claim for claim in lease.claims if devices[claim.device_id].kind != "cpu"] or list(lease.claims)
    claims.sort(key=lambda claim: devices[claim.device_id].index)
    first = devices[claims[0].device_id]
    return TaskLease(
        id=lease.id,
        token=lease.token,
        worker=worker.id,
        vendor=first.vendor,
        kind=first.kind,
        model=first.model,
        ids=tuple(claim.device_id for claim in claims),
        indexes=tuple(devices[claim.device_id].index for claim in claims),
        memory_bytes=claims[0].memory_bytes,
        share=alternative.share,
        cores=cpu_cores,
        alternative=lease.alternative,
        simulated=any(devices[claim.device_id].simulated for claim in claims),
        is_slot=worker.node_assigns_devices,
    )


def current_lease() -> TaskLease:
    """The lease of this process.

    :raises NoLeaseError: the process runs without one, as under `dag.test()` or another executor
    """
    text = os.environ.get(LEASE_VARIABLE)
    if not text:
        raise NoLeaseError(
            "the device lease of this process",
            found=f"no {LEASE_VARIABLE} in the environment",
            remedy="Run the task with HeteroExecutor; `airflow hetero config --check` says what is missing",
        )
    try:
        return TaskLease.model_validate_json(text)
    except ValidationError as error:
        raise NoLeaseError(
            f"the device lease in {LEASE_VARIABLE}", found=shorten(text), remedy="Leave that variable to HeteroExecutor"
        ) from error
