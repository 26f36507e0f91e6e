"""Three schedulers on one PostgreSQL, one of them killed: each request is served once, no device is leased twice."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text

from hetero_airflow.model.lease import TERMINAL, LeaseState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.tallies import read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker
from tests.lease_audit import audit, overlaps
from tests.store.one_scheduler import TABLES
from tests.waiting import PATIENCE_S, eventually

NAMES = ("s0", "s1", "s2")
REQUESTS = 60


pytestmark = pytest.mark.postgres


@pytest.fixture(name="database")
def make_database(make_postgres_database: Callable[[], str]) -> Iterator[Engine]:
    engine = create_engine(make_postgres_database())
    tables.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text(TABLES))
    devices = (a_cpu(8), *(a_device(f"GPU-{n}", index=n) for n in range(4)))
    SqlStore(engine).record([WorkerSeen(a_worker(name, devices)) for name in ("w0", "w1")], EPOCH)
    audit(engine)
    yield engine
    engine.dispose()


@contextmanager
def schedulers(database: Engine, seed: int) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Three started schedulers."""
    url = database.url.render_as_string(hide_password=False)
    script = str(Path(__file__).with_name("one_scheduler.py"))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = {
        name: subprocess.Popen([sys.executable, script, url, name, str(seed), str(REQUESTS)], **pipes) for name in NAMES
    }
    try:
        for process in started.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started.values():
            tell(process, "go")
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def count(database: Engine, query: str, **values: str) -> int:
    with database.connect() as connection:
        return int(connection.execute(text(query), values).scalar_one())


def granted(database: Engine) -> list[str]:
    """The scheduler of each lease's request, in the order of the grants."""
    with database.connect() as connection:
        rows = connection.execute(select(tables.lease.c.request_id).order_by(tables.lease.c.token)).scalars()
        return [request_id.split("-")[0] for request_id in rows]


def assert_tallies_are_those_of(database: Engine, leases: Collection[Any]) -> None:
    """The counted leases, ends and times are those of the rows, though one of the writers was killed."""
    counted: Counter[tuple[str, str]] = Counter()
    total_ms: Counter[str] = Counter()
    with read_transaction(database) as connection:
        for tally in read_tallies(connection):
            counted[tally.name, tally.label] += tally.count
            total_ms[tally.name] += tally.total_ms
    of_rows = Counter(("ended", lease.outcome or "unknown") for lease in leases)
    of_rows += Counter((name, lease.device_model) for lease in leases for name in ("waited", "held"))
    assert counted == of_rows
    held_ms = sum((lease.ended_at - lease.granted_at).total_seconds() * 1000 for lease in leases)
    assert total_ms["held"] == pytest.approx(held_ms, abs=len(leases))


def test_three_schedulers_serve_all_once_though_one_is_killed(database):
    with schedulers(database, seed=1) as running:
        eventually(lambda: granted(database).count("s2") >= REQUESTS // 4)
        running["s2"].kill()
        running["s2"].wait()
        waiting = "SELECT count(*) FROM wanted WHERE id NOT IN (SELECT id FROM served)"
        assert count(database, f"{waiting} AND owner = 's2'") > 0, "it had more to do: else the test shows nothing"
        tell(running["s0"], "adopt s2")
        eventually(lambda: count(database, waiting) == 0)
        eventually(lambda: not SqlStore(database).snapshot().leases)
        for name in ("s0", "s1"):
            tell(running[name], "end")
            assert running[name].communicate(timeout=PATIENCE_S)[0].endswith("idle\n")
            assert running[name].returncode == 0

    assert overlaps(database) == []
    assert not any(usage.share_milli for usage in SqlStore(database).snapshot().usage.values())
    with database.connect() as connection:
        served_leases = {row.id: row.lease_id for row in connection.execute(text("SELECT id, lease_id FROM served"))}
        leases = {row.id: row for row in connection.execute(select(tables.lease))}
    assert {leases[lease_id].request_id for lease_id in served_leases.values()} == set(served_leases), (
        "each under its own lease"
    )
    assert len(served_leases) == count(database, "SELECT count(*) FROM wanted")
    run = [
        lease for lease in leases.values() if lease.state == LeaseState.RELEASED and "not dispatched" not in lease.cause
    ]
    assert len({lease.request_id for lease in run}) == len(run), "nothing ran to its end twice"
    assert all(lease.state in TERMINAL for lease in leases.values())
    assert_tallies_are_those_of(database, leases.values())
    order = granted(database)
    turns = [mean(turn for turn, owner in enumerate(order) if owner == name) for name in ("s0", "s1")]
    assert max(turns) < 2 * min(turns), f"one served after the other would be thrice: {turns} of {len(order)}"
