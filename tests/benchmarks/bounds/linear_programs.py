"""The linear programs behind `bounds`."""

from itertools import pairwise

import numpy as np

from hetero_airflow.policies.core.linear_program import Floats, Numbers, minimise

from .job_demand import JobDemand

_VARIABLES = 60_000
"""About as many as HiGHS needs some seconds for."""
_BUCKETS = (16, 120)
_CUTS = 50
_FINER = 4
_ROUNDS = 60


def least_total_jct_s(demand: JobDemand) -> float:
    """A lower bound of the sum of the JCTs in seconds, by prices of device-time over time.

    With ``x[j, k](t)``, whether job j is on class k at time t, and ``W[j, k]``, the time that it takes there alone,
    every schedule satisfies ``Σ_k ∫ x / W dt = 1`` (all the work is done), ``Σ_k x ≤ 1`` (on one class at a time) and
    ``Σ_j devices[j] x ≤ capacity[k]``. A job's progress is no faster than 1 / b, where b is its time alone on its
    fastest class, so that it ends at least b / 2 after the mean time of its progress: ``JCT ≥ b / 2 + Σ_k ∫
    (t − arrival) x / W dt``. The least sum of the right sides is the bound: the mean-busy-time relaxation (Goemans
    1997, "Improved approximation algorithms for scheduling with release dates"), here for unrelated machines.

    A program over time in buckets gives prices of capacity. The bound is their Lagrangian in continuous time,
    which holds for any prices of at least 0, so that neither the buckets nor the solver's tolerance can spoil it:
    ``Σ_j max_u (u − ∫ max_k max(0, (u − c) / W) dt) + Σ_j b / 2 − Σ_k capacity[k] ∫ price[k] dt`` with ``c[j, k](t) =
    t − arrival[j] + devices[j] W[j, k] price[k](t)``. Prices are linear between nodes and 0 after the last, so the
    inner integrand is convex between nodes and the trapezoid rule is on the safe side.
    """
    edges = _edges(demand)
    nodes, prices = _refined((edges[1:] + edges[:-1]) / 2, _bucket_prices(demand, edges))
    paid_s = float(demand.capacity @ np.trapezoid(prices, nodes, axis=1))
    return float(_least_costs(demand, nodes, prices).sum() + demand.best_s.sum() / 2 - paid_s)


def least_makespan_s(demand: JobDemand) -> float:
    """A lower bound of the time of the last finish in seconds: the least T of a linear program over job × class.

    Each job's work is done, on one class at a time between its arrival and T; and from each of 50 times on, the
    jobs that arrive from then on fit, by device-seconds, into what a class offers until T. (Gavel's makespan
    policy, OSDI 2020, section 4.2, solves the same without arrivals.)
    """
    job, kind = np.nonzero(np.isfinite(demand.alone_s))
    time_s = demand.alone_s[job, kind]
    jobs, kinds, last = len(demand.devices), len(demand.capacity), len(job)
    cuts = np.unique(np.quantile(demand.arrival_s, np.linspace(0, 1, _CUTS), method="lower"))
    rows, columns, values = [job, job + jobs], [np.arange(last)] * 2, [np.ones(last), time_s]
    upper, lower = [np.ones(jobs), -demand.arrival_s], [np.ones(jobs), np.full(jobs, -np.inf)]
    rows.append(np.arange(jobs) + jobs)
    columns.append(np.full(jobs, last))
    values.append(np.full(jobs, -1.0))
    for number, cut_s in enumerate(cuts):
        first = 2 * jobs + number * kinds
        late = np.nonzero(demand.arrival_s[job] >= cut_s)[0]
        rows += [first + kind[late], first + np.arange(kinds)]
        columns += [late, np.full(kinds, last)]
        values += [demand.devices[job[late]] * time_s[late], -demand.capacity]
        upper.append(-demand.capacity * cut_s)
        lower.append(np.full(kinds, -np.inf))
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    entries = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
    solution = minimise(cost, entries, np.concatenate(upper), np.concatenate(lower))
    return solution.value if solution else 0.0


