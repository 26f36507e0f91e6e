"""Section ``openb``: how much of its accelerators a cluster of 1213 nodes can give to pods that never leave.

The publisher's experiment (`simulator.traces.openb`): each pod is placed at once or lost, none is moved, and none
that fits somewhere is declined. What is measured is the part of all GPUs that is allocated when the pods so far
asked for 100 and for 130 % of them. Pods a second are those of the valuation's scoreboard in one process, by its
own CPU time.
"""

import csv
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench_table import Table, spread
from fgd import FragmentationMeasure
from packing_by_amounts import BestFitMeasure, DotProductMeasure, LargestCapacity
from scoreboard import Scoreboard

from hetero_airflow.matching.packing.demand import RequestMix, device_demand
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.matching.packing.scorer import PackingMeasure
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.core.share_prices import share_prices
from hetero_airflow.scheduling.learning.learner import PastRequests
from hetero_airflow.simulator.options import simulated_time
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Workload

SEEDS = range(42, 52)
"""Seeds of the orders. Parameters were tuned on other seeds, from 1000 on."""

MIXES = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip

DEFAULT_ORDERS = 2

PUBLISHED = {"random": "01-Random", "dot_product": "02-DotProd", "best_fit": "05-BestFit", "fgd": "06-FGD"}


@dataclass(frozen=True, slots=True)
class Filled:
    """The result of one order, in percent."""

    at_100: float
    at_130: float
    pods_per_s: float


def fill(workload: Workload, valuation: PackingMeasure, rng: Random | None) -> Filled:
    """Place the pods one by one. With a random generator: on any worker that fits, and there on any GPU."""
    requests = [job.request for job in workload.jobs]
    alternatives = {a: n for n, a in enumerate(dict.fromkeys(a for r in requests for a in r.alternatives))}
    order = [[alternatives[alternative] for alternative in request.alternatives] for request in requests]
    amount = [ask.share_milli * ask.devices for ask in map(device_demand, alternatives)]
    board = Scoreboard(valuation, workload.workers, list(alternatives))
    total, arrived, allocated, at_100 = board.devices * 1000, 0, 0, 0.0
    begin = time.process_time()
    for options in order:
        before, arrived = arrived, arrived + amount[options[0]]
        if before < total <= arrived:
            at_100 = 100 * allocated / total
        placed = _any(board, options, rng) if rng else _best(board, options)
        if placed is not None:
            board.take(*placed)
            allocated += amount[placed[0]]
    return Filled(at_100, 100 * allocated / total, len(order) / (time.process_time() - begin))


def fill_by_default(workload: Workload, mix: RequestMix | None) -> Filled:
    """Place the pods by the default policy itself, one decision for each pod.

    :param mix: the request mix; None: that of the pods so far
    """
    policy, past = load_policy("assignment"), PastRequests()
    usage: dict[str, dict[str, DeviceUsage]] = {}
    accelerators = {worker.id: {d.id for d in worker.devices if d.kind != "cpu"} for worker in workload.workers}
    total = 1000 * sum(map(len, accelerators.values()))
    arrived = allocated = 0
    at_100, begin = 0.0, time.process_time()
    for number, job in enumerate(workload.jobs):
        now = simulated_time(number)
        demand = device_demand(job.request.alternatives[0])
        before, arrived = arrived, arrived + demand.share_milli * demand.devices
        if before < total <= arrived:
            at_100 = 100 * allocated / total
        pending = (PendingRequest(job.id, job.request, now),)
        estimates = Estimates(mix=past.mix if mix is None else mix)
        snapshot = Snapshot(number, workload.workers, UsageByWorker(usage), pending, estimates=estimates)
        past.add(job.id, job.request.alternatives[0])
        for place in policy.decide(snapshot, now).places:
            used = dict(usage.get(place.worker_id, {}))
            for claim in place.claims:
                held = used.get(claim.device_id, DeviceUsage())
                share_milli, memory = held.share_milli + claim.share_milli, held.memory_bytes + claim.memory_bytes
                used[claim.device_id] = DeviceUsage(share_milli, memory, now)
                if claim.device_id in accelerators[place.worker_id]:
                    allocated += claim.share_milli
            usage = {**usage, place.worker_id: used}
    return Filled(at_100, 100 * allocated / total, len(workload.jobs) / (time.process_time() - begin))


def _best(board: Scoreboard, options: Sequence[int]) -> tuple[int, int] | None:
    candidates = [(option, worker) for option in options if (worker := board.best(option)) is not None]
    return max(candidates, key=lambda pair: (board.scores[pair], -pair[1])) if candidates else None


