"""The libraries that a burn-in computes with: numpy on a CPU, torch on accelerators."""

from importlib import import_module
from typing import Any, Protocol

import numpy as np
import psutil

_CPU_PART = 0.25
"""Part of the host's free memory that a CPU's burn-in writes at most; other processes need the rest."""

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd, so that its products with the words' numbers all differ; the golden ratio, as in Fibonacci hashing."""


class UntestableError(Exception):
    """The device can't be tested here."""


class ComputeBackend(Protocol):
    """One device and a library that computes on it."""

    name: str
    precisions: tuple[str, ...]

    def matrices(self, precision: str) -> tuple[Any, Any]:
        """Two square matrices of random -1, 0 and 1, the same in each call."""

    def multiply(self, a: Any, b: Any) -> Any:
        """Their product; waits until it is computed."""

    def is_equal(self, a: Any, b: Any) -> bool:
        """Whether two matrices are equal bit by bit."""

    def to_host(self, matrix: Any) -> Any:
        """The matrix as a numpy array of 64-bit integers."""

    def allocate(self) -> list[Any]:
        """Blocks of 64-bit words, most of the free memory together."""

    def write(self, block: Any, pattern: int, offset: int) -> None:
        """Set each word to the pattern; with pattern 0, to its number from the offset times an odd constant."""

    def holds(self, block: Any, pattern: int, offset: int) -> bool:
        """Whether each word is as `write` set it."""


def _random_signs(size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1977)
    return rng.integers(-1, 2, (size, size)), rng.integers(-1, 2, (size, size))


class NumpyBackend:
    """The CPU, with numpy.

    :param size: rows of the matrices
    :param memory_bytes: upper limit of the memory that is written
    """

    name = "cpu"
    precisions: tuple[str, ...] = ("float32", "float64")

    def __init__(self, size: int, memory_bytes: int, block_bytes: int) -> None:
        self._size, self._block_words = size, block_bytes // 8
        self._words = min(memory_bytes, int(psutil.virtual_memory().available * _CPU_PART)) // 8

    def matrices(self, precision: str) -> tuple[Any, Any]:
        """See `ComputeBackend.matrices`."""
        a, b = _random_signs(self._size)
        return a.astype(precision), b.astype(precision)

    def multiply(self, a: Any, b: Any) -> Any:
        """See `ComputeBackend.multiply`."""
        return a @ b

    def is_equal(self, a: Any, b: Any) -> bool:
        """See `ComputeBackend.is_equal`."""
        return bool(np.array_equal(a, b))

    def to_host(self, matrix: Any) -> Any:
        """See `ComputeBackend.to_host`."""
        return matrix.astype(np.int64)

    def allocate(self) -> list[Any]:
        """See `ComputeBackend.allocate`."""
        full, rest = divmod(self._words, self._block_words)
        sizes = [self._block_words] * full + [rest] * bool(rest)
        return [np.empty(size, np.int64) for size in sizes]

    def write(self, block: Any, pattern: int, offset: int) -> None:
        """See `ComputeBackend.write`."""
        block[:] = pattern or self._numbers(len(block), offset)

    def holds(self, block: Any, pattern: int, offset: int) -> bool:
        """See `ComputeBackend.holds`."""
        return bool(np.all(block == (pattern or self._numbers(len(block), offset))))

    def _numbers(self, count: int, offset: int) -> Any:
        with np.errstate(over="ignore"):
            return np.arange(offset, offset + count, dtype=np.int64) * np.int64(_MIX)


class TorchBackend:
    """A device that torch computes on.

    :param module: torch's module of the device type, such as ``torch.cuda``
    :param part: of the free memory that is written
    """

    precisions: tuple[str, ...] = ("float16", "float32")

    def __init__(self, torch: Any, module: Any, device: str, size: int, part: float, block_bytes: int) -> None:
        self._torch, self._module, self._device = torch, module, device
        self._size, self._part, self._block_words = size, part, block_bytes // 8
        self.name = f"{device} {module.get_device_name(device)}"

    def matrices(self, precision: str) -> tuple[Any, Any]:
        """See `ComputeBackend.matrices`."""
        dtype = getattr(self._torch, precision)
        a, b = (self._torch.from_numpy(matrix).to(self._device, dtype) for matrix in _random_signs(self._size))
        return a, b

    def multiply(self, a: Any, b: Any) -> Any:
        """See `ComputeBackend.multiply`."""
        product = a @ b
        self._module.synchronize()
        return product

    def is_equal(self, a: Any, b: Any) -> bool:
        """See `ComputeBackend.is_equal`."""
        return bool(self._torch.equal(a, b))

    def to_host(self, matrix: Any) -> Any:
        """See `ComputeBackend.to_host`."""
        return matrix.double().cpu().numpy().astype(np.int64)

    def allocate(self) -> list[Any]:
        """See `ComputeBackend.allocate`. Leaves room for the comparison of one block."""
        self._module.empty_cache()
        free, _ = self._module.mem_get_info()
        words = int((free - 3 * 8 * self._block_words) * self._part) // 8
        if words < self._block_words:
            raise UntestableError(f"only {free >> 20} MiB of its memory are free: another process uses it")
        blocks: list[Any] = []
        try:
            while len(blocks) * self._block_words < words:
                blocks.append(self._torch.empty(self._block_words, dtype=self._torch.int64, device=self._device))
        except self._torch.OutOfMemoryError:
            if not blocks:
                raise UntestableError("another process uses its memory") from None
        return blocks

    def write(self, block: Any, pattern: int, offset: int) -> None:
        """See `ComputeBackend.write`."""
        if pattern:
            block.fill_(pattern)
        else:
            end = offset + len(block)
            self._torch.arange(offset, end, dtype=self._torch.int64, device=self._device, out=block)
            block.mul_(_MIX)
        self._module.synchronize()

    def holds(self, block: Any, pattern: int, offset: int) -> bool:
        """See `ComputeBackend.holds`."""
        if pattern:
            return bool((block == pattern).all())
        end = offset + len(block)
        wanted = self._torch.arange(offset, end, dtype=self._torch.int64, device=self._device).mul_(_MIX)
        return bool((block == wanted).all())


def torch_backend(device: str, size: int, part: float, block_bytes: int) -> ComputeBackend:
    """A `TorchBackend` on ``cuda:0`` (also AMD's) or ``npu:0``.

    :raises UntestableError: torch is not installed, or is built without support for the device
    :raises RuntimeError: torch supports such a device, but sees none
    """
    kind = device.partition(":")[0]
    try:
        torch = import_module("torch")
        if kind == "npu":
            import_module("torch_npu")
    except ImportError as error:
        raise UntestableError(f"no software here computes on it: {error}") from None
    version = torch.version
    is_built = bool(version.cuda or version.hip) if kind == "cuda" else hasattr(torch, kind)
    if kind not in ("cuda", "npu") or not is_built:
        raise UntestableError(f"torch {torch.__version__} here does not compute on {kind} devices")
    module = getattr(torch, kind)
    if not module.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no {kind} device, though one should exist")
    module.set_device(device)
    if kind == "cuda":
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return TorchBackend(torch, module, device, size, part, block_bytes)
