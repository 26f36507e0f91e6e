"""How much of the loading `checkpoint.loader` hides behind the steps: `python tests/benchmarks/bench_loader.py`.

A batch waits for a store (a pause) and is decoded; a step is a matrix product on one core. Beside it, in the same run:
a plain DataLoader, without and with a worker. The ratio is the wall time of all steps, divided by what the steps alone
or the loads alone take, whichever is longer. The limit: 1.10 where a thread or a worker loads.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hetero_airflow.runtime import checkpoint

MAX_RATIO = 1.10
STEP_S = 0.02


class Late(Dataset[torch.Tensor]):
    """Each item waits, and is decoded."""

    def __init__(self, count: int, wait_s: float) -> None:
        self._count = count
        self._wait_s = wait_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._wait_s)
        return torch.full((64, 1024), index, dtype=torch.uint8).float().div_(255)


def step() -> None:
    """Compute for `STEP_S`."""
    end = time.perf_counter() + STEP_S
    a = torch.ones(128, 128)
    while time.perf_counter() < end:
        torch.mm(a, a)


def seconds_of(count: int, batches: Iterator[Any], compute: Callable[[], None]) -> float:
    """How long the steps take; the first batch, which starts the workers, does not count."""
    next(batches)
    start = time.perf_counter()
    for _ in islice(batches, count):
        compute()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0.0
    print(f"{arguments.steps} steps of {STEP_S * 1e3:.0f} ms, {arguments.repeat} times; median (worst)")
    for share in (0.5, 0.9, 1.5):
        data = Late(arguments.steps + 4, share * STEP_S)
        kinds: dict[str, Callable[[], Iterator[Any]]] = {
            "plain": lambda data=data: iter(DataLoader(data, None)),
            "plain, 1 worker": lambda data=data: iter(DataLoader(data, None, num_workers=1)),
            "loader": lambda data=data: checkpoint.loader(data),
            "loader, 1 worker": lambda data=data: checkpoint.loader(DataLoader(data, None, num_workers=1)),
        }
        ratios: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(arguments.repeat):
            alone = seconds_of(arguments.steps, cycle([None]), step)
            loads = seconds_of(arguments.steps, iter(DataLoader(data, None)), lambda: None)
            for name, make in kinds.items():
                ratios[name].append(seconds_of(arguments.steps, make(), step) / max(alone, loads))
        for name, values in ratios.items():
            median = statistics.median(values)
            print(f"a load takes {share:3.0%} of a step, {name:>16}: {median:.2f} ({max(values):.2f})")
            if name.startswith("loader"):
                worst = max(worst, median)
    print(f"the worst median is {worst:.2f}; the limit is {MAX_RATIO:.2f}")
    raise SystemExit(worst > MAX_RATIO)


if __name__ == "__main__":
    main()
