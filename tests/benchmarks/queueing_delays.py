"""From queued to running: 50 device tasks and 50 plain ones in each run of the DAG ``overhead``.

Rounds of five take turns, one of each kind, so that neither competes with the other for the CPU.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from local_airflow import LocalAirflow

DAGS = Path(__file__).parent / "dags"
WARM_UP, RUNS = 1, 3


def print_delays(airflow: LocalAirflow, timeout_s: float) -> None:
    """Run it again and again on that Airflow, each run within `timeout_s`; print what each kind waited."""
    print("run  kind    tasks  median s  p95 s   max s")
    for number in range(WARM_UP + RUNS):
        run_id = airflow.trigger("overhead")
        state = airflow.wait_for_run("overhead", run_id, timeout_s)
        if state != "success":
            sys.exit(f"the run ended as {state}")
        delays: dict[str, list[float]] = {"device": [], "plain": []}
        for ti in airflow.tasks("overhead", run_id):
            kind = ti["task_id"].partition("_")[0]
            delays[kind].append((_moment(ti["start_date"]) - _moment(ti["queued_when"])).total_seconds())
        _report("warm-up" if number < WARM_UP else str(number - WARM_UP + 1), delays)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _report(name: str, delays: Mapping[str, Sequence[float]]) -> None:
    figures = {}
    for kind, values in delays.items():
        median, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        figures[kind] = median, p95
        print(f"{name:8} {kind:7} {len(values):4}  {median:8.3f}  {p95:6.3f}  {max(values):6.3f}")
    ratios = [device / plain for device, plain in zip(figures["device"], figures["plain"], strict=True)]
    print(f"{name:8} device / plain: median {ratios[0]:.2f} ×, p95 {ratios[1]:.2f} ×", flush=True)
