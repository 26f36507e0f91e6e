"""The lease as the task sees it. It travels as JSON in an environment variable."""

import os
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.errors import NoLeaseError, shorten
from hetero_airflow.model.device import NODE_KEY
from hetero_airflow.model.grant import Grant
from hetero_airflow.model.lease import Claim, Lease
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import Worker
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.units import MILLI_PER_DEVICE

if TYPE_CHECKING:
    import torch

_TORCH_TYPES = {
    "nvidia": "cuda", "amd": "cuda", "ascend": "npu", "google": "xla", "intel": "xpu", "habana": "hpu", "aws": "xla",
}  # fmt: skip
"""Vendor → torch's device type; ROCm builds of torch call their devices cuda."""

_TORCH_BACKENDS = {"cuda": "nccl", "npu": "hccl", "hpu": "hccl", "xpu": "xccl"}
"""torch's device type → the backend of its collectives; Gloo for all others."""


LOCAL_RUN = " (local run)"
"""The end of the worker's name in a lease of a local run. No worker of a scheduler has it."""


class TaskGang(BaseModel):
    """The gang of this task. Each member has its own lease."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The name of this placement of the gang; a new placement gets a new name."""
    rank: int
    """The number of this task in the gang, from 0; rank 0 is the leader."""
    hosts: tuple[str, ...]
    """The hosts of the members' workers, by rank."""
    leader: str
    """Id of the leader's lease."""
    first_index: int
    """The leader's map index."""
    network: dict[str, str] = {}
    """Variables that the labels of this worker define: see `gang.network.network_settings`."""

    @property
    def size(self) -> int:
        """The number of tasks."""
        return len(self.hosts)


class TaskLease(BaseModel):
    """The devices that this task can use, and no other task does.

    >>> lease = TaskLease(id="l1", token=7, worker="host-a", vendor="nvidia", kind="gpu", model="a100-sxm4-40gb",
    ...                   ids=("GPU-8f",), indexes=(3,), memory_bytes=2**35, share=None)
    >>> lease.torch_device, lease.is_cooperative
    ('cuda:0', False)
    """

    model_config = ConfigDict(frozen=True)

    id: str
    token: int
    """Fencing token: greater than the token of every earlier lease."""
    worker: str
    vendor: str
    kind: str
    model: str
    ids: tuple[str, ...]
    """The ids of the devices, in the order of their numbers."""
    indexes: tuple[int, ...]
    """The numbers by which the vendor's runtime counts the devices on the host."""
    memory_bytes: int | None
    """The memory of each device, or of the share; None if it is unknown. An integrated GPU has its host's memory. For a
    CPU, the requested host memory, 0 if none."""
    nodes: tuple[str, ...] = ()
    """The device nodes of the devices that have one; see `NODE_KEY`."""
    share: float | None
    """None for whole devices. A share is cooperative: frameworks are configured to keep to it, but no hardware limit
    stops a task that uses more."""
    cores: tuple[int, ...] = ()
    """Ids of the CPU cores that only this task uses; empty if it requested none."""
    alternative: int = 0
    """The number of the alternative of the request that was placed, from 0."""
    simulated: bool = False
    """True if the devices are not real."""
    is_slot: bool = False
    """True if the ids are slots of a Kubernetes node. Its device plugin chose the devices and hides all others."""
    gang: TaskGang | None = None
    """None for a task without a gang."""
    is_remote: bool = False
    """Whether the next run of the task can be on another host."""
    waited_s: float | None = None
    """How long the task waited for it; None if no scheduler placed it."""
    grant: str = ""
    """The signed parts of the lease's `Grant`, packed; empty if the scheduler signs nothing."""
    secret: str = ""
    """The task's secret, encrypted: see `task_secret`. Empty in a local run."""

    @property
    def count(self) -> int:
        """The number of devices, or of cores for a CPU."""
        return len(self.cores) if self.kind == "cpu" else len(self.ids)

    @property
    def is_cooperative(self) -> bool:
        """Whether the device is shared, and only the tasks themselves keep to their shares."""
        return self.share is not None

    @property
    def is_local_run(self) -> bool:
        """Whether a local run took it on this machine, such as `dag.test()`, without a scheduler."""
        return self.worker.endswith(LOCAL_RUN)

    @property
    def torch_device(self) -> str:
        """Torch's name of the first device; ``cpu`` for CPUs, FPGAs and simulated devices.

        The process sees only leased devices, so the first one always has number 0.
        """
        kind = None if self.simulated else _TORCH_TYPES.get(self.vendor)
        return f"{kind}:0" if kind and self.kind not in ("cpu", "fpga") else "cpu"

    @property
    def torch_backend(self) -> str:
        """The backend of torch.distributed for such devices: ``nccl``, ``hccl`` or ``gloo``."""
        return _TORCH_BACKENDS.get(self.torch_device.partition(":")[0], "gloo")

    def __str__(self) -> str:
        amount = f"{self.share:g} of a (cooperative)" if self.share is not None else f"{self.count} ×"
        mark = " (simulated)" if self.simulated else ""
        return f"{amount} {self.vendor}/{self.model}{mark} on {self.worker}: {', '.join(self.ids)}"


