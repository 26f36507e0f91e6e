"""A real computation on one device, to see whether it can be trusted again.

``python -m hetero_airflow.discovery.health.burn_in cuda:0 20 180`` computes for 20 s on torch's device ``cuda:0``, ends
itself after 180 s, and prints a `BurnInResult` as JSON. Whoever starts it binds the device with the variables of a
lease (`hetero_airflow.runtime.visible_devices`), so that it is the only one in sight. ``cpu`` and ``simulated`` compute
on the CPU with numpy.
Two things are checked, in turns until the time is over. Products of matrices whose entries are -1, 0 and 1, so that
every sum is exact in half and single precision and one result is right: the first is checked on the CPU by R.
Freivalds' method ("Probabilistic machines can use less running time", IFIP 1977: A(Bx) = Cx for random x, here in
64-bit integers), every further one bit by bit against the first. And memory: most of what is free is written with
alternating bits, their complement and numbers that differ in each word, and read back when all of it was written, as
in the classic march tests (A. van de Goor, "Testing Semiconductor Memories", 1991).
"""

from __future__ import annotations

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
"""Rows of the matrices: the sums stay below 2,048, which half precision holds exactly."""

_CPU_SIZE = 512
_BLOCK_BYTES = 256 << 20
_CPU_BYTES = 256 << 20
_SIMULATED_BYTES = 16 << 20
_PART = 0.9
"""Of the free memory of a device that is written."""

_ROUNDS = 3
"""Vectors that a product is checked with: each misses an error with a probability of 1 in 65,535 at most."""


class BurnInOutcome(StrEnum):
    """How a burn-in ended."""

    PASSED = "passed"
    """Everything that was computed and read back was right."""
    FAILED = "failed"
    """Something was wrong, or the device could not be used."""
    UNTESTED = "untested"
    """No software here can compute on such a device, or others use its memory: nothing is known."""


class BurnInCheck(BaseModel):
    """What was done of one kind."""

    model_config = ConfigDict(frozen=True)

    name: str
    """``multiply float16``, ``memory``."""
    times: int
    """Products, or passes over the memory."""
    throughput: float
    """Floating-point operations, or bytes written and read, a second."""
    bytes: int = 0
    """Of memory, in each pass."""


class BurnInResult(BaseModel):
    """What a burn-in found."""

    model_config = ConfigDict(frozen=True)

    outcome: BurnInOutcome
    device: str
    """As torch, or numpy, calls it."""
    simulated: bool = False
    """Whether the device is not there and a CPU stood in for it."""
    checks: tuple[BurnInCheck, ...] = ()
    found: str = ""
    """What was wrong, or why nothing could be tested."""


class WrongResultError(Exception):
    """The device computed or remembered something wrong."""


def run_checks(
    bench: ComputeBackend, seconds: float, clock: Callable[[], float] = time.monotonic
) -> tuple[BurnInCheck, ...]:
    """Compute and remember for about that long, each thing once at least; what was done.

    :raises WrongResultError: something was wrong
    """
    end = clock() + seconds
    multiplied = [_MatrixCheck(bench, precision) for precision in bench.precisions]
    memory = _MemoryCheck(bench)
    while True:
        for one in multiplied:
            one.run(min(end, clock() + seconds / 8), clock)
        memory.run(clock)
        if clock() >= end:
            return (*(one.check() for one in multiplied), memory.check())


class _MatrixCheck:
    def __init__(self, bench: ComputeBackend, precision: str) -> None:
        self._bench, self._precision = bench, precision
        self._a, self._b = bench.matrices(precision)
        self._right = bench.multiply(self._a, self._b)
        a, b, c = (bench.to_host(matrix) for matrix in (self._a, self._b, self._right))
        if not is_product(a, b, c):
            raise WrongResultError(f"a product in {precision} is wrong")
        self._size, self._times, self._spent_s = len(a), 0, 0.0

    def run(self, until: float, clock: Callable[[], float]) -> None:
        while True:
            begin = clock()
            product = self._bench.multiply(self._a, self._b)
            self._spent_s += clock() - begin
            self._times += 1
            if not self._bench.is_equal(product, self._right):
                raise WrongResultError(f"product {self._times} in {self._precision} differs from the first")
            if clock() >= until:
                return

    def check(self) -> BurnInCheck:
        speed = 2 * self._size**3 * self._times / max(self._spent_s, 1e-9)
        return BurnInCheck(name=f"multiply {self._precision}", times=self._times, throughput=speed)


class _MemoryCheck:
    _PATTERNS = (0x5555555555555555, ~0x5555555555555555, 0)

    def __init__(self, bench: ComputeBackend) -> None:
        self._bench, self._times, self._spent_s = bench, 0, 0.0
        self._blocks = bench.allocate()
        self._bytes = 8 * sum(len(block) for block in self._blocks)

    def run(self, clock: Callable[[], float]) -> None:
        begin = clock()
        for pattern in self._PATTERNS:
            for offset, block in self._numbered():
                self._bench.write(block, pattern, offset)
            for offset, block in self._numbered():
                if not self._bench.holds(block, pattern, offset):
                    raise WrongResultError(f"memory between word {offset} and {offset + len(block)} lost what it held")
        self._spent_s += clock() - begin
        self._times += 1

    def _numbered(self) -> list[tuple[int, Any]]:
        offsets = [sum(len(block) for block in self._blocks[:number]) for number in range(len(self._blocks))]
        return list(zip(offsets, self._blocks, strict=True))

    def check(self) -> BurnInCheck:
        moved = 2 * len(self._PATTERNS) * self._bytes * self._times
        speed = moved / max(self._spent_s, 1e-9)
        return BurnInCheck(name="memory", times=self._times, throughput=speed, bytes=self._bytes)


def is_product(a: Any, b: Any, c: Any) -> bool:
    """Whether c is the product of a and b, numpy arrays of 64-bit integers, as far as `_ROUNDS` vectors tell.

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
    """What computes on a device that torch calls so, on ``cpu``, or in place of a simulated one.

    :raises UntestableError: nothing here can
    """
    if device in ("cpu", "simulated"):
        return NumpyBackend(_CPU_SIZE, _CPU_BYTES if device == "cpu" else _SIMULATED_BYTES, _BLOCK_BYTES)
    return torch_backend(device, _SIZE, _PART, _BLOCK_BYTES)


def run_burn_in(device: str, seconds: float) -> BurnInResult:
    """The result of a burn-in; whatever a library raises is one."""
    is_simulated = device == "simulated"
    name = "cpu" if is_simulated else device
    try:
        bench = open_backend(device)
        name = bench.name
        checks = run_checks(bench, seconds)
    except UntestableError as error:
        return BurnInResult(outcome=BurnInOutcome.UNTESTED, device=name, simulated=is_simulated, found=str(error))
    except WrongResultError as error:
        return BurnInResult(outcome=BurnInOutcome.FAILED, device=name, simulated=is_simulated, found=str(error))
    except Exception as error:  # noqa: BLE001  a sick device shows in whatever its library raises
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        return BurnInResult(outcome=BurnInOutcome.FAILED, device=name, simulated=is_simulated, found=found)
    return BurnInResult(outcome=BurnInOutcome.PASSED, device=name, simulated=is_simulated, checks=checks)


def main(arguments: Sequence[str]) -> int:
    """Arguments: the device, for how many seconds, and after how many the process ends itself."""
    signal.alarm(math.ceil(float(arguments[2])))  # a hung driver, or a parent that was killed
    os.nice(10)
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # what libraries print can't spoil the answer
        answer.write(run_burn_in(arguments[0], float(arguments[1])).model_dump_json().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
