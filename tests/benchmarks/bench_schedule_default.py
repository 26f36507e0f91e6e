"""The default against `priority` on the same streams, with the worst seed, with and without preemption."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean

from bench_schedule_jct import CLUSTER
from bench_table import ON_60_S, Row, Table, percent, simulate

from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge
from hetero_airflow.simulator.reports.figures import Figures
from hetero_airflow.simulator.traces import load_trace

HOSTS = "v100=2x8,p100=2x8,k80=2x8"
STREAMS = {
    "like c300": ("gavel_rate1.7_jobs300", CLUSTER),
    "like h300 (overload)": ("gavel_rate3_jobs300", CLUSTER),
    "like m300": ("multi_rate0.67_jobs300", CLUSTER),
    "hosts of 8 devices": ("multi_rate0.8_jobs300", HOSTS),
    "hosts of 8, overload": ("multi_rate2_jobs300", HOSTS),
}
SEEDS = range(2008, 2016)
SHORTEST_S = 60.0
"""A wait below this counts as this in a ratio."""


def tables() -> Iterator[Table]:
    """One table without preemption, one with it."""
    for can_preempt in (False, True):
        rows = []
        for label, (stream, cluster) in STREAMS.items():
            for knowledge in (Knowledge.SPEEDS, Knowledge.PROGRESS, Knowledge.LEARNED):
                pairs = [_both(f"generated/{stream}_seed{seed}", cluster, knowledge, can_preempt) for seed in SEEDS]
                rows.append((f"{label}: {_KNOWN[knowledge]}", *_cells(pairs)))
        yield Table(
            f"`assignment` against `priority`, {'with' if can_preempt else 'without'} preemption",
            f"Parts of what `priority` needs on the same stream, geometric mean over seeds {SEEDS[0]} to {SEEDS[-1]}, "
            "which were used for no choice; in brackets the worst of them. Waits: the 99 % quantile. A restart costs "
            "60 s.",
            ("stream, and what is known of speeds", "mean JCT", "slowest 1 % of waits", "makespan",
             "goodput, % (`priority`)", "preemptions a job"),
            rows,
        )  # fmt: skip


_KNOWN = {
    Knowledge.SPEEDS: "all",
    Knowledge.PROGRESS: "learned from steps",
    Knowledge.LEARNED: "learned from ended runs",
}


def _both(trace: str, cluster: str, knowledge: Knowledge, can_preempt: bool) -> tuple[Figures, Figures]:
    """The figures of `assignment` and of `priority`."""
    workload, workers = load_trace(trace), parse_cluster(cluster)
    options = replace(ON_60_S, can_preempt=can_preempt)
    ours, base = (simulate(workload, workers, Row("", name, knowledge), options) for name in ("assignment", "priority"))
    return ours, base


def _cells(pairs: Sequence[tuple[Figures, Figures]]) -> tuple[str, ...]:
    ratios = [[_of(ours, part) / _of(base, part) for ours, base in pairs] for part in ("jct", "wait", "makespan")]
    goodput = [percent(fmean(figures[n].goodput_utilisation or 0.0 for figures in pairs)) for n in (0, 1)]
    preemptions = [ours.preemptions / ours.all.jobs for ours, _ in pairs]
    return (
        *(f"{geometric_mean(parts):.2f} ({max(parts):.2f})" for parts in ratios),
        f"{goodput[0]} ({goodput[1]})",
        f"{fmean(preemptions):.2f} ({max(preemptions):.2f})",
    )


def _of(figures: Figures, part: str) -> float:
    """Seconds: the mean JCT, the 99 % quantile of the waits, or the makespan."""
    jct_s, wait_s, makespan_s = figures.all.jct_s, figures.all.wait_s, figures.makespan_s
    assert jct_s is not None
    assert wait_s is not None
    assert makespan_s is not None
    return {"jct": jct_s.mean, "wait": max(wait_s.p99, SHORTEST_S), "makespan": makespan_s}[part]
