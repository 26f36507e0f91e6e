"""Several processes on one database: no device is leased twice, nothing is lost, there is no deadlock."""

import random
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine, create_engine, select

from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import Claim, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_worker, move_lease
from tests.effort import effort, long

PROCESSES = 4
LATER = EPOCH + timedelta(days=1)
ACCOUNT = Account("random", "by chance")


def operate(store: SqlStore, rng: random.Random, name: str, number: int) -> None:
    """One random operation on the last snapshot, which may be out of date by then."""
    now = EPOCH + timedelta(seconds=number)
    snapshot = store.snapshot()
    kind = rng.choices(("submit", "commit", "end", "renew", "worker", "prune"), (4, 6, 6, 2, 2, 1))[0]
    if kind == "submit":
        store.record([RequestSubmitted(a_pending(f"{name}-{number}", at_s=number))], now)
    elif kind == "commit":
        waits = (Wait(p.id, 1, Reason(ReasonCode.BUSY, "a", "b"), ACCOUNT) for p in snapshot.pending[:3])
        store.commit(Plan((*random_places(rng, snapshot), *waits)), now, LATER)
    elif kind == "renew":
        store.renew([(lease.id, lease.token) for lease in snapshot.leases], LATER + timedelta(seconds=number))
    elif kind == "end" and snapshot.leases:
        lease = rng.choice(snapshot.leases)
        to = rng.choice((LeaseState.RELEASED, LeaseState.EVICTED, LeaseState.EXPIRED))
        try:
            move_lease(store, lease.id, lease.token, to, now)
        except StoreError as error:
            if type(error).__name__ not in ("InvalidTransition", "LeaseNotFound"):  # another process was faster
                raise
    elif kind == "worker":
        worker = a_worker(f"w{rng.randrange(2)}")
        fewer = worker.model_copy(update={"devices": worker.devices[: rng.randrange(1, 4)]})
        withdrawn = [RequestWithdrawn(p.id, "cleared") for p in snapshot.pending[5:6]]
        event, *_ = rng.choices((WorkerSeen(worker), WorkerSeen(fewer), WorkerLost(worker.id)), (6, 2, 1))
        store.record([*withdrawn, event], now)
    elif kind == "prune":
        store.prune(now)


def random_places(rng: random.Random, snapshot: Snapshot) -> list[Place]:
    pending = rng.sample(snapshot.pending, min(len(snapshot.pending), 3))
    return [Place(p.id, f"w{rng.randrange(2)}", 0, random_claims(rng), ACCOUNT) for p in pending]


def random_claims(rng: random.Random) -> tuple[Claim, ...]:
    gpu = Claim(device_id=f"GPU-{rng.randrange(2)}", share_milli=rng.choice((300, 1000)))
    cpu = Claim(device_id="cpu", share_milli=1000 * rng.randrange(1, 5), memory_bytes=rng.choice((0, 2**34)))
    return rng.choice(((gpu,), (cpu,), (gpu, cpu), (cpu, gpu)))


def main(url: str, name: str, operations: int) -> None:
    engine = create_engine(url)
    store, rng = SqlStore(engine), random.Random(name)
    number = 0
    while number < operations or leases_granted(engine) <= operations / 2:  # else the test would show nothing
        operate(store, rng, name, number)
        if number % 20 == 0:
            bit_by_bit, at_once = store.snapshot(), SqlStore(engine).snapshot()
            assert bit_by_bit.sequence != at_once.sequence or bit_by_bit == at_once
        number += 1
    engine.dispose()


def leases_granted(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(tables.state.c.fence)).scalar_one()


@long
def test_processes_at_once_never_lease_a_device_twice(engine):
    operations = effort(60, 250) if engine.dialect.name == "postgresql" else effort(40, 100)
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker("w0")), WorkerSeen(a_worker("w1"))], EPOCH)
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, str(Path(__file__)), url]
    running = [
        subprocess.Popen([*command, f"p{n}", str(operations)], stderr=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(errors)

    snapshot = store.snapshot()
    used: Counter[tuple[str, str]] = Counter()
    cores: list[tuple[str, int]] = []
    for lease in snapshot.leases:
        for claim in lease.claims:
            used[lease.worker_id, claim.device_id] += claim.share_milli
            cores += [(lease.worker_id, core) for core in claim.cores]
    assert len(cores) == len(set(cores))
    assert dict(used) == {key: usage.share_milli for key, usage in snapshot.usage.items() if usage.share_milli}
    assert all(share_milli <= (8000 if device_id == "cpu" else 1000) for (_, device_id), share_milli in used.items())
    fence = leases_granted(engine)
    with engine.connect() as connection:
        tokens = connection.execute(select(tables.lease.c.token)).scalars().all()
        held = connection.execute(select(tables.lease_device).where(tables.lease_device.c.is_held)).all()
    assert len(set(tokens)) == len(tokens)
    assert max(tokens, default=fence) <= fence
    assert {row.lease_id for row in held} == {lease.id for lease in snapshot.leases}
    assert all(len(CORES.validate_json(row.cores)) in (0, row.milli // 1000) for row in held)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
