"""The burn-in: a real computation on one device that shows whether the device works again.

``python -m hetero_airflow.discovery.health.burn_in cuda:0 20 180`` computes for 20 s on torch's device ``cuda:0``, ends
itself after 180 s, and prints a `BurnInResult` as JSON. The caller binds the device with the variables of a lease
(`hetero_airflow.runtime.visible_devices`), so the process sees no other device. ``cpu`` and ``simulated`` compute with
numpy on the CPU.

Two checks run in turns until the time is over:

- Products of matrices with entries -1, 0 and 1. Every sum is exact in half and single precision, so there is one right
  result. The CPU checks the first product by R. Freivalds' method ("Probabilistic machines can use less running time",
  IFIP 1977: A(Bx) = Cx for random x, here in 64-bit integers). Every further product must equal the first bit by bit.
- Memory. Most of the free memory is written with alternating bits, their complement, and numbers that differ in each
  word. It is read back after all of it was written, as in the classic march tests (A. van de Goor, "Testing
  Semiconductor Memories", 1991).
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any

import numpy as np
import psutil
from pydantic import BaseModel, ConfigDict

_CPU_PART = 0.25
"""Part of the host's free memory that a CPU's burn-in writes at most; other processes need the rest."""

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd, so that its products with the words' numbers all differ; the golden ratio, as in Fibonacci hashing."""


class UntestableError(Exception):
    """The device can't be tested here."""


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
        """Two square matrices of random -1, 0 and 1, the same in each call."""
        a, b = _random_signs(self._size)
        return a.astype(precision), b.astype(precision)

    def multiply(self, a: Any, b: Any) -> Any:
        """Their product; waits until it is computed."""
        return a @ b

    def is_equal(self, a: Any, b: Any) -> bool:
        """Whether two matrices are equal bit by bit."""
        return bool(np.array_equal(a, b))

    def to_host(self, matrix: Any) -> Any:
        """The matrix as a numpy array of 64-bit integers."""
        return matrix.astype(np.int64)

    def allocate(self) -> list[Any]:
        """Blocks of 64-bit words, most of the free memory together."""
        full, rest = divmod(self._words, self._block_words)
        sizes = [self._block_words] * full + [rest] * bool(rest)
        return [np.empty(size, np.int64) for size in sizes]

    def write(self, block: Any, pattern: int, offset: int) -> None:
        """Set each word to the pattern; with pattern 0, to its number from the offset times an odd constant."""
        block[:] = pattern or self._numbers(len(block), offset)

    def holds(self, block: Any, pattern: int, offset: int) -> bool:
        """Whether each word is as `write` set it."""
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
        """See `NumpyBackend.matrices`."""
        dtype = getattr(self._torch, precision)
        a, b = (self._torch.from_numpy(matrix).to(self._device, dtype) for matrix in _random_signs(self._size))
        return a, b

    def multiply(self, a: Any, b: Any) -> Any:
        """See `NumpyBackend.multiply`."""
        product = a @ b
        self._module.synchronize()
        return product

    def is_equal(self, a: Any, b: Any) -> bool:
        """See `NumpyBackend.is_equal`."""
        return bool(self._torch.equal(a, b))

    def to_host(self, matrix: Any) -> Any:
        """See `NumpyBackend.to_host`."""
        return matrix.double().cpu().numpy().astype(np.int64)

    def allocate(self) -> list[Any]:
        """See `NumpyBackend.allocate`. Leaves room for the comparison of one block."""
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
        """See `NumpyBackend.write`."""
        if pattern:
            block.fill_(pattern)
        else:
            end = offset + len(block)
            self._torch.arange(offset, end, dtype=self._torch.int64, device=self._device, out=block)
            block.mul_(_MIX)
        self._module.synchronize()

    def holds(self, block: Any, pattern: int, offset: int) -> bool:
        """See `NumpyBackend.holds`."""
        if pattern:
            return bool((block == pattern).all())
        end = offset + len(block)
        wanted = self._torch.arange(offset, end, dtype=self._torch.int64, device=self._device).mul_(_MIX)
        return bool((block == wanted).all())


ComputeBackend = NumpyBackend | TorchBackend
"""One device and a library that computes on it."""


def torch_backend(device: str, size: int, part: float, block_bytes: int) -> TorchBackend:
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


_SIZE = 2048
"""Rows of the matrices: the sums are at most 2,048, which half precision represents exactly."""

_CPU_SIZE = 512
_BLOCK_BYTES = 256 << 20
_CPU_BYTES = 256 << 20
_SIMULATED_BYTES = 16 << 20
_MEMORY_PART = 0.9
"""Part of a device's free memory that is written."""

_ROUNDS = 3
"""Number of random vectors that check a product: each misses an error with a probability of at most 1 in 65,535."""


class BurnInOutcome(StrEnum):
    """How a burn-in ended."""

    PASSED = "passed"
    """All results and all memory were right."""
    FAILED = "failed"
    """A result was wrong, or the device was unusable."""
    UNTESTED = "untested"
    """Nothing is known: no software here computes on such a device, or other processes use its memory."""


class BurnInCheck(BaseModel):
    """The measurements of one kind of check."""

    model_config = ConfigDict(frozen=True)

    name: str
    """``multiply float16``, ``memory``."""
    times: int
    """Number of products, or of passes over the memory."""
    throughput: float
    """Floating-point operations per second, or bytes written and read per second."""
    bytes: int = 0
    """Bytes of memory in each pass."""


