"""How good the search for a batch's size is: ``make bench-batch-size``.

Three models train in a process whose memory is limited (RLIMIT_DATA). Printed for each: the size that
`runtime.batch_size` finds, its probes, how it compares with the largest size that can make three steps of the largest
shape (found by halving, each size in a process of its own), and how many of the later steps failed, whose shapes vary.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.settings import CHECKPOINT_VARIABLE

MODELS = ("mlp", "transformer", "convolutions")
MIN_RATIO, MAX_PROBES = 0.85, 12

TRAINING = """
import json, random, resource, sys, time
import torch
from torch import nn
from hetero_airflow.runtime import batch_size
from hetero_airflow.runtime.compute import memory

name, limit_bytes, only, steps = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
torch.set_num_threads(1)
torch.manual_seed(1)
if name == "mlp":
    layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.GELU())]
    model, shape = nn.Sequential(*layers), lambda length: (length, 32)
elif name == "transformer":
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model, shape = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), lambda length: (length, 32)
else:
    convolutions = [part for _ in range(4) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    model, shape = nn.Sequential(*convolutions), lambda length: (4, length, length)
optimizer = torch.optim.Adam(model.parameters())
probes = []

def step(size, length=48):
    optimizer.zero_grad()
    loss = model(torch.randn(size, *shape(length))).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

def probe(size):
    probes.append(size)
    return step(size)

if only:
    memory.device_memory(torch.device("cpu"), None)  # blocks are mapped as in the search
    for _ in range(3):
        step(only)
    sys.exit()
start = time.perf_counter()
found = batch_size(probe, 1 << 20, state={"model": model, "optimizer": optimizer}).size
seconds = time.perf_counter() - start
random.seed(1)
failed = 0
for number in range(steps):
    try:
        step(found if number % 10 else random.randint(1, found), random.randint(16, 48))
    except RuntimeError:
        failed += 1
print(json.dumps([found, len(probes), seconds, failed]))
"""


def train(name: str, limit_bytes: int, size: int, steps: int, timeout_s: float) -> str | None:
    """What the process says; None if it failed. One that comes to the limit can hang."""
    command = [sys.executable, "-c", TRAINING, name, str(limit_bytes), str(size), str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode and not size:
        raise RuntimeError(done.stderr)
    return None if done.returncode else done.stdout


def largest_that_fits(name: str, limit_bytes: int, found: int) -> int:
    """By halving, to 1 %."""
    start = time.perf_counter()
    fits, too_large = found, 0
    if train(name, limit_bytes, found, 0, 600) is None:
        return 0
    timeout_s = 3 * (time.perf_counter() - start) + 20
    while not too_large or too_large - fits > max(1, fits // 100):
        size = (fits + too_large) // 2 if too_large else fits * 5 // 4 + 1
        if train(name, limit_bytes, size, 0, timeout_s) is None:
            too_large = size
        else:
            fits = size
    return fits


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048, help="the limit")
    parser.add_argument("--steps", type=int, default=500, help="later steps of each model")
    arguments = parser.parse_args()
    limit_bytes = arguments.megabytes << 20
    limits = f"limits: at least {MIN_RATIO}, {MAX_PROBES} probes, 0 failed"
    print(f"{arguments.megabytes} MiB, {arguments.steps} later steps; {limits}")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            place = CheckpointPlace(url=Path(folder).as_uri(), path="bench/batch/run/-1")
            os.environ[CHECKPOINT_VARIABLE] = place.model_dump_json()
            said = train(name, limit_bytes, 0, arguments.steps, 3600)
        assert said is not None, "the search hangs"
        found, probes, seconds, failed = json.loads(said)
        largest = largest_that_fits(name, limit_bytes, found)
        print(
            f"  {name:12} {found:6} rows, {probes} probes in {seconds:.1f} s; {largest} fit: {found / largest:.2f}; "
            f"{failed} of {arguments.steps} steps failed",
            flush=True,
        )


if __name__ == "__main__":
    main()
