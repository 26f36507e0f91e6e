"""Which policy is the best default, with estimates as in production, with and without preemption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench_schedule_jct import CLUSTER, TRACES
from bench_table import HOUR_S, ON_60_S, Row, Table, simulate, spread

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.traces import load_trace

POLICIES = ("priority", "fifo", "sjf", "las", "assignment")
GENERATED = ("gavel_rate1.7_jobs300", "gavel_rate3_jobs300", "multi_rate0.67_jobs300")
"""Streams like c300, h300 and m300."""
SEEDS = (1000, 1001, 1002)


def tables() -> Iterator[Table]:
    """Mean JCT with learned estimates."""
    workers = parse_cluster(CLUSTER)
    groups = [[f"gavel/{name}"] for name in TRACES]
    groups += [[f"generated/{name}_seed{seed}" for seed in SEEDS] for name in GENERATED]
    rows = []
    for can_preempt in (False, True):
        options = replace(ON_60_S, can_preempt=can_preempt)
        for policy in POLICIES:
            row = Row(policy, policy, Knowledge.LEARNED)
            cells = []
            for names in groups:
                figures = [simulate(load_trace(name), workers, row, options).all.jct_s for name in names]
                means = [jct_s.mean / HOUR_S for jct_s in figures if jct_s is not None]
                cells.append(spread(means, 1))
            rows.append((policy, "yes" if can_preempt else "no", *cells))
    yield Table(
        "The default: mean JCT, hours, with estimates from ended runs",
        "Estimates as in production: first from data sheets, then from the ended runs of a job type. In Gavel's "
        "traces, the length of a job does not depend on its type, which is the hardest case for this. Generated "
        "streams: mean and deviation over 3 seeds.",
        ("policy", "preempts", *(name.split("_")[0] for name in TRACES), "like c300", "like h300", "like m300"),
        rows,
    )
