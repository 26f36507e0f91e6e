import json
import subprocess
import sys

import numpy as np
import pytest

from hetero_airflow.discovery.health import burn_in as module
from hetero_airflow.discovery.health.burn_in import (
    BurnInOutcome,
    BurnInResult,
    NumpyBackend,
    TorchBackend,
    UntestableError,
    WrongResultError,
    is_product,
    run_burn_in,
    run_checks,
    torch_backend,
)

BLOCK = 1 << 12
SMALL = (32, 5 * BLOCK // 2, BLOCK)
"""Rows, bytes of memory, bytes a block: two and a half blocks."""


class Sick(NumpyBackend):
    """A CPU whose nth product has one wrong entry."""

    def __init__(self, wrong_product):
        super().__init__(*SMALL)
        self.left = wrong_product

    def multiply(self, a, b):
        product = super().multiply(a, b)
        self.left -= 1
        if self.left == 0:
            product[7, 3] += 1
        return product


class Forgetful(NumpyBackend):
    """A CPU with one bit of memory that is stuck: always 0, or always 1."""

    def __init__(self, number, stuck_at):
        super().__init__(*SMALL)
        self.number, self.stuck_at = number, stuck_at

    def write(self, block, pattern, offset):
        super().write(block, pattern, offset)
        if offset <= self.number < offset + len(block):
            word = int(block[self.number - offset])
            block[self.number - offset] = word | 4 if self.stuck_at else word & ~4


class Folded(NumpyBackend):
    """A CPU whose blocks of memory are one and the same: what is written to one shows in all."""

    def allocate(self):
        return [super().allocate()[0]] * 2


def test_a_healthy_device_passes_with_its_measurements():
    checks = run_checks(NumpyBackend(*SMALL), 0.01)
    assert [check.name for check in checks] == ["multiply float32", "multiply float64", "memory"]
    assert all(check.times >= 1 and check.throughput > 0 for check in checks)
    assert checks[-1].bytes == 5 * BLOCK // 2


@pytest.mark.parametrize(
    ("wrong_product", "text"), [(1, "a product in float32 is wrong"), (4, "differs from the first")]
)
def test_one_wrong_entry_of_one_product_is_found(wrong_product, text):
    with pytest.raises(WrongResultError, match=text):
        run_checks(Sick(wrong_product), 0.05)


@pytest.mark.parametrize("number", [0, BLOCK // 8, 5 * BLOCK // 16 - 1])
@pytest.mark.parametrize("stuck_at", [0, 1])
def test_one_stuck_bit_of_memory_is_found(number, stuck_at):
    with pytest.raises(WrongResultError, match="lost its content"):
        run_checks(Forgetful(number, stuck_at), 0.01)


def test_memory_with_two_addresses_for_one_word_is_found():
    with pytest.raises(WrongResultError, match="lost its content"):
        run_checks(Folded(*SMALL), 0.01)


def test_a_burn_in_runs_for_its_given_time():
    ticks = iter(range(10_000))
    checks = run_checks(NumpyBackend(*SMALL), 500, clock=lambda: float(next(ticks)))
    assert min(check.times for check in checks) >= 4
    assert 500 <= next(ticks) < 1000


def test_a_product_with_one_wrong_entry_is_no_product():
    rng = np.random.default_rng(1)
    a, b = rng.integers(-1, 2, (2, 16, 16))
    wrong = a @ b
    wrong[3, 5] -= 1
    assert (is_product(a, b, a @ b), is_product(a, b, wrong)) == (True, False)


# -- torch -------------------------------------------------------------------------------------------------------------


class TorchModule:
    """What torch.cuda is, over torch's own CPU."""

    free = 20 * BLOCK

    def get_device_name(self, device):
        return "stand-in"

    def synchronize(self):
        pass

    def empty_cache(self):
        pass

    def mem_get_info(self):
        return self.free, 2 * self.free


def a_torch_bench(**fields):
    torch = pytest.importorskip("torch")
    backend = TorchModule()
    backend.free = fields.pop("free", backend.free)
    return TorchBackend(torch, backend, "cpu", 64, 0.9, BLOCK)


def test_torch_computes_the_same_and_writes_most_of_the_free_memory():
    bench = a_torch_bench()
    assert bench.name == "cpu stand-in"
    checks = run_checks(bench, 0.01)
    assert [check.name for check in checks] == ["multiply float16", "multiply float32", "memory"]
    assert 14 * BLOCK < checks[-1].bytes <= 17 * BLOCK


def test_a_stuck_bit_is_found_through_torch(monkeypatch):
    bench, write = a_torch_bench(), TorchBackend.write

    def stuck(self, block, pattern, offset):
        write(self, block, pattern, offset)
        block[-1] &= ~1

    monkeypatch.setattr(TorchBackend, "write", stuck)
    with pytest.raises(WrongResultError, match="lost its content"):
        run_checks(bench, 0.01)


def test_a_device_whose_memory_is_in_use_is_untested():
    with pytest.raises(UntestableError, match="another process uses it"):
        run_checks(a_torch_bench(free=3 * BLOCK), 0.01)


@pytest.mark.parametrize("device", ["xla:0", "npu:0", "fpga:0"])
def test_a_device_without_software_is_untested(device):
    with pytest.raises(UntestableError):
        torch_backend(device, 64, 0.9, BLOCK)


def test_a_gpu_that_torch_supports_but_does_not_see_fails(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run_burn_in("cuda:0", 0.01)
    assert result.outcome is BurnInOutcome.FAILED
    assert "sees no cuda device" in result.found


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bench", "outcome", "found"),
    [
        (Sick(1), BurnInOutcome.FAILED, "a product in float32 is wrong"),
        (UntestableError("nobody knows"), BurnInOutcome.UNTESTED, "nobody knows"),
        (
            RuntimeError("CUDA error:\nuncorrectable ECC"),
            BurnInOutcome.FAILED,
            "RuntimeError: CUDA error: uncorrectable ECC",
        ),
    ],
)
def test_every_exception_is_a_result(monkeypatch, bench, outcome, found):
    def open_bench(device):
        if isinstance(bench, Exception):
            raise bench
        return bench

    monkeypatch.setattr(module, "open_backend", open_bench)
    result = run_burn_in("cpu", 0.01)
    assert (result.outcome, result.found, result.checks) == (outcome, found, ())


@pytest.mark.parametrize(("device", "is_simulated"), [("cpu", False), ("simulated", True)])
def test_the_program_computes_on_this_cpu_and_answers_as_json(device, is_simulated):
    command = [sys.executable, "-P", "-m", "hetero_airflow.discovery.health.burn_in", device, "0.1", "60"]
    done = subprocess.run(command, capture_output=True, check=True)
    result = BurnInResult.model_validate_json(done.stdout)
    assert (result.outcome, result.device, result.simulated) == (BurnInOutcome.PASSED, "cpu", is_simulated)
    assert len(json.loads(done.stdout)["checks"]) == 3
    assert result.checks[-1].bytes > 0


def test_the_program_ends_itself_after_its_time_limit():
    command = [sys.executable, "-P", "-m", "hetero_airflow.discovery.health.burn_in", "cpu", "600", "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -14
