"""Makespan of Gavel's three small streams, restarts charged 60 s."""

from __future__ import annotations

from collections.abc import Iterator

from bench_schedule_jct import CLUSTER, TRACES
from bench_table import Row, Table, hours, simulate
from bounds.relaxed_bounds import makespan_bounds

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.traces import load_trace

ROWS = (
    Row("fifo", "fifo"),
    Row("assignment, knows no durations", "assignment"),
    Row("makespan_lp (Gavel's LP in rounds)", "makespan_lp", Knowledge.ORACLE),
    Row("**makespan**", "makespan", Knowledge.ORACLE),
)

PUBLISHED = (
    ("Gavel's simulator: blind FIFO", "1001", "632", "576"),
    ("Gavel's simulator: aware FIFO", "290", "257", "484"),
    ("Gavel's simulator: min-total-duration, aware", "287.9", "231.6", "519"),
)


def tables() -> Iterator[Table]:
    """One row a policy, and what it costs the mean JCT."""
    workers = parse_cluster(CLUSTER)
    workloads = [load_trace(f"gavel/{name}") for name in TRACES]
    rows = []
    for row in ROWS:
        own = [simulate(workload, workers, row) for workload in workloads]
        means = [hours(one.all.jct_s.mean if one.all.jct_s else None) for one in own]
        rows.append((row.label, *(hours(one.makespan_s) for one in own), " / ".join(means)))
    bounds = [hours(makespan_bounds(workload, workers).best_s) for workload in workloads]
    yield Table(
        "Makespan, hours: 300 jobs on 12 V100 + 12 P100 + 12 K80",
        "The policies of this name know durations; a restart costs 60 s.",
        ("policy", "c300", "h300", "m300", "mean JCT"),
        (*((*one, "–") for one in PUBLISHED), *rows, ("lower bound", *bounds, "–")),
    )
