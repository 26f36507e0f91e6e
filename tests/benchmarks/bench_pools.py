"""The same 60 jobs under Airflow's pools with GPUs picked by hand, and under hetero_airflow, in one Airflow.

``make bench-pools``. The jobs write down which GPU they use, and when. The table is computed from that alone, and not
from what either scheduler believes.
"""

import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from local_airflow import LocalAirflow
from queueing_delays import DAGS, OURS

from tests.postgres_server import running_postgres

sys.path.insert(0, str(DAGS))
from pools_jobs import GPUS, JOBS

SETTINGS = {
    "AIRFLOW__CORE__EXECUTOR": f"{OURS},LocalExecutor",
    "AIRFLOW__CORE__PARALLELISM": "64",
    "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "64",
}
TIMEOUT_S = 900


class Use(NamedTuple):
    """What one process did: on which GPUs, from when, and the end of each step."""

    job: int
    gpus: list[str]
    begin: float
    steps: dict[int, float]

    @property
    def end(self) -> float:
        return max(self.steps.values(), default=self.begin)

    @property
    def gpu_s(self) -> float:
        return len(self.gpus) * (self.end - self.begin)


def read_uses(folder: Path) -> list[Use]:
    """What the jobs of a DAG wrote down."""
    uses = []
    for path in folder.iterdir():
        gpus, begin, *steps = path.read_text().splitlines()
        ends = {int(step): float(end) for step, end in map(str.split, steps)}
        uses.append(Use(int(path.stem), gpus.split(), float(begin.split()[1]), ends))
    return uses


def measures(uses: list[Use], code: str) -> dict[str, str]:
    """The rows of the table for one DAG."""
    begin, gpu_s = min(use.begin for use in uses), sum(use.gpu_s for use in uses)
    ends = {number: max(use.end for use in uses if use.job == number) for number in range(len(JOBS))}
    makespan_s = max(ends.values()) - begin
    high = [ends[job.number] - begin for job in JOBS if job.priority == "high"]
    repeated = sum(
        use.gpu_s * (1 - len(new) / max(len(use.steps), 1)) for use, new in zip(*_new_steps(uses), strict=True)
    )
    collisions = [pair for pair in combinations(uses, 2) if _collide(*pair)]
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith(("#", '"""'))]
    return {
        "makespan, s": f"{makespan_s:.0f}",
        "mean end of the jobs of high priority, s": f"{sum(high) / len(high):.0f}",
        "device-seconds used": f"{gpu_s:.0f}",
        "use of the 6 GPUs, %": f"{100 * gpu_s / sum(GPUS.values()) / makespan_s:.0f}",
        "collisions: pairs of jobs on one GPU at a time": str(len(collisions)),
        "lost work: device-seconds of repeated steps": f"{repeated:.1f}",
        "lines of DAG code": str(len(lines)),
    }


def _new_steps(uses: list[Use]) -> tuple[list[Use], list[set[int]]]:
    """The uses in the order of time, and the steps of each that no earlier use of the job did."""
    done: dict[int, set[int]] = {}
    ordered = sorted(uses, key=lambda use: use.begin)
    new = []
    for use in ordered:
        new.append(set(use.steps) - done.setdefault(use.job, set()))
        done[use.job] |= set(use.steps)
    return ordered, new


def _collide(first: Use, second: Use) -> bool:
    is_shared = not set(first.gpus).isdisjoint(second.gpus)
    return is_shared and first.begin < second.end and second.begin < first.end


def main() -> None:
    """Run both DAGs, one after the other, and print the table."""
    simulated = ",".join(f"nvidia/{model}-80gb:{count}" for model, count in GPUS.items())
    columns = {}
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as notes,
        running_postgres() as server,
        LocalAirflow(
            Path(home), DAGS, database=server.url, simulated=simulated, settings={**SETTINGS, "BENCH_POOLS": notes}
        ) as airflow,
    ):
        for model, count in GPUS.items():
            airflow.api("POST", "/pools", json={"name": model, "slots": count})
        for dag_id in ("pools", "leases"):
            state = airflow.wait_for_run(dag_id, airflow.trigger(dag_id), TIMEOUT_S)
            if state != "success":
                sys.exit(f"the run of {dag_id} ended as {state}")
            columns[dag_id] = measures(read_uses(Path(notes, dag_id)), (DAGS / f"{dag_id}.py").read_text())
    print("| 60 jobs on 4 H100 and 2 A100 (simulated) | pools, GPUs picked by hand | hetero_airflow |\n|---|---:|---:|")
    for name, text in columns["pools"].items():
        print(f"| {name} | {text} | {columns['leases'][name]} |")


if __name__ == "__main__":
    main()
