"""A scheduler with its own requests on a shared store; ``python one_scheduler.py URL NAME SEED REQUESTS``.

It submits requests and gangs of two, runs the cycle, and pretends to run what it is granted. Two tables stand for
Airflow's: `wanted`, what there is to run and whose it is, and `served`, what has run, once. A line ``adopt NAME`` on
stdin makes it take over what another has; it ends when all that it has was served.
"""

import queue
import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, create_engine, text

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted
from hetero_airflow.testing import a_pending

LEASE_TIMEOUT_S = 3.0

TABLES = """
CREATE TABLE wanted (id text PRIMARY KEY, owner text, device text, at_s float, gang text);
CREATE TABLE served (id text PRIMARY KEY, lease_id text);
"""

DEVICES = ("gpu", "gpu", "gpu:2", "cpu:2", {"device": "gpu", "share": 0.5})


class PretendEngine:
    """An engine that runs each task for a few hundredths of a second."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.names = {name}
        self.running: dict[str, tuple[Lease, float]] = {}
        """Lease id → lease and the end of its task."""
        self._rng = rng

    def dispatch(self, lease: Lease) -> None:
        self.running[lease.id] = (lease, time.monotonic() + self._rng.uniform(0.005, 0.05))

    def is_ours(self, request_id: str) -> bool:
        return request_id.split("-")[0] in self.names

    def reaches(self, worker_id: str) -> bool:
        return True

    def open_slots(self) -> int | None:
        return None

    def liveness(self, lease: Lease) -> Liveness:
        """The tasks of a dead scheduler are gone with it."""
        if lease.id in self.running:
            return Liveness.ALIVE
        return Liveness.GONE if self.is_ours(lease.request_id) else Liveness.UNKNOWN


class Scheduler:
    """One scheduler's loop."""

    def __init__(self, database: Engine, name: str, rng: random.Random) -> None:
        self.engine = PretendEngine(name, rng)
        self._database = database
        self._store = SqlStore(database)
        self._cycle = Cycle(self._store, PriorityPolicy(), self.engine, LEASE_TIMEOUT_S)
        self._renewed = 0.0
        self._requests: dict[str, PendingRequest] = {}

    def want(self, rows: list[dict[str, Any]]) -> None:
        """Submit requests."""
        with self._database.begin() as connection:
            connection.execute(text("INSERT INTO wanted VALUES (:id, :owner, :device, :at_s, :gang)"), rows)
        self._hear(rows)

    def adopt(self, name: str) -> None:
        """Adopt the requests of another scheduler."""
        with self._database.connect() as connection:
            rows = connection.execute(text("SELECT * FROM wanted WHERE owner = :name"), {"name": name}).mappings()
            self._hear([dict(row) for row in rows])
        self.engine.names.add(name)

    def _hear(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            gang = {"gang": row["gang"], "gang_size": 2} if row["gang"] else {}
            device = DEVICES[int(row["device"])]
            self._requests[row["id"]] = a_pending(row["id"], device, at_s=row["at_s"], **gang)

    def step(self) -> bool:
        """Run one cycle; returns whether there is more to do."""
        now = datetime.now(UTC)
        snapshot = self._store.snapshot()
        known = {request.id for request in snapshot.pending} | {lease.request_id for lease in snapshot.leases}
        with self._database.connect() as connection:
            served_ids = set(connection.execute(text("SELECT id FROM served")).scalars())
        unserved = {key: request for key, request in self._requests.items() if key not in served_ids}
        self._store.record([RequestSubmitted(request) for key, request in unserved.items() if key not in known], now)
        self._cycle.run(now)
        if time.monotonic() - self._renewed > LEASE_TIMEOUT_S / 3:
            self._renewed = time.monotonic()
            holds = [(lease.id, lease.token) for lease, _ in self.engine.running.values()]
            self._store.renew(holds, now + timedelta(seconds=LEASE_TIMEOUT_S))
        self._end_what_is_over(now)
        return bool(unserved or self.engine.running)

    def _end_what_is_over(self, now: datetime) -> None:
        over = [lease for lease, until in self.engine.running.values() if until <= time.monotonic()]
        ready = {lease.request_id for lease in over}
        whole = [lease for lease in over if self._partners(lease.request_id) <= ready]
        if not whole:
            return
        with self._database.begin() as connection:
            rows = [{"id": lease.request_id, "lease_id": lease.id} for lease in whole]
            connection.execute(text("INSERT INTO served VALUES (:id, :lease_id)"), rows)
        for lease in whole:
            del self.engine.running[lease.id]
        self._store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in whole], now)

    def _partners(self, request_id: str) -> set[str]:
        """The members of the task's gang, which end together."""
        gang = self._requests[request_id].gang
        return {key for key, request in self._requests.items() if request.gang == gang} if gang else {request_id}


def some_work(name: str, rng: random.Random, number: int) -> list[dict[str, Any]]:
    """Requests and gangs in the order of submission."""
    rows: list[dict[str, Any]] = []
    for n in range(number):
        members = 2 if rng.random() < 0.1 else 1
        gang = f"{name}-gang-{n}" if members == 2 else ""
        device = 0 if gang else rng.randrange(len(DEVICES))
        rows += [
            {"id": f"{name}-{n}-{m}", "owner": name, "device": device, "at_s": n, "gang": gang} for m in range(members)
        ]
    return rows


def listen() -> queue.Queue[str]:
    """Reads commands from stdin."""
    commands: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [commands.put(line.strip()) for line in sys.stdin], daemon=True).start()
    return commands


def main(url: str, name: str, seed: int, number: int) -> None:
    rng = random.Random(f"{name} {seed}")
    scheduler, commands = Scheduler(create_engine(url), name, rng), listen()
    work = some_work(name, rng, number)
    print("ready", flush=True)
    assert commands.get() == "go"
    backlog, coming = _next(work, number // 2)
    scheduler.want(backlog)
    is_last = False
    while not is_last:
        batch, coming = _next(coming, rng.randrange(4))
        if batch:
            scheduler.want(batch)
        has_more = scheduler.step()
        while not commands.empty():
            word, *names = commands.get().split()
            is_last = word == "end"
            for other_name in names:
                scheduler.adopt(other_name)
        if not has_more and not coming:
            print("idle", flush=True)
            time.sleep(0.05)


def _next(coming: list[dict[str, Any]], number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """This many of the requests, with whole gangs, and the rest."""
    while number < len(coming) and coming[number]["id"].endswith("-1"):
        number += 1
    return coming[:number], coming[number:]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
