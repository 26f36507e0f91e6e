"""From queued to running: 50 device tasks and 50 plain ones in each run of the DAG ``overhead``.

Rounds of five tasks of each kind take turns, so that the kinds do not compete for the CPU. A scheduler serves its
executors one after the other, and the second one waits for the first. So each is first in half of the runs.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path

from local_airflow import LocalAirflow

DAGS = Path(__file__).parent / "dags"
OURS = "hetero_airflow.executor.HeteroExecutor"
WARM_UP, RUNS = 1, 3


@contextmanager
def booted(executors: str) -> Iterator[LocalAirflow]:
    """An Airflow with these executors, and 16 simulated GPUs: so many that no task of the DAG waits for one."""
    settings = {"AIRFLOW__CORE__EXECUTOR": executors}
    simulated = "nvidia/h100-80gb:16"
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), DAGS, simulated=simulated, settings=settings) as airflow,
    ):
        yield airflow


def print_delays(
    boot: Callable[[str], AbstractContextManager[LocalAirflow]], plain: str, timeout_s: float = 900
) -> None:
    """Run the DAG several times, each within `timeout_s`. Print the delays of each kind, and at the end over all runs.

    :param boot: starts an Airflow with that value of ``[core] executor``
    :param plain: the executor of the plain tasks
    """
    print("first  run      kind    tasks  median s  p95 s   max s")
    total: dict[str, list[float]] = {"device": [], "plain": []}
    for name, order in (("plain", (plain, OURS)), ("device", (OURS, plain))):
        with boot(",".join(order)) as airflow:
            for number in range(WARM_UP + RUNS):
                delays = _delays(airflow, timeout_s)
                _report(f"{name:6} {'warm-up' if number < WARM_UP else number - WARM_UP + 1!s:8}", delays)
                for kind in total if number >= WARM_UP else ():
                    total[kind] += delays[kind]
    _report(f"{'both':6} {'all':8}", total)


def _delays(airflow: LocalAirflow, timeout_s: float) -> dict[str, list[float]]:
    """Kind → seconds from queued to running, of the tasks of one run."""
    run_id = airflow.trigger("overhead")
    state = airflow.wait_for_run("overhead", run_id, timeout_s)
    if state != "success":
        sys.exit(f"the run ended as {state}")
    delays: dict[str, list[float]] = {"device": [], "plain": []}
    for ti in airflow.tasks("overhead", run_id):
        kind = ti["task_id"].partition("_")[0]
        delays[kind].append(queued_s(ti))
    return delays


def queued_s(ti: Mapping[str, str]) -> float:
    """Seconds from queued to running, of a task instance."""
    queued, started = (datetime.fromisoformat(ti[name]) for name in ("queued_when", "start_date"))
    return (started - queued).total_seconds()


def _report(name: str, delays: Mapping[str, Sequence[float]]) -> None:
    figures = {}
    for kind, values in delays.items():
        median, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        figures[kind] = median, p95
        print(f"{name} {kind:7} {len(values):4}  {median:8.3f}  {p95:6.3f}  {max(values):6.3f}")
    ratios = [device / plain for device, plain in zip(figures["device"], figures["plain"], strict=True)]
    print(f"{name} device / plain: median {ratios[0]:.2f} ×, p95 {ratios[1]:.2f} ×", flush=True)
