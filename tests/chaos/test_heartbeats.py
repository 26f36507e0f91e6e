"""Heartbeats that come twice, late, in another order, with another time, or from a process that lost its lease."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import CheckpointSaved, LeaseMove, RequestSubmitted, Store, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore
from tests.store.conftest import empty, make_sqlite_engine

DEVICES = ("GPU-0", "GPU-1")

Message = Callable[[Store], object]


@pytest.fixture(scope="module")
def sqlite_engine(tmp_path_factory: pytest.TempPathFactory):
    engine = make_sqlite_engine(tmp_path_factory.mktemp("heartbeats") / "store.db")
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def postgres_engine(make_postgres_database: Callable[[], str]):
    engine = create_engine(make_postgres_database(), pool_size=10)
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def new_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Makes an empty store of each kind."""
    engine = request.getfixturevalue(f"{request.param}_engine")

    def make() -> Store:
        empty(engine)
        return SqlStore(engine)

    return make


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


def history(store: Store) -> tuple[list[Lease], list[Lease]]:
    """Each device was leased, given back, and leased again: (leases of the past, leases of now)."""
    store.record([WorkerSeen(a_worker())], EPOCH)
    granted = []
    for round_ in ("past", "now"):
        requests = [f"{round_}-{device}" for device in DEVICES]
        store.record([RequestSubmitted(a_pending(key)) for key in requests], EPOCH)
        places = [a_place(key, **{device: 1000}) for key, device in zip(requests, DEVICES, strict=True)]
        leases = store.commit(Plan(tuple(places)), EPOCH, at(15)).leases
        granted.append(list(leases))
        if round_ == "past":
            store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, "ended") for lease in leases], EPOCH)
    return granted[0], granted[1]


def messages(past: list[Lease], now: list[Lease]) -> list[Message]:
    """All messages that may still be under way: of every lease, with its own and other tokens, from many moments."""
    tokens = [lease.token for lease in (*past, *now)]
    sent: list[Message] = []
    for lease in (*past, *now):
        for moment in map(at, (-60.0, 0.0, 5.0, 60.0)):
            sent += [
                lambda store, id_=lease.id, token=token, until=moment: store.renew([(id_, token)], until)
                for token in (*tokens, 0)
            ]
            sent.append(
                lambda store, id_=lease.id, token=lease.token, now=moment: store.record(
                    [CheckpointSaved(id_, token)], now
                )
            )
    for lease in now:
        sent += [
            lambda store, id_=lease.id, token=token: store.move(
                [LeaseMove(id_, token, LeaseState.EVICTED, "late")], at(5)
            )
            for token in (*(lease.token for lease in past), 0)
        ]
    for lease in past:
        sent.append(
            lambda store, id_=lease.id, token=lease.token: store.move(
                [LeaseMove(id_, token, LeaseState.RELEASED, "twice")], at(5)
            )
        )
    sent += [lambda store, now=now: store.record([WorkerSeen(a_worker())], now) for now in map(at, (-60, 0, 60))]
    return sent


def assert_only_the_holders_hold(store: Store, now: list[Lease]) -> None:
    snapshot = store.snapshot()
    assert sorted((lease.id, lease.token, lease.claims) for lease in snapshot.leases) == sorted(
        (lease.id, lease.token, lease.claims) for lease in now
    )
    assert all(lease.state in (LeaseState.GRANTED, LeaseState.ACTIVE) for lease in snapshot.leases)
    used = {device: usage.share_milli for (_, device), usage in snapshot.usage.items() if usage.share_milli}
    assert used == dict.fromkeys(DEVICES, 1000)
    assert [worker.state for worker in snapshot.workers] == ["online"]


def assert_a_heartbeat_in_time_puts_all_right(store: Store, now: list[Lease]) -> None:
    store.record([WorkerSeen(a_worker())], at(100))
    assert store.renew([(lease.id, lease.token) for lease in now], at(115)) == frozenset()
    assert store.last_seen() == {"worker-a": at(100)}
    assert {(lease.state, lease.expires_at) for lease in store.snapshot().leases} == {(LeaseState.ACTIVE, at(115))}


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
def test_in_any_order_they_take_nothing_from_the_holders(seed: int, count: int) -> None:
    store = SqliteStore()
    past, now = history(store)
    for message in random.Random(seed).choices(messages(past, now), k=count):
        message(store)
        assert_only_the_holders_hold(store, now)
    assert_a_heartbeat_in_time_puts_all_right(store, now)


@pytest.mark.parametrize("seed", range(3))
def test_every_store_takes_all_of_them_twice_and_shuffled(new_store: Callable[[], Store], seed: int) -> None:
    store = new_store()
    past, now = history(store)
    late = 2 * messages(past, now)
    random.Random(seed).shuffle(late)
    for message in late:
        message(store)
    assert_only_the_holders_hold(store, now)
    assert_a_heartbeat_in_time_puts_all_right(store, now)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_they_come_from_several_threads_while_others_ask_for_the_same_devices(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    engine = request.getfixturevalue(f"{kind}_engine")
    empty(engine)
    past, now = history(SqlStore(engine))
    late = 2 * messages(past, now)
    random.Random(0).shuffle(late)
    greedy = [f"greedy-{number}" for number in range(8)]
    SqlStore(engine).record([RequestSubmitted(a_pending(key)) for key in greedy], EPOCH)
    barrier = threading.Barrier(4)

    def deliver(number: int) -> int:
        store, granted = SqlStore(engine), 0
        barrier.wait()
        for message in late[number::4]:
            message(store)
        for key in greedy[number::4]:
            granted += len(store.commit(Plan((a_place(key, **{"GPU-0": 1000}),)), at(5), at(20)).leases)
        return granted

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(deliver, range(4))) == 0
    store = SqlStore(engine)
    assert_only_the_holders_hold(store, now)
    assert_a_heartbeat_in_time_puts_all_right(store, now)
