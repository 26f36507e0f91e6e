"""What placing a device costs: queued → running, 50 device tasks and 50 plain ones in one run of one scheduler.

``make bench-overhead``. Device tasks go through HeteroExecutor, plain ones through LocalExecutor
beside it; there are devices enough, so that nothing waits for one. Rounds of five take turns, one
of each kind, so that neither competes with the other for the CPU.
"""

import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from local_airflow import LocalAirflow

HERE = Path(__file__).parent
WARM_UP, RUNS = 1, 3


def main():
    settings = {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor,hetero_airflow.executor.HeteroExecutor"}
    simulated = "nvidia/h100-80gb:16"
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), HERE / "dags", simulated=simulated, settings=settings) as airflow,
    ):
        print("run  kind    tasks  median s  p95 s   max s")
        for number in range(WARM_UP + RUNS):
            run_id = airflow.trigger("overhead")
            state = airflow.wait_for_run("overhead", run_id, 600)
            if state != "success":
                sys.exit(f"the run ended as {state}")
            delays = {"device": [], "plain": []}
            for ti in airflow.tasks("overhead", run_id):
                kind = ti["task_id"].partition("_")[0]
                delays[kind].append((moment(ti["start_date"]) - moment(ti["queued_when"])).total_seconds())
            report("warm-up" if number < WARM_UP else str(number - WARM_UP + 1), delays)


def moment(text):
    return datetime.fromisoformat(text)


def report(name, delays):
    figures = {}
    for kind, values in delays.items():
        median, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        figures[kind] = median, p95
        print(f"{name:8} {kind:7} {len(values):4}  {median:8.3f}  {p95:6.3f}  {max(values):6.3f}")
    ratios = [device / plain for device, plain in zip(figures["device"], figures["plain"], strict=True)]
    print(f"{name:8} device / plain: median {ratios[0]:.2f} ×, p95 {ratios[1]:.2f} ×", flush=True)


if __name__ == "__main__":
    main()
