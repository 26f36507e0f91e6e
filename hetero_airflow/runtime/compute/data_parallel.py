"""DistributedDataParallel for the ranks of a task, with compressed gradients if the task asks for them.

Buckets, and the overlap of computing and sending, are torch's; NCCL tunes itself.

PowerSGD (Vogels, Karimireddy, Jaggi: "PowerSGD", NeurIPS 2019) sends two thin matrices for each matrix of gradients,
and each rank adds what was lost to its next gradients. That is its memory, without which a resumed training goes
another way. The average that it sends is linear in the ranks' gradients, so only the mean of their memories counts: a
checkpoint has that mean, and any number of ranks goes on from it.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hetero_airflow.contract.task_lease import current_lease, torch_device
from hetero_airflow.errors import RequestError
from hetero_airflow.runtime import checkpoint
from hetero_airflow.settings import COMPRESS_GRADIENTS_VARIABLE, LEASE_VARIABLE

logger = logging.getLogger(__name__)

PLAIN_STEPS = 10
"""Steps before PowerSGD begins: the first gradients matter most (torch's documentation of the hook)."""

_REBUILDING_STEPS = 2
"""DistributedDataParallel arranges its buckets anew after the first step."""

_EPSILON = 1e-8
"""Keeps PowerSGD from dividing by zero where a layer has no gradient."""


class DataParallel(DistributedDataParallel):
    """The model of a rank. Its state has the memory of compressed gradients; see `data_parallel`."""

    def __init__(self, model: torch.nn.Module, compression: str, **options: Any) -> None:
        if compression == "powersgd" and dist.get_backend() == "gloo":
            # Gloo's threads go on with the buckets in another order on each rank, so that their matrices get mixed up.
            size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
            options["bucket_cap_mb"] = size_bytes / (1 << 20) + 1
        super().__init__(model, **options)
        self._memory: _PowerSGDMemory | None = None
        if compression == "fp16":
            self.register_comm_hook(None, fp16_compress_hook)
        elif compression == "powersgd":
            self._memory = _PowerSGDMemory(self.module)
            self.register_comm_hook(None, self._memory.hook)

    def collect(self) -> None:
        """Before a save, on all ranks: take the mean of their memories."""
        if self._memory is not None:
            self._memory.collect()

    def get_extra_state(self) -> dict[str, Any]:
        """The memory, as it was at the last `collect`."""
        return {} if self._memory is None else self._memory.state()

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved memory; without one, or without PowerSGD, nothing changes."""
        if self._memory is not None and state:
            self._memory.restore(state)


class _PowerSGDMemory:
    def __init__(self, model: torch.nn.Module) -> None:
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self._torch = PowerSGDState(
            None,
            start_powerSGD_iter=PLAIN_STEPS,
            orthogonalization_epsilon=_EPSILON,  # pyright: ignore[reportArgumentType]  its default is 0, a float in use
        )
        self._buckets: dict[int, str] = {}
        """Number of a bucket → the names of its parameters."""
        self._collected: dict[str, Any] = {}
        self._restored: dict[str, Mapping[str, Any]] = {}
        """Names of a bucket's parameters → its memory, until the bucket is seen."""

    def hook(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Send a bucket of gradients."""
        if self._torch.iter >= PLAIN_STEPS and bucket.index() not in self._buckets:
            self._begin(bucket)
        return powerSGD_hook(self._torch, bucket)

    def _begin(self, bucket: GradBucket) -> None:
        number, buffer = bucket.index(), bucket.buffer()
        names = "\n".join(self._names[parameter] for parameter in bucket.parameters())
        self._buckets[number] = names
        saved = self._restored.pop(names, None)
        if saved is not None and len(saved["error"]) == len(buffer):
            self._torch.error_dict[number] = saved["error"].to(buffer, copy=True)
            self._torch.q_memory_dict[number] = saved["q"].to(buffer, copy=True)
            self._torch.p_memory_dict[number] = buffer.new_empty(saved["p_length"])
        if bucket.is_last() and self._restored:
            lost = len(self._restored)
            logger.warning("The memory of compressed gradients is lost for %d buckets: others are there now.", lost)
            self._restored = {}

    def collect(self) -> None:
        buckets: dict[str, Mapping[str, Any]] = {}
        for number, names in sorted(self._buckets.items()):
            error = self._torch.error_dict[number].clone()
            dist.all_reduce(error)
            q, p = self._torch.q_memory_dict[number], self._torch.p_memory_dict[number]
            buckets[names] = {"error": error / dist.get_world_size(), "q": q.clone(), "p_length": len(p)}
        name, keys, position, has_gauss, gauss = self._torch.rng.get_state(legacy=True)
        self._collected = {
            "steps": self._torch.iter,
            "buckets": [{"names": names, **memory} for names, memory in (buckets or self._restored).items()],
            "random": (name, keys, position, has_gauss, gauss),
        }

    def state(self) -> dict[str, Any]:
        return self._collected

    def restore(self, state: Mapping[str, Any]) -> None:
        self._torch.iter = min(state["steps"], PLAIN_STEPS - _REBUILDING_STEPS)
        self._torch.rng.set_state(state["random"])
        self._restored = {bucket["names"]: bucket for bucket in state["buckets"]}
        self._collected = dict(state)
        self._buckets = {}


def data_parallel(model: torch.nn.Module, **options: Any) -> DataParallel:
    """The model of this rank, on its leased device, which averages gradients with the other ranks.

    It joins the process group, if the program has not. With ``TorchrunOperator(compress_gradients=…)`` it sends
    compressed gradients. Put it into the state of `checkpoint.steps`: that has the model, and what compressing must
    remember. Outside of torchrun there is one rank.

    :param options: of `torch.nn.parallel.DistributedDataParallel`
    :raises RequestError: the ranks do not agree how to compress
    """
    device = torch_device()
    _join(device)
    compression = os.environ.get(COMPRESS_GRADIENTS_VARIABLE, "")
    everyones: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everyones, compression)
    if len(set(everyones)) > 1:
        raise RequestError(
            "compress_gradients",
            compression,
            found=f"other values on other ranks: {', '.join(sorted(value or 'none' for value in set(everyones)))}",
            remedy="Give all ranks the same value; the operator does",
        )
    made = DataParallel(model.to(device), compression, **options)
    checkpoint.session().before_save.append(made.collect)
    if compression:
        logger.info("Gradients are sent compressed (%s).", compression)
    return made


def _join(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if dist.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if LEASE_VARIABLE in os.environ:
        backend = current_lease().torch_backend
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