def task_lease(lease: Lease, worker: Worker, alternative: Alternative) -> TaskLease:
    """A lease that the store granted on this worker, in the form for the task."""
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
        memory_bytes=claims[0].memory_bytes or (0 if first.kind == "cpu" else None),
        nodes=tuple(str(node) for claim in claims if (node := devices[claim.device_id].details.get(NODE_KEY))),
        share=alternative.share,
        cores=cpu_cores,
        alternative=lease.alternative,
        simulated=any(devices[claim.device_id].simulated for claim in claims),
        is_slot=worker.node_assigns_devices,
    )


def lease_claims(lease: TaskLease) -> tuple[Claim, ...]:
    """What a lease takes of its host; empty where its node chooses the devices."""
    if lease.is_slot or not lease.ids:
        return ()
    memory_bytes = lease.memory_bytes or 0
    if lease.kind == "cpu":
        return (Claim(lease.ids[0], MILLI_PER_DEVICE * len(lease.cores), memory_bytes, lease.cores),)
    milli = MILLI_PER_DEVICE if lease.share is None else round(lease.share * MILLI_PER_DEVICE)
    devices = tuple(Claim(id_, milli, memory_bytes) for id_ in lease.ids)
    return (*devices, Claim("cpu", MILLI_PER_DEVICE * len(lease.cores), 0, lease.cores)) if lease.cores else devices


def checked_devices(lease: TaskLease) -> tuple[str, ...]:
    """The devices of a lease that other processes can use: not CPUs, simulated devices, and those of a pod."""
    return () if lease.kind == "cpu" or lease.simulated or lease.is_slot else lease.ids


def current_lease() -> TaskLease:
    """The lease of this process.

    :raises NoLeaseError: the process has no lease, for example under another executor
    """
    text = os.environ.get(LEASE_VARIABLE)
    if not text:
        raise NoLeaseError(
            "the device lease of this process",
            found=f"no {LEASE_VARIABLE} in the environment",
            remedy="In a task, use HeteroExecutor; `airflow hetero config --check` says what is missing. Outside of "
            'Airflow, take a lease with hetero_airflow.runtime.local_lease("gpu")',
        )
    try:
        return TaskLease.model_validate_json(text)
    except ValidationError as error:
        raise NoLeaseError(
            f"the device lease in {LEASE_VARIABLE}",
            found=shorten(text),
            remedy="Unset it; only HeteroExecutor sets it",
        ) from error


def lease_grant(lease: TaskLease, task: str) -> Grant | None:
    """What the scheduler signed for a lease; None if it signed nothing.

    :param task: the task instance, as `checkpoints.place.checkpoint_path` writes it
    :raises GrantRefused: the text in the lease is no grant
    """
    return Grant.unpack(lease.grant, lease=lease.id, token=lease.token, task=task) if lease.grant else None


def torch_device() -> "torch.device":
    """The device to train on: the leased device; without a lease the first GPU, else the CPU. Needs torch.

    If there are several devices, each process that torchrun started has its own. For a share, this sets torch's memory
    limit for this process.
    """
    import torch

    if LEASE_VARIABLE not in os.environ:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    lease = current_lease()
    device = torch.device(lease.torch_device)
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
    if lease.share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(lease.share, device)
    return device
