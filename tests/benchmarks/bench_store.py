"""How fast the stores are; run ``python tests/benchmarks/bench_store.py [workers]``.

Prints, for memory, SQLite and PostgreSQL, by default with 1,000 workers:
grants and releases per second, alone and twenty a plan; a snapshot of which nothing, or one lease,
changed; and what a heartbeat costs.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from postgres_server import running_postgres
from sqlalchemy import create_engine

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.store import tables
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

LATER = EPOCH + timedelta(hours=1)
_numbers = count()


def rate(operation: Callable[[], int], seconds: float = 2.0) -> float:
    """Units per second. The operation returns how many units it did."""
    operation()
    done, start = 0, perf_counter()
    while perf_counter() - start < seconds:
        done += operation()
    return done / (perf_counter() - start)


def measure(store: Any, workers: int) -> dict[str, str]:
    """One row of the table."""
    devices = (a_cpu(32), *(a_device(f"GPU-{n}", index=n) for n in range(8)))
    start = perf_counter()
    store.record([WorkerSeen(a_worker(f"w{n:05}", devices)) for n in range(workers)], EPOCH)
    first = perf_counter()
    store.snapshot()
    read = perf_counter()

    pending = a_pending()

    def grant_and_release(batch: int) -> int:
        ids = [f"r{next(_numbers)}" for _ in range(batch)]
        store.record([RequestSubmitted(replace(pending, id=key)) for key in ids], EPOCH)
        plan = Plan(
            tuple(a_place(key, f"w{n % workers:05}", **{"GPU-3": 1000, "cpu": 4000}) for n, key in enumerate(ids))
        )
        for lease in store.commit(plan, EPOCH, LATER).leases:
            move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
        return batch

    def look_after_one() -> float:
        """Median seconds of a snapshot after one request was granted and released."""
        spent = []
        for _ in range(50):
            grant_and_release(1)
            start = perf_counter()
            store.snapshot()
            spent.append(perf_counter() - start)
        return median(spent)

    def look() -> int:
        store.snapshot()
        return 1

    same = a_worker("w00000", devices)

    def beat() -> int:
        store.record([WorkerSeen(same)], EPOCH)
        return 1

    store.record([RequestSubmitted(a_pending(f"waits{n}")) for n in range(1000)], EPOCH)
    reason, account = Reason(ReasonCode.BUSY, "a", "b"), Account("p", "s")
    waits = Plan(tuple(Wait(f"waits{n}", n, reason, account) for n in range(1000)))

    def wait() -> int:
        store.commit(waits, EPOCH, LATER)
        return 1

    return {
        "workers recorded": f"{1e3 * (first - start):.0f} ms",
        "first snapshot": f"{1e3 * (read - first):.0f} ms",
        "submit+grant+release": f"{rate(lambda: grant_and_release(1)):.0f}/s",
        "20 a plan": f"{rate(lambda: grant_and_release(20)):.0f}/s",
        "snapshot unchanged": f"{1e6 / rate(look):.0f} µs",
        "snapshot after one": f"{1e6 * look_after_one():.0f} µs",
        "heartbeat": f"{1e6 / rate(beat):.0f} µs",
        "1000 waits unchanged": f"{1e3 / rate(wait):.1f} ms",
    }


@contextmanager
def stores() -> Iterator[dict[str, Any]]:
    """The three stores, empty. PostgreSQL is started as in the tests."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        postgres = stack.enter_context(running_postgres()).url
        opened = {"memory": MemoryStore()}
        for name, url in {"sqlite": f"sqlite:///{folder}/store.db", "postgresql": postgres}.items():
            engine = create_engine(url)
            stack.callback(engine.dispose)
            if name == "sqlite":
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            tables.metadata.create_all(engine)
            opened[name] = SqlStore(engine)
        yield opened


def main() -> None:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with stores() as made:
        print(f"{workers} workers of 32 cores and 8 GPUs")
        for name, store in made.items():
            print(name, *(f"{what}: {figure}" for what, figure in measure(store, workers).items()), sep="\n  ")


if __name__ == "__main__":
    main()
