"""Makespan of Gavel's three small streams, a restart costs 60 s."""

from collections.abc import Iterator

from bench_schedule_jct import CLUSTER, TRACES
from bench_table import Row, Table, hours, mean_jct_hours, simulate
from bounds.relaxed_bounds import makespan_bounds

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.traces import load_trace

ROWS = (
    Row("fifo", "fifo"),
    Row("assignment (knows no durations)", "assignment"),
    Row("makespan_lp (Gavel's LP in rounds)", "makespan_lp", Knowledge.ORACLE),
    Row("**makespan**", "makespan", Knowledge.ORACLE),
)

PUBLISHED = (
    ("Gavel's simulator: FIFO (ignores speeds)", "1001", "632", "576"),
    ("Gavel's simulator: FIFO (knows speeds)", "290", "257", "484"),
    ("Gavel's simulator: min-total-duration (knows speeds)", "287.9", "231.6", "519"),
)


def tables() -> Iterator[Table]:
    """One row for each policy, with its mean JCT."""
    workers = parse_cluster(CLUSTER)
    workloads = [load_trace(f"gavel/{name}") for name in TRACES]
    rows = []
    for row in ROWS:
        row_figures = [simulate(workload, workers, row) for workload in workloads]
        means = " / ".join(map(mean_jct_hours, row_figures))
        rows.append((row.label, *(hours(figure.makespan_s) for figure in row_figures), means))
    bounds = [hours(makespan_bounds(workload, workers).best_s) for workload in workloads]
    yield Table(
        "Makespan, hours: 300 jobs on 12 V100 + 12 P100 + 12 K80",
        "The two makespan policies know durations. A restart costs 60 s.",
        ("policy", "c300", "h300", "m300", "mean JCT"),
        (*((*row, "–") for row in PUBLISHED), *rows, ("lower bound", *bounds, "–")),
    )
