"""How fast is deciding? Run it: ``python tests/benchmarks/bench_decide.py [workers ...]``; times are of one core.

Garbage is collected after the timed part, as in `Cycle.run`.

1. Placements a second on an idle fleet, and on a half busy one with a mixed queue, of single devices and of several
   on one worker, against a naive rescan of the same policy (`naive.py`), whose placements must be the same up to the
   first request that has to wait.
2. Whole cycles with `MemoryStore` at a steady state: a fleet that is full, 10,000 requests that wait, and in each
   cycle leases that end and requests that arrive.
3. The same along the whole path, for every policy of the package: four priority classes, preemption, known speeds and
   lengths, alternatives, shares of devices, gangs and the quotas of teams. Time goes on by 30 s with each cycle.
4. 15,000 requests over 640 workers, for which Kueue's own benchmark takes 351 s.
5. Memory of 10,000 workers and 100,000 waiting requests in a fresh process.
"""

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import median, quantiles

from naive import Naive, Placed

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies import POLICIES as PACKAGED
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.core.mix_scorer import request_mix
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.policies.round_robin import RoundRobin
from hetero_airflow.scheduling.cycle import Cycle, deferred_garbage_collection
from hetero_airflow.simulator.simulated_engine import SimulatedEngine
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker

MODELS = (("nvidia", "a100-sxm4-40gb", "40GiB"), ("nvidia", "a100-sxm4-80gb", "80GiB"), ("amd", "mi300x", "192GiB"))
SINGLE = ("gpu",)
GANGS = ("gpu:2", "gpu:4", "gpu:8", "a100:2", "mi300x:4")
MIXED = ("gpu", "gpu:2", "a100:4", "a100-80gb", "gpu:0.5", "mi300x:8", "cpu:4", "a100-40gb:2", "gpu:0.25", "mi300x")
POLICIES: dict[str, Callable[[], Policy]] = {
    "priority": PriorityPolicy, "fifo": Fifo, "round_robin": RoundRobin, "assignment": Assignment
}  # fmt: skip
CLASSES = tuple(f"{vendor}/{model}" for vendor, model, _ in MODELS)
NAIVE_S = 5.0
"""About how long the naive policy may take for a line of the table."""


def make_workers(number: int) -> tuple[Worker, ...]:
    """Workers of a CPU and 8 devices, in three models."""
    return tuple(_worker(n) for n in range(number))


