"""How long a device is idle between two short tasks while others wait: end of one body → start of the next.

``make bench-turns``. The parts: the task's end until its lease is over (the supervisor ends, the scheduler hears of it
and looks for processes that are left), until the next lease (a decision), until the next body (the start of a task).
"""

import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from local_airflow import LocalAirflow
from queueing_delays import DAGS, OURS

from hetero_airflow.store.tables import lease
from tests.postgres_server import running_postgres

RUNS = 2
PARTS = ("end of the body → lease over", "lease over → next lease", "next lease → next body", "idle")


def measure(name: str, database: str | None) -> None:
    """Print the parts for one database, over all turns of all runs."""
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as bodies,
        LocalAirflow(
            Path(home),
            DAGS,
            simulated="nvidia/h100-80gb:1",
            settings={"BENCH_TURNS": bodies, "AIRFLOW__CORE__EXECUTOR": f"{OURS},LocalExecutor"},
            database=database,
        ) as airflow,
    ):
        turns = [turn for _ in range(RUNS) for turn in _one_run(airflow, Path(bodies))]
    for part, seconds in zip(PARTS, zip(*turns, strict=True), strict=True):
        p95 = statistics.quantiles(seconds, n=20)[-1]
        print(f"{name:10}  {part:28}  {len(seconds):4}  {statistics.median(seconds):6.2f}  {p95:6.2f}", flush=True)


def _one_run(airflow: LocalAirflow, bodies: Path) -> list[tuple[float, float, float, float]]:
    """The parts of each turn of one run of the DAG, in seconds."""
    begun = datetime.now(UTC)
    state = airflow.wait_for_run("turns", airflow.trigger("turns"), 600)
    assert state == "success", state
    times = sorted(tuple(map(float, path.read_text().split())) for path in bodies.iterdir())
    with sa.create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]).connect() as connection:
        query = sa.select(lease.c.granted_at, lease.c.ended_at).where(lease.c.granted_at > begun)
        leases = list(connection.execute(query.order_by(lease.c.token)))
    assert len(leases) == len(times), (len(leases), len(times))
    return [
        (ended.timestamp() - end, (granted - ended).total_seconds(), start - granted.timestamp(), start - end)
        for (_, end), (_, ended), (start, _), (granted, _) in zip(times, leases, times[1:], leases[1:], strict=False)
    ]


if __name__ == "__main__":
    print("database    part                          turns  median s  p95 s")
    with running_postgres() as server:
        measure("PostgreSQL", server.url)
    measure("SQLite", None)
