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
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from hetero_airflow.discovery.health.burn_in_backends import (
    ComputeBackend,
    NumpyBackend,
    UntestableError,
    torch_backend,
)

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
