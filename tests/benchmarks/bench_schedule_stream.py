"""Mean JCT in the steady state of a long stream near saturation: jobs 4000 to 4999 of Gavel's 4.8 jobs an hour."""

from collections.abc import Iterator

from bench_table import Row, Table, hours, mean_jct_hours, simulate
from bounds.relaxed_bounds import mean_jct_bounds

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.reports.figures import MeasuredWindow
from hetero_airflow.simulator.traces import load_trace

SEEDS = (0, 1, 2)
CLUSTER = "v100=36,p100=36,k80=36"
WINDOW = MeasuredWindow(4000, 5000)

ROWS = (
    Row("fifo (ignores speeds)", "fifo"),
    Row("**assignment**", "assignment"),
)

PUBLISHED = (
    ("Gavel's simulator: FIFO (knows speeds)", "22.81", "33.53", "19.75"),
    ("Gavel's simulator: LAS (knows speeds)", "19.22", "16.13", "19.00"),
    ("an assignment weighted by attained^-0.25, restarts 60 s", "17.47", "14.67", "18.28"),
)


def tables() -> Iterator[Table]:
    """One table of the three seeds."""
    workers = parse_cluster(CLUSTER)
    workloads = [load_trace(f"gavel/single_rate4.8_seed{seed}") for seed in SEEDS]
    rows = []
    for row in ROWS:
        row_figures = [simulate(workload, workers, row, window=WINDOW) for workload in workloads]
        rows.append((row.label, *map(mean_jct_hours, row_figures)))
    bounds = [mean_jct_bounds(workload, workers, WINDOW.first_job, WINDOW.last_job).best_s for workload in workloads]
    yield Table(
        "Mean JCT of jobs 4000 to 4999, hours: 4.8 jobs an hour on 36 V100 + 36 P100 + 36 K80",
        "A restart costs 60 s. The jobs before and after compete for devices but are not counted. A policy that "
        "ignores speeds does not keep up with this stream, as FIFO shows. LAS and SRTF are left out: their queues grow "
        "too, and one seed of LAS had not ended after 40 minutes.",
        ("policy", *(f"seed {seed}" for seed in SEEDS)),
        (*PUBLISHED, *rows, ("lower bound", *map(hours, bounds))),
    )