def _edges(demand: JobDemand) -> Floats:
    """Of the buckets: equal until about when all could be done, then growing until all surely is."""
    buckets = int(np.clip(_VARIABLES / demand.alone_s.size, *_BUCKETS))
    near, far = demand.horizon_s, demand.alone_s[np.isfinite(demand.alone_s)].max()
    even = np.linspace(0.0, near, buckets * 3 // 4 + 1)
    growing = near + np.geomspace(near / buckets, 4 * (near + far), buckets - len(even) + 1)
    return np.concatenate([even, growing])


def _bucket_prices(demand: JobDemand, edges: Floats) -> Floats:
    """[classes, buckets]: what a device-second of each class is worth in each bucket, in seconds of JCT."""
    first = np.searchsorted(edges, demand.arrival_s, side="right") - 1
    buckets, kinds = len(edges) - 1, len(demand.capacity)
    job, kind, bucket = np.nonzero(
        np.isfinite(demand.alone_s)[:, :, None] & (np.arange(buckets)[None, :] >= first[:, None])[:, None, :]
    )
    begin = np.maximum(edges[bucket], demand.arrival_s[job])
    room_s = edges[bucket + 1] - begin
    time_s = demand.alone_s[job, kind]
    cost = (begin + room_s / 2 - demand.arrival_s[job]) / time_s
    pairs, pair = np.unique(job * buckets + bucket, return_inverse=True)
    pair_room_s = np.zeros(len(pairs))
    pair_room_s[pair] = room_s
    variable: Numbers = np.arange(len(job))
    rows = np.concatenate([kind * buckets + bucket, kinds * buckets + job, kinds * buckets + len(first) + pair])
    values = np.concatenate([demand.devices[job], 1 / time_s, np.ones(len(job))])
    upper = np.concatenate([np.outer(demand.capacity, np.diff(edges)).ravel(), np.ones(len(first)), pair_room_s])
    lower = np.full(len(upper), -np.inf)
    lower[kinds * buckets : kinds * buckets + len(first)] = 1.0
    solution = minimise(cost, (rows, np.tile(variable, 3), values), upper, lower)
    if solution is None:
        return np.zeros((kinds, buckets))
    return np.maximum(0.0, -solution.prices[: kinds * buckets].reshape(kinds, buckets))


def _refined(nodes: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Nodes from 0 on, some between those that were given, and the values there by linear interpolation."""
    parts = [np.linspace(a, b, _FINER, endpoint=False) for a, b in pairwise(nodes.tolist())]
    finer = np.concatenate([[0.0], *parts, nodes[-1:]])
    return finer, np.array([np.interp(finer, nodes, row) for row in values])


def _least_costs(demand: JobDemand, nodes: Floats, prices: Floats) -> Floats:
    """[jobs]: for each job the greatest ``u − ∫ …``, by ternary search, since it is concave in u."""
    arrival = demand.arrival_s[:, None]
    time = np.maximum(nodes[None, :], arrival)
    at = np.stack([np.interp(time, nodes, row, right=0.0) for row in prices], axis=1)
    alone_s = demand.alone_s[:, :, None]
    scale = np.where(np.isfinite(alone_s), alone_s, 1.0)
    cost = np.where(
        np.isfinite(alone_s), (time - arrival)[:, None, :] + demand.devices[:, None, None] * scale * at, np.inf
    )
    tail_s = np.maximum(0.0, nodes[-1] - demand.arrival_s)

    def value_at(u: Floats) -> Floats:
        gain = np.maximum(0.0, (u[:, None, None] - cost) / scale).max(axis=1)
        after = np.maximum(0.0, u - tail_s) ** 2 / (2 * demand.best_s)
        return np.asarray(u - np.trapezoid(gain, time, axis=1) - after)

    low, high = np.zeros(len(tail_s)), tail_s + demand.best_s
    for _ in range(_ROUNDS):
        lower_third, upper_third = low + (high - low) / 3, high - (high - low) / 3
        is_left = value_at(lower_third) > value_at(upper_third)
        low, high = np.where(is_left, low, lower_third), np.where(is_left, upper_third, high)
    return value_at(low)
