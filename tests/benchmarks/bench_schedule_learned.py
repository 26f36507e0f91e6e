"""What it costs not to know the speeds: Gavel's small streams, and generated ones that no figure was tuned on."""

import statistics
from collections.abc import Iterator

from bench_table import HOUR_S, Row, Table, simulate

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.reports.figures import Figures
from hetero_airflow.simulator.traces import load_trace

CLUSTER = "v100=12,p100=12,k80=12"
PUBLIC = ("c300_seed0", "h300_seed0", "m300_seed0")
STREAMS = ("gavel_rate1.7", "gavel_rate3", "multi_rate0.67")
SEEDS = range(2000, 2008)

ROWS = (
    Row("speeds are known", "assignment"),
    Row("learned from steps, all jobs report", "assignment", Knowledge.PROGRESS),
    Row("learned from steps, half of the jobs report", "assignment", Knowledge.HALF),
    Row("learned from the lengths of runs", "assignment", Knowledge.LEARNED),
)


def tables() -> Iterator[Table]:
    """Mean JCT, and its ratio to known speeds."""
    groups = [(name, [f"gavel/{name}"]) for name in PUBLIC]
    groups += [(stream, [f"generated/{stream}_jobs300_seed{seed}" for seed in SEEDS]) for stream in STREAMS]
    figures = {
        row.label: [[simulate(load_trace(name), parse_cluster(CLUSTER), row) for name in names] for _, names in groups]
        for row in ROWS
    }
    known = [list(map(_mean_h, runs)) for runs in figures[ROWS[0].label]]
    rows = []
    for label, groups_figures in figures.items():
        texts = []
        for runs, known_h in zip(groups_figures, known, strict=True):
            means = list(map(_mean_h, runs))
            ratio = statistics.fmean(means) / statistics.fmean(known_h)
            texts.append(f"{statistics.fmean(means):.2f} ({ratio:.3f})")
        rows.append((label, *texts))
    preemptions = [
        (label, *(str(round(statistics.fmean(figure.preemptions for figure in runs))) for runs in groups_figures))
        for label, groups_figures in figures.items()
    ]
    headers = tuple(name for name, _ in groups)
    yield Table(
        "Learned against known speeds: mean JCT, hours, and the ratio to known speeds",
        "300 jobs on 12 V100 + 12 P100 + 12 K80 under `assignment`; a restart costs 60 s. The first three streams are "
        "public. The others are generated, with 8 seeds each (2000 to 2007) that were used for no choice.",
        ("speeds", *headers),
        rows,
    )
    yield Table("The same runs: preemptions", "Mean number of each run.", ("speeds", *headers), preemptions)


def _mean_h(figure: Figures) -> float:
    assert figure.all.jct_s is not None
    return figure.all.jct_s.mean / HOUR_S
