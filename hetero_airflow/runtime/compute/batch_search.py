"""The size of a batch that the leased device has memory for.

The memory of a step grows with its rows, nearly along a line. Two small probes give the line, and each further one
takes the size at which the line comes to the limit, less a reserve. So a search takes about five probes, and none of
them is meant to fail: a step that comes to a hard limit can hang on a CPU (see `memory`).

Rejected: doubling until a step fails, as Lightning and Accelerate do, which makes most of its probes at the limit and
leaves no reserve; a size computed from the model, which does not know what kernels and allocators take besides.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from hetero_airflow.contract.task_lease import TaskLease, current_lease, torch_device
from hetero_airflow.errors import NoLeaseError, OutOfMemory, RequestError
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.compute.kept import KeptResults
from hetero_airflow.runtime.compute.memory import DeviceMemory, device_memory, is_out_of_memory
from hetero_airflow.runtime.compute.untouched import modules_in, untouched
from hetero_airflow.runtime.device_features import leased_features
from hetero_airflow.runtime.gang.ranks import process_group, rank
from hetero_airflow.units import format_bytes

logger = logging.getLogger(__name__)

MAX_PROBES = 12
MAX_TARGET = 1 << 20

_AIM, _ENOUGH, _AT_MOST = 0.91, 0.88, 0.94
"""Parts of the memory for batches: what a probe aims at, with what the search ends, and what a size may take. The rest
stays free, since later steps have other shapes, and memory is in pieces."""

_ROOMY = 0.4
"""A training that takes less of the memory is far from the limit, whatever is lost in pieces."""

_GROWTH = 16
"""A probe has at most so many times the rows of the largest one that fits: beyond, the line may bend."""

_FIRST, _SECOND = 4, 16
"""Rows of the two small probes."""


@dataclass(frozen=True)
class Batch:
    """How a rank makes an optimizer step: of ``rows`` rows, ``size`` at once.

    The loader reads ``rows`` rows, so that its position does not depend on the device; `parts` cuts them.

    >>> batch = Batch(size=3, accumulate=2, rows=5)
    >>> [(weight, part.tolist()) for weight, part in batch.parts(torch.arange(5))]
    [(0.6, [0, 1, 2]), (0.4, [3, 4])]
    """

    size: int
    """Rows that the device computes at once, at most."""
    accumulate: int
    """How often it does so for an optimizer step."""
    rows: int
    """Rows of an optimizer step on this rank."""

    def parts(self, rows: Any) -> Iterator[tuple[float, Any]]:
        """The rows in parts that the device has memory for, each with its weight: its part of all rows.

        The weighted sum of the mean losses of all parts is the mean loss of all rows.

        :param rows: a tensor or an array, or a dict, list or tuple of them, each with the same number of rows
        :raises RequestError: something else, or different numbers of rows
        """
        lengths = set(_lengths(rows))
        if len(lengths) != 1:
            found = f"different numbers of rows: {sorted(lengths)}" if lengths else "no tensor and no array"
            raise RequestError("rows", type(rows).__name__, found=found, remedy="Pass what the loader has returned")
        (total,) = lengths
        for start in range(0, total, self.size):
            stop = min(start + self.size, total)
            yield (stop - start) / total, _cut(rows, start, stop)


def batch_size(step: Callable[[int], object], target: int = 2048, *, state: Mapping[str, Any]) -> Batch:
    """How many rows the leased device can compute at once, and how often for an optimizer step of `target` rows.

    `step` is called at most 12 times. Afterwards all that is in `state` is as before, and so are the gradients, buffers
    and modes of its modules, and the random generators. The result is kept for later runs of the task on such a device;
    they call `step` once. All ranks call this function, and get the same size.

    :param step: makes a whole training step with as many rows as it is told, as large as rows of the training can be
    :param target: rows of an optimizer step, over all ranks
    :param state: what the training saves: see `checkpoint.steps`
    :raises RequestError: a wrong target or state, a sharded model, or a device whose memory can't be measured
    :raises OutOfMemory: not even one row fits
    """
    from hetero_airflow.runtime.checkpoint import session

    return _BatchSearch(session(), step, _rows_of_rank(target), state).run()


class _BatchSearch:
    def __init__(
        self, session: CheckpointSession, step: Callable[[int], object], rows: int, state: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._step = step
        self._rows = rows
        self._state = state
        self._modules = modules_in(state)
        _refuse_sharded(self._modules)
        lease = _lease()
        self._memory: DeviceMemory = device_memory(torch_device(), lease.memory_bytes if lease else None)
        self._digest = self._result_digest(lease)
        self._base_bytes = 0
        self._parts: dict[int, float] = {}
        """Rows → the part of the memory that they took in a probe."""
        self._has_warned = False

    def run(self) -> Batch:
        kept = KeptResults(self._session, "batch_sizes")
        found = kept.read(self._digest) if rank() == 0 else None
        known = self._session.collectives.broadcast(found if isinstance(found, int) and 0 < found <= MAX_TARGET else 0)
        with untouched(self._state):
            self._memory.release()
            self._base_bytes = self._memory.highest_bytes(lambda: None)
            largest = known if known and self._still_fits(known) else largest_that_fits(self._used, self._rows)
            self._memory.settle(is_tight=self._parts.get(largest, 1) > _ROOMY)
        if not largest:
            raise OutOfMemory(
                "a batch of one row",
                found=f"no memory for it: this process may take {format_bytes(self._memory.limit_bytes)} and has "
                f"{format_bytes(self._base_bytes)} already",
                remedy="Use a device with more memory, a smaller model, shorter rows, or a sharded model",
            )
        if rank() == 0 and largest != known:
            kept.keep(self._digest, largest)
        return self._batch(largest)

    def _batch(self, largest: int) -> Batch:
        accumulate = math.ceil(self._rows / largest)
        batch = Batch(size=math.ceil(self._rows / accumulate), accumulate=accumulate, rows=self._rows)
        logger.info(
            "Batches of %d rows, %d for an optimizer step of %d; trial steps: %d; memory for this process: %s.",
            batch.size, accumulate, self._rows, len(self._parts), format_bytes(self._memory.limit_bytes),
        )  # fmt: skip
        norms = (part for module in self._modules for part in module.modules())
        if accumulate > 1 and any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in norms):
            logger.warning(
                "The model has BatchNorm, which sees %d rows at once: %d such batches are not one of %d rows.",
                batch.size, accumulate, self._rows,
            )  # fmt: skip
        return batch

    def _still_fits(self, size: int) -> bool:
        used = self._used(size) if size <= self._rows else None
        return used is not None and used <= _AT_MOST

    def _used(self, size: int) -> float | None:
        """The part of the memory for batches that a step takes, on the rank where it is largest; None if it failed."""
        self._memory.release()
        try:
            highest_bytes = self._memory.highest_bytes(lambda: self._make_step(size))
            used = (highest_bytes - self._base_bytes) / max(1, self._memory.limit_bytes - self._base_bytes)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            used = math.inf
        self._parts[size] = used = self._session.collectives.largest(used)
        return None if math.isinf(used) else used

    def _make_step(self, size: int) -> None:
        loss = self._step(size)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            loss = loss.item()
        if isinstance(loss, float) and not math.isfinite(loss) and not self._has_warned:
            self._has_warned = True
            logger.warning("The loss of a trial step with %d rows is %s.", size, loss)

    def _result_digest(self, lease: TaskLease | None) -> str:
        """What the result depends on, as far as it is known."""
        tensors = chain.from_iterable(module.state_dict().items() for module in self._modules)
        facts = [
            [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in tensors if hasattr(tensor, "shape")],
            [lease.vendor, lease.model, lease.share, lease.memory_bytes] if lease else str(torch_device()),
            leased_features().training_dtype,
            self._rows,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def largest_that_fits(used: Callable[[int], float | None], most: int) -> int:
    """The largest of the probed sizes that leaves a reserve; 0 if not even one row does. At most 12 probes.

    :param used: the part of the memory that a size takes; None if it does not fit. It grows nearly along a line
    :param most: no larger size is probed

    >>> largest_that_fits(lambda size: 0.1 + size / 1000, 2048), largest_that_fits(lambda size: 0.1, 2048)
    (810, 2048)
    """
    measured: dict[int, float] = {}
    too_large = most + 1
    size = min(_FIRST, most)
    for _ in range(MAX_PROBES):
        part = used(size)
        if part is not None:
            measured[size] = part
        if part is None or part > _AT_MOST:
            too_large = min(too_large, size)
        size = _next_size(measured, too_large, most)
        if not size:
            break
    return max((size for size in measured if size < too_large), default=0)


def _next_size(measured: Mapping[int, float], too_large: int, most: int) -> int:
    """The size to probe next; 0 if the largest that fits is known well enough."""
    fitting = [size for size in measured if size < too_large]
    if not fitting:
        return too_large // 4 or (1 if too_large > 1 else 0)
    largest = max(fitting)
    if largest >= min(most, too_large - 1) or measured[largest] >= _ENOUGH:
        return 0
    line = [size for size in measured if size != largest]
    if not line:
        return min(_SECOND, most, too_large - 1)
    other = max(line)
    slope = (measured[other] - measured[largest]) / (other - largest)
    size = largest + int((_AIM - measured[largest]) / slope) if slope > 0 else largest * _GROWTH
    size = min(size, largest * _GROWTH, most)
    if size >= too_large or size <= largest:
        size = (largest + too_large) // 2 if too_large <= most else 0
    return size


def _rows_of_rank(target: int) -> int:
    distributed = process_group()
    ranks = distributed.get_world_size() if distributed else 1
    if isinstance(target, bool) or not isinstance(target, int) or not 0 < target <= MAX_TARGET:
        raise RequestError("target", target, found="no number of rows", remedy=f"Use 1 to {MAX_TARGET}")
    if target % ranks:
        found = f"{ranks} ranks, which can't have equal parts of it"
        raise RequestError("target", target, found=found, remedy=f"Use {target - target % ranks or ranks}")
    return target // ranks


def _refuse_sharded(modules: list[torch.nn.Module]) -> None:
    names = {type(weight).__name__ for module in modules for weight in module.parameters()}
    wrappers = {type(part).__name__ for module in modules for part in module.modules()}
    if "DTensor" in names or "FullyShardedDataParallel" in wrappers:
        raise RequestError(
            "state",
            "a sharded model",
            found="ranks that must all make the same step, so that none may run out of memory",
            remedy="Choose the size of a batch by hand for such a model",
        )


def _lease() -> TaskLease | None:
    try:
        return current_lease()
    except NoLeaseError:
        return None


def _lengths(rows: Any) -> Iterator[int]:
    if isinstance(rows, Mapping):
        yield from chain.from_iterable(map(_lengths, rows.values()))
    elif isinstance(rows, (list, tuple)):
        yield from chain.from_iterable(map(_lengths, rows))
    elif getattr(rows, "shape", ()):
        yield len(rows)


def _cut(rows: Any, start: int, stop: int) -> Any:
    if isinstance(rows, Mapping):
        return {name: _cut(part, start, stop) for name, part in rows.items()}
    if isinstance(rows, (list, tuple)):
        return [_cut(part, start, stop) for part in rows]
    return rows[start:stop] if getattr(rows, "shape", ()) else rows
