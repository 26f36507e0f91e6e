"""What a preemption plan remembers of unchanged workers changes no decision."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.las import Las
from hetero_airflow.policies.mlfq import Mlfq
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_pending, a_worker

GPU_MODELS = ("a100-sxm4-40gb", "v100-sxm2-16gb")


class Forgetful(dict):
    """It remembers nothing."""

    def setdefault(self, key, default=None):
        return default


def full_fleet(seed):
    """Twelve workers with all their GPUs leased to requests of other sizes, and 60 requests that wait."""
    rng = random.Random(seed)
    store = MemoryStore(keeps_history=False)
    workers = [
        a_worker(f"w{n}", (a_cpu(), *(a_device(f"w{n}-{i}", GPU_MODELS[n % 2], index=i) for i in range(4))))
        for n in range(12)
    ]
    store.record([WorkerSeen(worker) for worker in workers], EPOCH)
    cycle = Cycle(store, Fifo(), FakeEngine(), lease_timeout_s=1e9)
    priorities = (["low"] * 80, [rng.choice(("low", "medium", "high")) for _ in range(60)])
    for group, of_group in enumerate(priorities):
        pending = [
            a_pending(f"{group}-{n}", rng.choice(("gpu", "gpu:2", "gpu:4", "a100", "v100:2")), n, priority=priority)
            for n, priority in enumerate(of_group)
        ]
        store.record([RequestSubmitted(request) for request in pending], EPOCH)
        cycle.run(EPOCH)
    return replace(store.snapshot(), can_preempt=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [Las, Mlfq, PriorityPolicy])
def test_a_plan_without_the_memory_is_the_same(policy, seed, monkeypatch):
    snapshot = full_fleet(seed)
    moments = [EPOCH + timedelta(seconds=seconds) for seconds in (30, 4000, 90_000)]
    plans = [policy().decide(snapshot, now) for now in moments]
    assert any(plan.preemptions for plan in plans)

    def forget(self, *arguments, __init__=LeastLossPreemption.__init__):
        __init__(self, *arguments)
        self._known_fits = self._known_options = Forgetful()

    monkeypatch.setattr(LeastLossPreemption, "__init__", forget)
    assert [policy().decide(snapshot, now) for now in moments] == plans
