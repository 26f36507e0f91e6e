"""Three schedulers that race for leases; run ``python tests/benchmarks/bench_store_race.py [seconds]``.

Each process submits requests with a plan that places them on devices picked by chance, which another may have taken a
moment before, as a scheduler does with tasks that were just queued, and releases what it got; all through one
PostgreSQL. Prints for several sizes of a plan how many leases were granted and released a second by all together, how
many each process got, how many placements were refused, what a lease costs in processor time (which says more than the
rate where the machine is busy), and at how many moments a trigger in the database saw more of a device leased than
there is.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import psutil
from lease_audit import audit, overlaps
from postgres_server import running_postgres
from sqlalchemy import Engine, create_engine

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker

PROCESSES = 3
WORKERS = 200
GPUS = 8
PLAN_SIZES = (1, 20, 100)


def race(url: str, name: str, size: int, seconds: float) -> None:
    """The work of one process. It prints granted and released leases, refused placements, and seconds."""
    engine = create_engine(url)
    store, rng, template = SqlStore(engine), random.Random(name), a_pending()
    store.snapshot()
    print("ready", flush=True)
    sys.stdin.readline()
    done = refused = number = 0
    start, cpu = perf_counter(), process_time()
    while perf_counter() - start < seconds:
        now = datetime.now(UTC)
        pending = [replace(template, id=f"{name}-{number + n}") for n in range(size)]
        number += size
        plan = Plan(
            tuple(
                a_place(
                    request.id, f"w{rng.randrange(WORKERS):03}", **{f"GPU-{rng.randrange(GPUS)}": 1000, "cpu": 2000}
                )
                for request in pending
            )
        )
        commit = store.commit(plan, now, now + timedelta(minutes=1), [RequestSubmitted(request) for request in pending])
        store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in commit.leases], now)
        done += len(commit.leases)
        refused += len(commit.raced)
    spent = perf_counter() - start
    print(json.dumps({"done": done, "refused": refused, "spent": spent, "cpu": process_time() - cpu}), flush=True)
    sys.stdin.readline()  # the parent first reads the session's processor time on the server
    engine.dispose()


def server_cpu() -> dict[int, float]:
    """Process of PostgreSQL → seconds of processor time so far."""
    ours = psutil.Process().children(recursive=True)
    return {process.pid: sum(process.cpu_times()[:2]) for process in ours if process.name().startswith("postgres")}


def race_all(engine: Engine, size: int, seconds: float, *, is_audited: bool) -> str:
    """One line of figures."""
    if is_audited:
        audit(engine)
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, str(Path(__file__)), url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([*command, f"{size}-{is_audited}-{n}", str(size), str(seconds)], **pipes)
        for n in range(PROCESSES)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    before = server_cpu()
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [json.loads(racer.stdout.readline()) for racer in racers]
    server = sum(spent - before.get(pid, 0.0) for pid, spent in server_cpu().items())
    for racer in racers:
        racer.communicate()
    shares = "/".join(str(result["done"]) for result in results)
    refused = sum(result["refused"] for result in results)
    done = sum(result["done"] for result in results)
    rate = done / max(result["spent"] for result in results)
    costs = f"{1e3 * sum(result['cpu'] for result in results) / done:.2f} + {1e3 * server / done:.2f} ms"
    proof = f"; {len(overlaps(engine))} moments with a device leased twice" if is_audited else ""
    did = f"{rate:.0f} leases/s granted and released, {shares} each, {refused} refused"
    return f"{size} a plan: {did}; processor time {costs} a lease, in processes and PostgreSQL{proof}"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    devices = (a_cpu(32), *(a_device(f"GPU-{n}", index=n) for n in range(GPUS)))
    print(f"{PROCESSES} processes, {WORKERS} workers of {GPUS} GPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    with running_postgres() as server:
        engine = create_engine(server.url)
        tables.metadata.create_all(engine)
        SqlStore(engine).record([WorkerSeen(a_worker(f"w{n:03}", devices)) for n in range(WORKERS)], EPOCH)
        for size in PLAN_SIZES:
            print(race_all(engine, size, seconds, is_audited=False), flush=True)
        print("with a trigger that notes each change:", race_all(engine, 20, seconds, is_audited=True))
        engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        race(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
