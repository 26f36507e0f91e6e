"""What compiling costs and saves: ``make bench-compile``.

Each run is a process of its own on two threads, with the places and the secret of one task. Three models train on the
CPU. Printed for each: the first step cold, warm on this host, and warm under another host name; and for six lengths of
a run around the break-even, the time of the run with `runtime.compile` in relation to one without.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.runtime.compute.compiled_code import CACHE_VARIABLE
from hetero_airflow.settings import CHECKPOINT_VARIABLE, LEASE_VARIABLE, TASK_SECRET_VARIABLE
from hetero_airflow.testing.builders import a_task_lease

MODELS = ("mlp", "transformer", "convolutions")
LENGTHS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
"""Parts of the number of steps at which a warm run with compiling takes as long as one without."""
MAX_WARM, MAX_RUN = 0.15, 1.0
MANY = 10**7

TRAINING = """
import json, sys, time
import torch
from torch import nn
from torch.nn import functional
from hetero_airflow.runtime import compile
from hetero_airflow.runtime.compute import compiled_model

class Block(nn.Module):
    def __init__(self, width, attends):
        super().__init__()
        self.attends, self.scale = attends, nn.Parameter(torch.ones(width))
        self.mix, self.gate = nn.Linear(width, width * (3 if attends else 1)), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, rows):
        normed = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        mixed = self.mix(normed)
        if self.attends:
            query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in mixed.chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            mixed = mixed.transpose(1, 2).flatten(2)
        return rows + self.out(functional.silu(self.gate(normed)) * torch.tanh(mixed))

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, images):
        found = self.norm(self.conv(images))
        return images + found * torch.tanh(functional.softplus(found))

name, way, expected, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(2)
torch.manual_seed(1)
if name == "mlp":
    model, rows = nn.Sequential(*[Block(64, False) for _ in range(6)]), torch.randn(256, 64)
elif name == "transformer":
    model, rows = nn.Sequential(*[Block(64, True) for _ in range(4)]), torch.randn(8, 64, 64)
else:
    model, rows = nn.Sequential(*[Residual(8) for _ in range(5)]), torch.randn(8, 8, 32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
start = time.perf_counter()
called = compile(model, expected_steps=expected, on_cpu=True) if way == "compile" else model
first_s = 0.0
for number in range(steps):
    loss = called(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    first_s = first_s or time.perf_counter() - start
seconds = time.perf_counter() - start
known = called._compiling._known.model_dump() if way == "compile" else {}
is_compiled = bool(known) and called._call is not model
if known and called._compiling.writer:
    called._compiling.writer.join()
    known = called._compiling._known.model_dump()
print(json.dumps({"seconds": seconds, "first_s": first_s, "is_compiled": is_compiled, "known": known}))
"""


class Task:
    """One task, whose runs have the same place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = 0

    def run(self, name: str, way: str, expected: int, steps: int, *, host: str = "") -> dict[str, Any]:
        """What a run says; under another host name, if one is given."""
        self._token += 1
        place = CheckpointPlace(url=self._folder.as_uri(), path="bench/compile/run/-1", token=self._token)
        lease = a_task_lease(simulated=True)
        environment = {
            **{variable: value for variable, value in os.environ.items() if variable != CACHE_VARIABLE},
            CHECKPOINT_VARIABLE: place.model_dump_json(),
            LEASE_VARIABLE: lease.model_dump_json(),
            TASK_SECRET_VARIABLE: "of this task",
        }
        command = [sys.executable, "-c", TRAINING, name, way, str(expected), str(steps)]
        if host:
            command = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"', *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, folder: Path, repeats: int) -> None:
    """Print the figures of one model."""
    task = Task(folder)
    task.run(name, "compile", MANY, 60)
    cold = task.run(name, "compile", MANY, 60)
    warm = task.run(name, "compile", MANY, 60)
    host = "elsewhere" if shutil.which("unshare") and os.geteuid() == 0 else ""
    far = task.run(name, "compile", MANY, 60, host=host)
    known = far["known"]
    print(
        f"  {name}: first step cold {cold['first_s']:.1f} s, warm {warm['first_s']:.2f} s "
        f"({warm['first_s'] / cold['first_s']:.0%}), warm under {'another host name' if host else 'the same name'} "
        f"{far['first_s']:.2f} s ({far['first_s'] / cold['first_s']:.0%}); limit {MAX_WARM:.0%}",
        flush=True,
    )
    saved_s = known["eager_s"] - known["compiled_s"]
    print(f"    a step: {known['eager_s'] * 1e3:.2f} ms, compiled {known['compiled_s'] * 1e3:.2f} ms", flush=True)
    if saved_s <= 0:
        print("    compiling never pays")
        return
    break_even = known["warm_s"] / saved_s
    for part in LENGTHS:
        steps = max(30, round(part * break_even))
        ratios, chosen = [], []
        for _ in range(repeats):
            eager = task.run(name, "eager", steps, steps)
            ours = task.run(name, "compile", steps, steps)
            ratios.append(ours["seconds"] / eager["seconds"])
            chosen.append("compiled" if ours["is_compiled"] else "not compiled")
        listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"    {steps:6} steps ({part} × break-even), {'/'.join(sorted(set(chosen)))}: "
            f"{statistics.median(ratios):.2f} × the time without ({listed}); limit {MAX_RUN}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each length")
    parser.add_argument("--models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, Path(folder), arguments.repeats)


if __name__ == "__main__":
    main()
