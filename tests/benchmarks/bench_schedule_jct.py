"""Mean JCT on Gavel's three small streams, 12 devices of each of three types, a restart costs 60 s."""

from collections.abc import Iterator

from bench_table import Row, Table, hours, mean_jct_hours, percent, simulate
from bounds.relaxed_bounds import mean_jct_bounds

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.traces import load_trace

TRACES = ("c300_seed0", "h300_seed0", "m300_seed0")
CLUSTER = "v100=12,p100=12,k80=12"

ROWS = (
    Row("fifo (ignores speeds)", "fifo"),
    Row("las (ignores speeds)", "las"),
    Row("assignment (knows no speeds)", "assignment", Knowledge.NONE),
    Row("assignment (learns speeds from runs)", "assignment", Knowledge.LEARNED),
    Row("max-min fairness (Gavel's LP)", "max_min_fairness"),
    Row("**assignment**", "assignment"),
    Row("srtf (knows durations, ignores speeds)", "srtf", Knowledge.ORACLE),
)

PUBLISHED = (
    ("Gavel's simulator: FIFO (ignores speeds)", "23.12", "31.83", "16.52"),
    ("Gavel's simulator: FIFO (knows speeds)", "14.41", "27.27", "12.49"),
    ("Gavel's simulator: LAS (ignores speeds)", "19.78", "24.91", "18.35"),
    ("Gavel's simulator: LAS (knows speeds)", "14.39", "17.62", "13.31"),
    ("Gavel's simulator: AlloX (knows durations)", "14.85", "18.37", "–"),
)
"""From a new run by the collector of the data set, in which restarts cost nothing. See the README beside the traces."""


def tables() -> Iterator[Table]:
    """Mean JCT, then the other figures of the same runs."""
    workers = parse_cluster(CLUSTER)
    workloads = [load_trace(f"gavel/{name}") for name in TRACES]
    figures = {row.label: [simulate(workload, workers, row) for workload in workloads] for row in ROWS}
    means = [(label, *map(mean_jct_hours, row_figures)) for label, row_figures in figures.items()]
    bounds = ("lower bound", *(hours(mean_jct_bounds(workload, workers).best_s) for workload in workloads))
    yield Table(
        "Mean JCT, hours: 300 jobs on 12 V100 + 12 P100 + 12 K80",
        "Unless a row says otherwise, policies know the speed of each job type on each device type, but not the length "
        "of a job. A restart after a preemption costs 60 s; in Gavel's own simulator it costs nothing.",
        ("policy", "c300", "h300 (overloaded)", "m300 (1 to 8 devices)"),
        (*PUBLISHED, *means, bounds),
    )
    rows = []
    for label, row_figures in figures.items():
        for name, figure in zip(TRACES, row_figures, strict=True):
            jct, wait = figure.all.jct_s, figure.all.wait_s
            assert jct is not None
            assert wait is not None
            rows.append((
                label, name, *(hours(part) for part in (jct.p50, jct.p95, jct.p99, wait.mean, figure.makespan_s)),
                percent(figure.busy_utilisation), percent(figure.goodput_utilisation),
                str(figure.preemptions), str(figure.migrations),
            ))  # fmt: skip
    yield Table(
        "The same runs: spread, wait, makespan (hours), utilisation (%)",
        "Busy: the share of all device-time, until the last job ends, in which a job held the device. Goodput: the "
        "share that the same work takes on the fastest device type of each job.",
        (
            "policy",
            "trace",
            "JCT p50",
            "p95",
            "p99",
            "wait",
            "makespan",
            "busy",
            "goodput",
            "preemptions",
            "migrations",
        ),
        rows,
    )