class BurnInResult(BaseModel):
    """The result of a burn-in."""

    model_config = ConfigDict(frozen=True)

    outcome: BurnInOutcome
    device: str
    """Its name in torch or numpy."""
    simulated: bool = False
    """Whether the device is simulated, so that a CPU computed in its place."""
    checks: tuple[BurnInCheck, ...] = ()
    found: str = ""
    """What was wrong, or why no test was possible."""


class WrongResultError(Exception):
    """The device computed a wrong result, or its memory lost a value."""


def run_checks(
    backend: ComputeBackend, seconds: float, clock: Callable[[], float] = time.monotonic
) -> tuple[BurnInCheck, ...]:
    """Run all checks in turns for about this many seconds, each at least once.

    :raises WrongResultError: a result or the memory was wrong
    """
    end = clock() + seconds
    products = [_MatrixCheck(backend, precision) for precision in backend.precisions]
    memory = _MemoryCheck(backend)
    while True:
        for product in products:
            product.run(min(end, clock() + seconds / 8), clock)
        memory.run(clock)
        if clock() >= end:
            return (*(product.result() for product in products), memory.result())


class _MatrixCheck:
    def __init__(self, backend: ComputeBackend, precision: str) -> None:
        self._backend, self._precision = backend, precision
        self._a, self._b = backend.matrices(precision)
        self._right = backend.multiply(self._a, self._b)
        a, b, c = (backend.to_host(matrix) for matrix in (self._a, self._b, self._right))
        if not is_product(a, b, c):
            raise WrongResultError(f"a product in {precision} is wrong")
        self._size, self._times, self._spent_s = len(a), 0, 0.0

    def run(self, until: float, clock: Callable[[], float]) -> None:
        while True:
            begin = clock()
            product = self._backend.multiply(self._a, self._b)
            self._spent_s += clock() - begin
            self._times += 1
            if not self._backend.is_equal(product, self._right):
                raise WrongResultError(f"product {self._times} in {self._precision} differs from the first")
            if clock() >= until:
                return

    def result(self) -> BurnInCheck:
        speed = 2 * self._size**3 * self._times / max(self._spent_s, 1e-9)
        return BurnInCheck(name=f"multiply {self._precision}", times=self._times, throughput=speed)


class _MemoryCheck:
    _PATTERNS = (0x5555555555555555, ~0x5555555555555555, 0)

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend, self._times, self._spent_s = backend, 0, 0.0
        self._blocks = backend.allocate()
        self._bytes = 8 * sum(len(block) for block in self._blocks)

    def run(self, clock: Callable[[], float]) -> None:
        begin = clock()
        for pattern in self._PATTERNS:
            for offset, block in self._numbered():
                self._backend.write(block, pattern, offset)
            for offset, block in self._numbered():
                if not self._backend.holds(block, pattern, offset):
                    raise WrongResultError(f"memory between word {offset} and {offset + len(block)} lost its content")
        self._spent_s += clock() - begin
        self._times += 1

    def _numbered(self) -> list[tuple[int, Any]]:
        offsets = [sum(len(block) for block in self._blocks[:number]) for number in range(len(self._blocks))]
        return list(zip(offsets, self._blocks, strict=True))

    def result(self) -> BurnInCheck:
        moved = 2 * len(self._PATTERNS) * self._bytes * self._times
        speed = moved / max(self._spent_s, 1e-9)
        return BurnInCheck(name="memory", times=self._times, throughput=speed, bytes=self._bytes)


def is_product(a: Any, b: Any, c: Any) -> bool:
    """Whether c is the product of a and b (numpy arrays of 64-bit integers), checked with `_ROUNDS` random vectors.

    >>> a, b = np.arange(9).reshape(3, 3), np.eye(3, dtype=int)
    >>> is_product(a, b, a), is_product(a, b, a + 1)
    (True, False)
    """
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        x = rng.integers(1, 1 << 16, size=b.shape[1])
        if not np.array_equal(a @ (b @ x), c @ x):
            return False
    return True


def open_backend(device: str) -> ComputeBackend:
    """The backend for a device name of torch, for ``cpu``, or for ``simulated`` (a CPU in its place).

    :raises UntestableError: no software here computes on it
    """
    if device in ("cpu", "simulated"):
        return NumpyBackend(_CPU_SIZE, _CPU_BYTES if device == "cpu" else _SIMULATED_BYTES, _BLOCK_BYTES)
    return torch_backend(device, _SIZE, _MEMORY_PART, _BLOCK_BYTES)


def run_burn_in(device: str, seconds: float) -> BurnInResult:
    """The result of a burn-in. An exception of a library is a result, too."""
    is_simulated = device == "simulated"
    name = "cpu" if is_simulated else device
    outcome, problem = BurnInOutcome.FAILED, ""
    checks: tuple[BurnInCheck, ...] = ()
    try:
        backend = open_backend(device)
        name = backend.name
        checks = run_checks(backend, seconds)
        outcome = BurnInOutcome.PASSED
    except UntestableError as error:
        outcome, problem = BurnInOutcome.UNTESTED, str(error)
    except WrongResultError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001  a broken device can make its library raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return BurnInResult(outcome=outcome, device=name, simulated=is_simulated, checks=checks, found=problem)


def main(arguments: Sequence[str]) -> int:
    """Arguments: the device, the seconds of the burn-in, and the seconds after which the process ends itself."""
    signal.alarm(math.ceil(float(arguments[2])))  # a hung driver, or a parent that was killed
    os.nice(10)
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # output that libraries print can't damage the answer
        answer.write(run_burn_in(arguments[0], float(arguments[1])).model_dump_json().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