def _worker(number: int) -> Worker:
    vendor, model, memory = MODELS[number % len(MODELS)]
    gpus = [
        a_device(f"GPU-{i}", model, memory, vendor=vendor, index=i, numa_node=i // 4,
                 peers=tuple(f"GPU-{j}" for j in range(8) if j // 4 == i // 4 and j != i))
        for i in range(8)
    ]  # fmt: skip
    return a_worker(f"worker-{number:05}", (a_cpu(64, "512GiB"), *gpus))


def make_usage(workers: Sequence[Worker], busy: float, rng: random.Random) -> UsageByWorker:
    """The usage with this part of the accelerators leased at random."""
    return UsageByWorker(
        {
            worker.id: {
                device.id: DeviceUsage(1000, device.memory_bytes, EPOCH)
                for device in worker.devices
                if device.kind != "cpu" and rng.random() < busy
            }
            for worker in workers
        }
    )


def make_pending(texts: Sequence[str], number: int, rng: random.Random, first: int = 0) -> tuple[PendingRequest, ...]:
    """This many requests of these kinds, mixed. Equal ones share their `DeviceRequest`, as in the SQL store."""
    requests = [a_pending(device=text).request for text in texts]
    return tuple(
        PendingRequest(
            f"r{n:06}",
            rng.choice(requests),
            EPOCH + timedelta(seconds=n),
            rng.randint(1, 3),
            f"dag-{rng.randrange(20)}",
        )
        for n in range(first, first + number)
    )


def placed(plan: Plan) -> list[Placed]:
    """The placements, in the form of `Naive`."""
    return [
        (p.request_id, p.worker_id, p.alternative, tuple(claim.device_id for claim in p.claims)) for p in plan.places
    ]


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    with deferred_garbage_collection():
        begin = time.process_time()
        work()
        return time.process_time() - begin


def compare(name: str, texts: Sequence[str], workers: tuple[Worker, ...], busy: float) -> str:
    """One line: as many requests as there are devices (10,000 at least), decided by a fresh and by a warm policy."""
    rng = random.Random(0)
    fleet = Snapshot(1, workers, make_usage(workers, busy, rng))
    snapshot = replace(fleet, pending=make_pending(texts, min(max(8 * len(workers), 100), 20_000), rng))
    policy = Fifo()
    first_s = timed(lambda: policy.decide(snapshot, EPOCH))
    plan = policy.decide(snapshot, EPOCH)
    warm_s = min(timed(lambda: policy.decide(snapshot, EPOCH)) for _ in range(3))
    few = naive_s = 0
    all_placed = True
    while naive_s < NAIVE_S / 4 and all_placed and few < len(snapshot.pending):
        asked = min(max(4, 3 * few), len(snapshot.pending))
        naive = Naive(replace(snapshot, pending=snapshot.pending[:asked]))
        begin = time.process_time()
        expected = naive.decide()
        naive_s = time.process_time() - begin
        few = len(expected)
        all_placed = few == asked
        part = replace(snapshot, pending=snapshot.pending[:few])
        begin = time.process_time()
        our_plan = policy.decide(part, EPOCH)
        ours_s = time.process_time() - begin
        assert placed(our_plan) == expected, "the naive policy places otherwise"
    decided, places = len(snapshot.pending), len(plan.places)
    return (
        f"{name:7} {len(workers):6} workers {busy:4.0%} busy: {decided:6} decided, {places:6} placed | first "
        f"{first_s * 1e3:7.1f} ms, warm {warm_s * 1e3:7.1f} ms, {decided / warm_s:8.0f} decisions/s, "
        f"{places / warm_s:8.0f} placements/s | first {few:5} requests: naive {naive_s * 1e3:7.0f} ms, "
        f"ours {ours_s * 1e3:6.1f} ms, {naive_s / ours_s:7.0f} ×"
    )


class Steady:
    """A full fleet, a queue, and the changes between two cycles."""

    def __init__(self, policy: Callable[[], Policy], workers: int, waiting: int, changes: int) -> None:
        self._rng = random.Random(0)
        self._store = MemoryStore()
        self._engine = SimulatedEngine()
        self._cycle = self._make_cycle(policy())
        self._now = EPOCH
        self._waiting, self._changes = waiting, changes
        self._submitted = 0
        self._store.record([WorkerSeen(worker) for worker in make_workers(workers)], EPOCH)
        self._leases = {}
        self.placed = 0
        self._submit(waiting)

    def _make_cycle(self, policy: Policy) -> Cycle:
        return Cycle(self._store, policy, self._engine, lease_timeout_s=1e9)

    def _arrivals(self, number: int) -> Sequence[PendingRequest]:
        return make_pending(MIXED, number, self._rng, self._submitted)

    def _submit(self, number: int) -> None:
        arrived = self._arrivals(number)
        self._submitted += number
        self._store.record([RequestSubmitted(request) for request in arrived], self._now)

    def cycle(self) -> float:
        """Run one whole cycle. Returns its seconds."""
        begin = time.process_time()
        result = self._cycle.run(self._now)
        spent = time.process_time() - begin
        self._leases |= {lease.id: lease for lease in result.dispatched}
        self.placed += len(result.dispatched)
        return spent

    def fills_up(self) -> bool:
        """One cycle with a full queue; whether it placed more than the steady state does."""
        before = self.placed
        self.top_up()
        self.cycle()
        return self.placed - before > self._changes

    def change(self) -> None:
        """Some leases end, and requests arrive until as many wait as before."""
        for lease_id in self._rng.sample(sorted(self._leases), min(self._changes, len(self._leases))):
            lease = self._leases.pop(lease_id)
            self._store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], self._now)
        self.top_up()

    def top_up(self) -> None:
        """Let requests arrive until the queue has its length."""
        self._submit(max(0, self._waiting - len(self._store.snapshot().pending)))


class WholePath(Steady):
    """The same with everything that a policy may have to look at."""

    def __init__(self, name: str, workers: int, waiting: int, changes: int) -> None:
        rng = random.Random(0)
        self._tasks = [_a_task(rng, number) for number in range(400)]
        names = [(task.dag_id, task.task_id) for task in self._tasks]
        works_s = [rng.lognormvariate(8, 1.5) for _ in names]
        self._estimates = Estimates(
            {task: {name: rng.uniform(0.2, 1) for name in CLASSES} for task in names},
            {task: Interval(work / 1.3, work, work * 1.3) for task, work in zip(names, works_s, strict=True)},
            finished_s=tuple(sorted(works_s)),
            mix=request_mix(Snapshot(1, pending=tuple(self._tasks))),
            shares=TeamShares.parse(f"dag-1*=1 max {3 * workers}, dag-*=2"),
        )
        self.preemptions = 0
        super().__init__(partial(load_policy, name), workers, waiting, changes)

    def _make_cycle(self, policy: Policy) -> Cycle:
        return Cycle(
            self._store, policy, self._engine, lease_timeout_s=1e9, preemptor=self._engine,
            policy_context=lambda snapshot: replace(snapshot, estimates=self._estimates),
        )  # fmt: skip

    def _arrivals(self, number: int) -> Sequence[PendingRequest]:
        """One in twenty belongs to a gang of two."""
        arrived = []
        for n in range(self._submitted, self._submitted + number):
            in_gang, pair = n % 40 < 2, n // 2
            task = random.Random(pair if in_gang else f"{n}").choice(self._tasks)
            gang = {"gang": f"gang-{pair}", "gang_size": 2} if in_gang else {}
            arrived.append(replace(task, id=f"r{n:06}", submitted_at=self._now + timedelta(milliseconds=n), **gang))
        return arrived

    def change(self) -> None:
        """The leases that were taken back end, and their requests wait again; 30 s later, others end and arrive."""
        holders = self._store.snapshot().holders
        for lease in self._engine.preempted:
            self._leases.pop(lease.id, None)
            pending = holders[lease.request_id]
            self._store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], self._now)
            self._store.record([RequestSubmitted(replace(pending, attained_service_s={CLASSES[0]: 600.0}))], self._now)
        self.preemptions += len(self._engine.preempted)
        self._engine.preempted.clear()
        self._now += timedelta(seconds=30)
        super().change()


