"""Does the simulator agree with the publishers' simulators? Muri's traces. openb has its own section."""

import csv
from collections.abc import Iterator

from bench_table import Table
from test_truth import POLICIES, MuriWorld

from hetero_airflow.simulator.reports.figures import measure
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.files import trace_folder

TRACES = ("trace1", "trace1_pr", "trace3", "trace3_pr")
"""Without trace 2, which takes the longest by far. The test with the marker bench runs it."""


def tables() -> Iterator[Table]:
    """Simulated and recorded values."""
    with (trace_folder(None) / "muri" / "published_avg_jct_seconds.csv").open() as file:
        recorded = {row[""]: row for row in csv.DictReader(file)}
    rows = []
    for name, policy in POLICIES.items():
        for trace in TRACES:
            spread = measure(MuriWorld(load_trace(f"muri/{trace}"), policy(min_run_s=0)).run()).all.jct_s
            assert spread is not None
            published = float(recorded[name][trace])
            rows.append(
                (name, trace, f"{spread.mean:,.1f}", f"{published:,.1f}", f"{100 * (spread.mean / published - 1):+.5f}")
            )
    yield Table(
        "Muri's traces: mean JCT in seconds, 64 devices",
        "Our cycle and our policies, with known durations. As in the publisher's simulator, each event stops all jobs "
        "and starts them again.",
        ("policy", "trace", "simulated", "recorded", "difference, %"),
        rows,
    )
