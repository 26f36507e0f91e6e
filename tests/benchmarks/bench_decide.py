"""How long one decision takes. Run it: ``python tests/benchmarks/bench_decide.py [workers ...]``.

Prints CPU time: for each policy and size, the first cycle (nothing remembered), the next one after one lease
has ended (what a busy scheduler sees), and decisions a second.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace

from hetero_airflow.model.snapshot import Pending, Snapshot, Usage
from hetero_airflow.policies import GROUP, POLICIES
from hetero_airflow.registry import load
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker

TEXTS = ("gpu", "gpu:2", "a100:4", "a100-80gb", "gpu:0.5", "mi300x:8", "cpu:4", "h100:2", "gpu:0.25", "910b:2")
MODELS = (("nvidia", "a100-sxm4-40gb", "40GiB"), ("nvidia", "a100-sxm4-80gb", "80GiB"), ("amd", "mi300x", "192GiB"))


def make_snapshot(workers: int, waiting: int, busy: float, seed: int = 0) -> Snapshot:
    """Workers of 8 devices in three models, a part of the devices leased at random, and a mix of requests."""
    rng = random.Random(seed)
    present, usage = [], {}
    for number in range(workers):
        vendor, model, memory = MODELS[number % len(MODELS)]
        gpus = [
            a_device(f"GPU-{i}", model, memory, vendor=vendor, index=i, numa_node=i // 4,
                     peers=tuple(f"GPU-{j}" for j in range(8) if j // 4 == i // 4 and j != i))
            for i in range(8)
        ]  # fmt: skip
        worker = a_worker(f"worker-{number:05}", (a_cpu(64, "512GiB"), *gpus))
        present.append(worker)
        for device in gpus:
            if rng.random() < busy:
                usage[worker.id, device.id] = Usage(1000, device.memory_bytes, EPOCH)
    requests = [
        a_pending(device=text, quota={"memory": "16GiB.."} if "cpu" not in text else None).request for text in TEXTS
    ]
    pending = tuple(
        Pending(f"r{i:05}", rng.choice(requests), EPOCH, rng.randint(1, 3), f"dag-{i % 20}") for i in range(waiting)
    )
    return Snapshot(1, tuple(present), usage, pending)


def measure(name: str, workers: int, waiting: int, busy: float) -> str:
    """One line of figures."""
    snapshot = make_snapshot(workers, waiting, busy)
    policy = load(GROUP, POLICIES, name)()
    begin = time.process_time()
    plan = policy.decide(snapshot, EPOCH)
    first = time.process_time() - begin
    times = []
    for _ in range(5):
        ended = next(iter(snapshot.usage))
        usage = {key: value for key, value in snapshot.usage.items() if key != ended}
        snapshot = replace(snapshot, sequence=snapshot.sequence + 1, usage=usage)
        begin = time.process_time()
        policy.decide(snapshot, EPOCH)
        times.append(time.process_time() - begin)
    next_s = sorted(times)[2]
    return (
        f"{name:12} {workers:6} workers {waiting:5} waiting {busy:4.0%} busy: first {first * 1e3:8.1f} ms, "
        f"next {next_s * 1e3:8.1f} ms, {waiting / next_s:9.0f} decisions/s, {len(plan.places):5} placed"
    )


if __name__ == "__main__":
    for size in [int(word) for word in sys.argv[1:]] or [10, 100, 1000]:
        for queue in (100, 1000):
            for part in (0.3, 0.95):
                for row in POLICIES:
                    print(measure(row, size, queue, part), flush=True)