def _a_task(rng: random.Random, number: int) -> PendingRequest:
    text = rng.choice((*MIXED, frozenset({"a100-40gb", "mi300x"}), frozenset({"a100-80gb:4", "mi300x:4"})))
    priority = rng.choices(("low", "medium", "high", "urgent"), (4, 10, 3, 1))[0]
    return a_pending("", text, dag_id=f"dag-{number % 20}", task_id=f"task-{number}", priority=priority, weight=1)


def whole_path(name: str, workers: int, waiting: int, cycles: int) -> str:
    """One line: cycles of the steady state along the whole path."""
    world = WholePath(name, workers, waiting, 20)
    for _ in range(5):
        world.cycle()
        world.change()
    before, world.preemptions, times = world.placed, 0, []
    for _ in range(cycles):
        times.append(world.cycle())
        world.change()
    cuts = quantiles(times, n=100, method="inclusive")
    return (
        f"{name:16} {workers:6} workers {waiting:6} waiting: {(world.placed - before) / cycles:5.1f} placements and "
        f"{world.preemptions / cycles:5.1f} preemptions a cycle: p50 {median(times) * 1e3:7.1f} ms, p99 "
        f"{cuts[98] * 1e3:7.1f} ms"
    )


def steady(name: str, policy: Callable[[], Policy], workers: int, waiting: int, changes: int, cycles: int) -> str:
    """One line: the cycle that fills the fleet, then the cycles of the steady state."""
    world = Steady(policy, workers, waiting, changes)
    fill_s = world.cycle()
    filled = world.placed
    while world.fills_up():
        pass
    before, times = world.placed, []
    for _ in range(cycles):
        world.change()
        times.append(world.cycle())
    cuts = quantiles(times, n=100)
    return (
        f"{name:11} {workers:6} workers {waiting:6} waiting: filled by {filled} leases in {fill_s * 1e3:6.0f} ms "
        f"({filled / fill_s:6.0f}/s); {cycles} cycles of {(world.placed - before) / cycles:5.1f} placements each: "
        f"p50 {median(times) * 1e3:6.1f} ms, p99 {cuts[98] * 1e3:6.1f} ms, greatest {max(times) * 1e3:6.1f} ms"
    )


def many_requests(name: str, policy: Callable[[], Policy], requests: int = 15_000, workers: int = 640) -> str:
    """One line: a queue that is longer than the fleet, decided in one cycle by a fresh policy."""
    present = make_workers(workers)
    snapshot = Snapshot(1, present, UsageByWorker({}), make_pending(MIXED, requests, random.Random(0)))
    spent = timed(lambda: policy().decide(snapshot, EPOCH))
    places = len(policy().decide(snapshot, EPOCH).places)
    return f"{name:11} {requests} requests over {workers} workers: {spent:.2f} s, {places} placed"


def memory(workers: int = 10_000, waiting: int = 100_000) -> str:
    """One line: the peak memory of a process with this fleet and queue after its decisions."""
    world = Steady(PriorityPolicy, workers, waiting, 50)
    times = [world.cycle()]
    world.top_up()
    for _ in range(3):
        world.change()
        times.append(world.cycle())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (
        f"{workers} workers, {waiting} waiting, {world.placed} leases: at most {peak / 2**20:.0f} MiB; "
        f"cycles of {', '.join(f'{spent:.2f}' for spent in times)} s"
    )


def main(sizes: Sequence[int]) -> None:
    """Print everything."""
    print("Placements, against a naive rescan by the same policy (fifo)")
    for size in sizes:
        workers = make_workers(size)
        for name, texts, busy in (("single", SINGLE, 0.0), ("gangs", GANGS, 0.0), ("mixed", MIXED, 0.5)):
            print(compare(name, texts, workers, busy), flush=True)
    print("\nWhole cycles, in which 20 leases end and the queue is filled up again")
    for size in sizes:
        for name, policy in POLICIES.items():
            print(steady(name, policy, size, 10_000, 20, 200), flush=True)
    print("\nWhole cycles along the whole path, in which 20 leases end")
    for name in PACKAGED:
        for size, waiting in ((100, 1000), (100, 10_000), (1000, 10_000)):
            print(whole_path(name, size, waiting, 40), flush=True)
    print("\nA long queue")
    for name, policy in POLICIES.items():
        print(many_requests(name, policy), flush=True)
    print("\nMemory, in a process of its own")
    print(subprocess.run([sys.executable, __file__, "memory"], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        print(memory())
    else:
        main([int(word) for word in sys.argv[1:]] or [10, 100, 1000, 10_000])
