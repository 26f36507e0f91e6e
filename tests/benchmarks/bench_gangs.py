"""From the placement of a gang to its first collective; run ``python tests/benchmarks/bench_gangs.py [rounds]``.

Two workers of two ranks each on this host, with Gloo. First with torchrun's own rendezvous (c10d): both start at once,
and the port is agreed on before. Then with two tasks of `TorchrunOperator`, which start at once, as under the executor:
the leader opens a port and sends it to the other. The two kinds take turns, since other work on the machine affects
both. Prints the time until the last rank has its first `all_reduce`. The time does not include Airflow's start of the
tasks, nor the way of an XCom through the API server: a file replaces it.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch.distributed  # noqa: F401  as Airflow's own imports are: loaded before the clock starts, for both alike

from hetero_airflow.operators import TorchrunOperator
from tests.operators.test_gang_training import AnInstance, leased

WORKERS, RANKS = 2, 2
SCRIPT = """
import pathlib, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == 4, value
pathlib.Path(sys.argv[1], f"met-{dist.get_rank()}").write_text(repr(time.time()))
dist.destroy_process_group()
"""


def by_torchrun(folder: Path, rank: int, port: int) -> None:
    """One worker, started by torchrun alone."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={WORKERS}", f"--nproc-per-node={RANKS}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", "--local-addr=127.0.0.1"),
        *(f"--rdzv-conf=is_host={int(rank == 0)}", str(folder / "train.py"), str(folder)),
    ]
    subprocess.run(command, check=True, capture_output=True)


def by_operator(folder: Path, rank: int, port: int) -> None:
    """One worker's task of the gang. It does not use the port, but finds its own."""
    operator = TorchrunOperator(
        task_id="train", script=str(folder / "train.py"), args=[folder], processes=RANKS, device="cpu", node_rank=rank
    )
    with leased(rank):
        operator.execute({"ti": AnInstance(folder, 4 + rank)})


def run(how, port: int) -> float:
    """Seconds from the start of both workers to the last rank's first collective."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=how, args=(folder, rank, port)) for rank in range(WORKERS)]
        begin = time.time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        met = [float((folder / f"met-{rank}").read_text()) for rank in range(WORKERS * RANKS)]
    return max(met) - begin


def main(rounds: int) -> None:
    """Measure both in turns and print them."""
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds_of: dict[str, list[float]] = {"torchrun alone": [], "two tasks of a gang": []}
    for number in range(rounds):
        for name, how in (("torchrun alone", by_torchrun), ("two tasks of a gang", by_operator)):
            seconds_of[name].append(run(how, 29500 + number))
            print(f"{name}: {seconds_of[name][-1]:.2f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for name, seconds in seconds_of.items():
        print(f"{name}: median {median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f}")
    above = [of_gang - plain for plain, of_gang in zip(*seconds_of.values(), strict=True)]
    print(f"above torchrun's own: median {median(above):+.2f} s, at most {max(above):+.2f} (bar 3)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
