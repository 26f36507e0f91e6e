"""How much asynchronous and blocking saves delay a training: `python tests/benchmarks/bench_checkpoint.py`.

The same steps (a matrix product of about 10 ms, on all cores that torch takes) run without saves, with asynchronous
saves and with blocking ones. The stall is what a save adds to the steps' time: the call itself, and the steps that
its writing slows down. The limit: at most 1 % of the step time at a save every 30 s.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.runtime import checkpoint
from hetero_airflow.settings import CHECKPOINT_VARIABLE

SAVE_EVERY_S = 30.0
MAX_STALL = 0.01


def step(a: torch.Tensor, b: torch.Tensor) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    torch.mm(a, b)
    return time.perf_counter() - start


def block(seconds: float, a: torch.Tensor, b: torch.Tensor) -> tuple[int, float]:
    """Run steps for this time. Returns how many, and the seconds that they took."""
    end, count, start = time.perf_counter() + seconds, 0, time.perf_counter()
    while time.perf_counter() < end:
        step(a, b)
        count += 1
    return count, time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CHECKPOINT_VARIABLE] = CheckpointPlace(url=Path(folder).as_uri(), path="bench").model_dump_json()
        measure(arguments.megabytes, arguments.repeat)


def measure(megabytes: int, repeat: int) -> None:
    """One window a repetition: steps alone, then a save and as many steps, for each kind of save."""
    state = {f"layer{number}": torch.randn(megabytes * 10**6 // 4 // 20) for number in range(20)}
    a, b = torch.randn(900, 900), torch.randn(900, 900)
    checkpoint.save(0, state, wait=True)
    calls: dict[bool, list[float]] = {False: [], True: []}
    stalls: dict[bool, list[float]] = {False: [], True: []}
    published = []
    for number in range(1, repeat + 1):
        for wait in (False, True):
            count, alone_s = block(2.0, a, b)
            start = time.perf_counter()
            checkpoint.save(number, state, wait=wait)
            call_s = time.perf_counter() - start
            for _ in range(count):
                step(a, b)
            stalls[wait].append(time.perf_counter() - start - alone_s)
            calls[wait].append(call_s)
            checkpoint.wait()
            published.append(time.perf_counter() - start)
    print(f"state of {megabytes} MB, {repeat} saves each, {os.cpu_count()} cores; median (worst)")
    for wait, name in ((False, "asynchronous"), (True, "blocking")):
        call, stall = statistics.median(calls[wait]), statistics.median(stalls[wait])
        print(
            f"{name:>12}: call {call * 1e3:6.1f} ms ({max(calls[wait]) * 1e3:.1f}), call and slower steps "
            f"{stall * 1e3:6.1f} ms ({max(stalls[wait]) * 1e3:.1f}) = {stall / SAVE_EVERY_S:.2%} of {SAVE_EVERY_S:g} s"
        )
    ratio = statistics.median(stalls[False]) / SAVE_EVERY_S
    print(f"stall {ratio:.2%} of step time at a save every {SAVE_EVERY_S:g} s; the limit is {MAX_STALL:.0%}")
    if ratio > MAX_STALL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
