"""Random histories: the SQL store does the same as the memory store, and its counts are right after every step."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, select

from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES
from hetero_airflow.store.lease_rules import lease_id
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import (
    CheckpointSaved,
    LeaseMove,
    RequestSubmitted,
    RequestWithdrawn,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker

WORKERS = st.sampled_from(["a", "b"])
REQUESTS = st.sampled_from([f"r{n}" for n in range(6)])
TOKENS = st.integers(0, 2)
ACCOUNT = Account("random", "by chance")
REASON = Reason(ReasonCode.BUSY, "some", "none")


@st.composite
def devices(draw) -> tuple[Device, ...]:
    gpus = draw(st.lists(st.sampled_from(["GPU-0", "GPU-1"]), unique=True))
    sick = draw(st.booleans())
    generated = [a_device(gpu, leasable=not (sick and gpu == "GPU-1")) for gpu in gpus]
    if draw(st.booleans()):
        generated.insert(0, a_cpu(cores=draw(st.integers(1, 6)), memory=draw(st.sampled_from(["2GiB", "8GiB"]))))
    return tuple(generated)


@st.composite
def places(draw) -> Place:
    gpu = st.builds(
        Claim,
        device_id=st.sampled_from(["GPU-0", "GPU-1"]),
        share_milli=st.sampled_from([-1, 0, 300, 500, 1000]),
        memory_bytes=st.sampled_from([0, 2**30]),
    )
    cpu = st.builds(
        Claim,
        device_id=st.just("cpu"),
        share_milli=st.sampled_from([0, 1000, 2000, 3000, 500]),
        memory_bytes=st.sampled_from([0, 2**30, 2**33]),
    )
    claims = draw(st.lists(gpu | cpu, max_size=3))
    return Place(draw(REQUESTS), draw(WORKERS), 0, tuple(claims), ACCOUNT)


DECISIONS = (
    places()
    | st.builds(Wait, REQUESTS, st.integers(1, 3), st.just(REASON), st.just(ACCOUNT))
    | st.builds(Refuse, REQUESTS, st.just(REASON), st.just("nothing"), st.just(ACCOUNT))
)
EVENTS = (
    st.builds(lambda key, present: WorkerSeen(a_worker(key, present)), WORKERS, devices())
    | st.builds(WorkerLost, WORKERS)
    | st.builds(lambda key: RequestSubmitted(a_pending(key)), REQUESTS)
    | st.builds(RequestWithdrawn, REQUESTS, st.just("cleared"))
    | st.builds(lambda key, token: CheckpointSaved(lease_id(key, token), token), REQUESTS, st.integers(1, 6))
)


class Stores(RuleBasedStateMachine):
    """Two SQL stores take turns, so each must notice the other's changes; the memory store gets all of them."""

    engine: Engine
    empty: Callable[[Engine], None]
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.empty(self.engine)
        self.memory = MemoryStore()
        self.sql = [SqlStore(self.engine), SqlStore(self.engine)]
        self.now = EPOCH
        self.newest = 0
        self.ended: set[str] = set()

    def both(self, method: str, *arguments: object) -> object:
        """The result of both stores, or the error that both raise."""
        self.now += timedelta(seconds=1)
        self.sql.reverse()
        answers = []
        for store in (self.memory, self.sql[0]):
            try:
                answers.append(getattr(store, method)(*(self.now if a is Ellipsis else a for a in arguments)))
            except StoreError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(events=st.lists(EVENTS, max_size=5))
    def record(self, events) -> None:
        self.both("record", events, ...)

    @rule(target=leases, decisions=st.lists(DECISIONS, max_size=5))
    def commit(self, decisions):
        made = self.both("commit", Plan(tuple(decisions)), ..., EPOCH + timedelta(days=1))
        for lease in made.leases:
            assert lease.token > self.newest
            self.newest = lease.token
        return made.leases[0] if made.leases else None

    @rule(lease=leases, to=st.sampled_from(LeaseState), off=TOKENS)
    def move(self, lease, to, off) -> None:
        if lease and lease.id in {live.id for live in self.memory.snapshot().leases}:
            self.both("move", [LeaseMove(lease.id, lease.token + (off == 2), to)], ...)

    @rule(age_s=st.integers(0, 5))
    def prune(self, age_s) -> None:
        """What has ended is deleted; the store in memory never had it, but it keeps the turn of the DAG."""
        snapshot = self.memory.snapshot()
        if snapshot.pending or snapshot.holders:
            self.sql[0].prune(self.now - timedelta(seconds=age_s))

    @invariant()
    def both_show_the_same(self) -> None:
        self.both("snapshot")

    @invariant()
    def the_books_are_right(self) -> None:
        snapshot = self.memory.snapshot()
        held: Counter[tuple[str, str]] = Counter()
        cores: list[tuple[str, int]] = []
        for lease in snapshot.leases:
            for claim in lease.claims:
                held[lease.worker_id, claim.device_id] += claim.share_milli
                cores += [(lease.worker_id, core) for core in claim.cores]
                assert len(claim.cores) == (claim.share_milli // 1000 if claim.device_id == "cpu" else 0)
        assert len(cores) == len(set(cores))
        assert {key: usage.share_milli for key, usage in snapshot.usage.items() if usage.share_milli} == dict(+held)
        assert all(share_milli <= 1000 for (_, device_id), share_milli in held.items() if device_id != "cpu")

    @invariant()
    def the_tables_agree_with_themselves(self) -> None:
        lease, held, device = tables.lease, tables.lease_device, tables.device
        with self.engine.connect() as connection:
            live = set(connection.execute(select(lease.c.id).where(lease.c.ended_at.is_(None))).scalars())
            rows = connection.execute(select(held)).all()
            assert {row.lease_id for row in rows if row.is_held} == live
            used: Counter[tuple[str, str]] = Counter()
            for row in rows:
                if row.is_held:
                    used[row.worker_id, row.device_id] += row.milli
                assert len(CORES.validate_json(row.cores)) in (0, row.milli // 1000)
            for row in connection.execute(select(device)):
                assert row.used_milli == used.pop((row.worker_id, row.id), 0) <= row.capacity_milli
                assert row.capacity_milli == max(row.offered_milli, row.used_milli)
            assert not +used


@pytest.mark.parametrize(("steps", "examples"), [(20, 40)])
def test_random_histories_end_alike_in_every_store(engine, empty, steps, examples):
    machine = type("StoresOnEngine", (Stores,), {"engine": engine, "empty": staticmethod(empty)})
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(machine, settings=limits)