def _any(board: Scoreboard, options: Sequence[int], rng: Random) -> tuple[int, int, int | None] | None:
    candidates = [(option, worker) for option in options for worker in board.fitting(option)]
    if not candidates:
        return None
    option, worker = candidates[rng.randrange(len(candidates))]
    share_milli = board.share_milli(option)
    parts = [part for part in board.free[worker].parts if share_milli <= part]
    return option, worker, rng.choice(parts) if 0 < share_milli < 1000 else None


def mix_of(workload: Workload) -> RequestMix:
    """The request mix of the pods in the list. A pod that allows several models counts for each of them."""
    listed = [job.request for job in workload.jobs if "-copy-" not in job.id]
    counts: Counter[Alternative] = Counter(alternative for request in listed for alternative in request.alternatives)
    return tuple(sorted(((a, n / len(listed)) for a, n in counts.items()), key=lambda item: item[0].key))


def valuation(name: str, workload: Workload) -> PackingMeasure:
    """The valuation of a policy that knows the mix of these pods, but not their order."""
    cores = max(worker.cpu.capacity_milli for worker in workload.workers if worker.cpu)
    largest = LargestCapacity(cores, 1000 * max(len(worker.devices) - 1 for worker in workload.workers))
    if name == "dot_product":
        return DotProductMeasure(largest)
    if name in ("best_fit", "random"):
        return BestFitMeasure(largest)
    mix = mix_of(workload)
    return FragmentationMeasure(mix) if name == "fgd" else ExpectedFillMeasure(mix, share_prices(mix))


def published(folder: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """(mix, policy) → allocation at 100 and at 130 % demand, mean of 10 seeds."""
    path = folder / "openb" / "published_alloc_summary.csv"
    with path.open() as file:
        return {
            (row["workload"].removeprefix("openb_pod_list_"), row["sc_policy"]): (
                row["alloc100_mean"],
                row["alloc130_mean"],
            )
            for row in csv.DictReader(file)
        }


def tables() -> Iterator[Table]:
    """All policies on the default mix and on two others; the best of ours beside the published best on all."""
    known = published(Path(os.environ["HETERO_AIRFLOW_TRACES"]))
    names = ("random", "dot_product", "best_fit", "fgd", "expected_fill")
    rows = [_row(mix, name, known) for mix in MIXES for name in (names if mix == "default" else names[-2:])]
    rows[len(names) : len(names)] = [_default_row(known, knows_mix=knows_mix) for knows_mix in (True, False)]
    yield Table(
        "openb: GPUs allocated at 100 and 130 % demand",
        f"Percent, mean ± standard deviation over {len(SEEDS)} orders. The default policy decides on each pod, "
        f"over {DEFAULT_ORDERS} orders; the others rate workers, and choose by the rate alone.",
        ("mix", "policy", "at 100 %", "published", "at 130 %", "published", "pods/s"),
        rows,
    )


def _default_row(known: dict[tuple[str, str], tuple[str, str]], *, knows_mix: bool) -> tuple[str, ...]:
    mix = mix_of(load_trace("openb/default_fill1.3_seed0"))
    whole = math.fsum(part for _, part in mix)
    parts = tuple((alternative, part / whole) for alternative, part in mix)
    loads = [load_trace(f"openb/default_fill1.3_seed{seed}") for seed in SEEDS[:DEFAULT_ORDERS]]
    results = [fill_by_default(workload, parts if knows_mix else None) for workload in loads]
    name = f"assignment, the default ({'mix given' if knows_mix else 'mix learned'})"
    return _as_row("default", name, known["default", "06-FGD"], " (FGD)", results)


def _row(mix: str, name: str, known: dict[tuple[str, str], tuple[str, str]]) -> tuple[str, ...]:
    results, chosen = [], None
    for seed in SEEDS:
        workload = load_trace(f"openb/{mix}_fill1.3_seed{seed}")
        chosen = chosen or valuation(name, load_trace(f"openb/{mix}_fill1.3_seed0"))
        results.append(fill(workload, chosen, Random(seed) if name == "random" else None))
    published = known.get((mix, PUBLISHED.get(name, "06-FGD")), ("", ""))
    return _as_row(mix, name, published, "" if name in PUBLISHED else " (FGD)", results)


def _as_row(mix: str, name: str, published: tuple[str, str], note: str, results: Sequence[Filled]) -> tuple[str, ...]:
    row = (
        mix, name, spread([r.at_100 for r in results], 2), f"{float(published[0]):.2f}{note}",
        spread([r.at_130 for r in results], 2), f"{float(published[1]):.2f}{note}",
        f"{statistics.median(r.pods_per_s for r in results):,.0f}",
    )  # fmt: skip
    print(" | ".join(row), flush=True)
    return row
