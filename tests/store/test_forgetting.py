"""Lost workers, and everything about them, leave the store."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, func, select

from hetero_airflow.errors import StoreError
from hetero_airflow.executor.lost_worker_watch import WorkerRetention
from hetero_airflow.model.devices.health import CountedError, DeviceHealth
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.agent_messages import Admission, AgentMessage, AgentReply
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.tallies import read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import (
    HealthNoted,
    HoldPlaced,
    LeaseMove,
    RequestSubmitted,
    RequestWithdrawn,
    WorkerForgotten,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.store.contract import grant, place, prepare, release

DAY = timedelta(days=1)
ERRORS = DeviceHealth(errors=(CountedError("ecc", EPOCH),))


def a_hold(worker_id: str, since: datetime = EPOCH) -> Hold:
    return Hold(worker_id, "GPU-0", HoldKind.DRAINED, "new fan", since, "a person undrains it")


def rows(engine: Engine) -> dict[str, int]:
    """Table → rows, without empty tables, the one row of `hetero_state`, and the tallies, which name no worker."""
    with engine.connect() as connection:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
        }
    return {name: count for name, count in counts.items() if count and name not in ("hetero_state", "hetero_tally")}


def days() -> Iterator[tuple[datetime, list[str]]]:
    """An autoscaled fleet: on each of 20 days, 50 hosts with new names."""
    for day in range(20):
        yield EPOCH + day * DAY, [f"host-{day}-{number}" for number in range(50)]


def live_a_day(store: SqlStore, ids: list[str], now: datetime) -> None:
    """Each host runs one task of a DAG of its own; some have an error, a hold is forgotten on one."""
    submitted = [RequestSubmitted(a_pending(f"r-{key}", dag_id=f"dag-{key}")) for key in ids]
    store.record([*(WorkerSeen(a_worker(key)) for key in ids), *submitted], now)
    places = tuple(a_place(f"r-{key}", key, **{"GPU-0": 1000, "cpu": 2000}) for key in ids)
    leases = store.commit(Plan(places), now, now + DAY).leases
    assert len(leases) == len(ids)
    ends = [LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in leases]
    assert all(isinstance(lease, Lease) for lease in store.move(ends, now))
    errors = [HealthNoted(key, "GPU-0", DeviceHealth(errors=(CountedError("ecc", now),))) for key in ids[::5]]
    store.record([*errors, HoldPlaced(a_hold(ids[0], now))], now)
    store.record([WorkerLost(key) for key in ids], now)


def test_a_thousand_workers_live_and_leave_nothing_behind(store):
    retention = WorkerRetention(store, 0.5 * DAY.total_seconds(), 3 * DAY.total_seconds())
    most, keys = 0, WorkerKeys(store._engine)
    for now, ids in days():
        keys.open_enrolment(ids[0], "0" * 64, now, now)
        keys.enrol(ids[0], "0" * 64, "1" * 64, now)
        keys.open_enrolment(ids[1], "2" * 64, now, now)
        live_a_day(store, ids, now)
        for later in (now, now + 0.6 * DAY):
            store.record(retention.find_forgettable(later), later)
        store.prune(now - 3 * DAY)
        most = max(most, len(store.snapshot().workers))
    assert most < 10
    end = EPOCH + 400 * DAY
    store.record(retention.find_forgettable(end), end)
    store.prune(end)
    snapshot = store.snapshot()
    assert (snapshot.workers, dict(snapshot.usage), snapshot.holds, dict(snapshot.dag_tokens)) == ((), {}, (), {})
    assert (store.last_seen(), store.heartbeats(), store.health(), store.runs()) == ({}, {}, {}, ())
    assert rows(store._engine) == {}
    with read_transaction(store._engine) as connection:
        tallies = [tally.name for tally in read_tallies(connection) for _ in range(tally.count)]
    assert Counter(tallies) == {"ended": 1000, "held": 1000, "waited": 1000}


def test_every_reader_sees_that_a_worker_is_forgotten(engine):
    writer, reader = SqlStore(engine), SqlStore(engine)
    prepare(writer, "r1", "r2")
    (lease,) = grant(writer, a_place("r1", **{"GPU-0": 1000}))
    hold = HoldPlaced(a_hold("worker-a"))
    writer.record([WorkerSeen(a_worker("other")), WorkerLost("worker-a"), hold], EPOCH)
    before = reader.snapshot()
    assert [worker.id for worker in before.workers] == ["other", "worker-a"]
    release(writer, lease, now=EPOCH)
    writer.record([WorkerForgotten("worker-a", EPOCH + DAY), RequestWithdrawn("r2", "cleared")], EPOCH)
    writer.prune(EPOCH + DAY)
    after = reader.snapshot()
    assert (after.workers, after.holders, after.leases, after.pending) == ((a_worker("other"),), {}, (), ())
    assert (dict(after.dag_tokens), dict(after.usage), after.holds) == ({}, {}, ())
    assert after == writer.snapshot() == SqlStore(engine).snapshot()
    assert after.workers[0] is before.workers[0], "what is left is not read again"


def test_a_worker_that_is_in_use_is_not_forgotten(store):
    prepare(store, "r1")
    (lease,) = grant(store, place("r1", *a_place("r1", **{"GPU-0": 1000}).claims))
    later = EPOCH + DAY

    def is_known(before: datetime) -> bool:
        store.record([WorkerForgotten("worker-a", before)], later)
        return bool(store.snapshot().workers)

    assert is_known(later), "online"
    store.record([WorkerLost("worker-a")], EPOCH)
    assert is_known(later), "it holds a lease"
    release(store, lease, now=later)
    assert is_known(later), "it held a lease until now"
    assert is_known(EPOCH), "it was seen then"
    before = store.snapshot()
    assert not is_known(later + DAY)
    assert store.snapshot().sequence > before.sequence
    store.record([WorkerForgotten("worker-a", later + DAY), WorkerForgotten("unknown", later)], later)


def test_a_forgotten_worker_that_comes_back_is_new_and_keeps_its_holds(store):
    prepare(store)
    store.record(
        [HoldPlaced(a_hold("worker-a")), HealthNoted("worker-a", "GPU-0", ERRORS), WorkerLost("worker-a")], EPOCH
    )
    store.record([WorkerForgotten("worker-a", EPOCH + DAY)], EPOCH + DAY)
    assert (store.snapshot().workers, store.snapshot().holds, store.last_seen()) == ((), (), {})
    store.prune(EPOCH)
    store.record([WorkerSeen(a_worker())], EPOCH + 2 * DAY)
    assert (store.snapshot().holds, store.health()) == ((a_hold("worker-a"),), {("worker-a", "GPU-0"): ERRORS})
    assert store.last_seen() == {"worker-a": EPOCH + 2 * DAY}


def test_old_holds_and_errors_go_only_with_their_worker(store):
    prepare(store)
    holds = [HoldPlaced(a_hold(key)) for key in ("worker-a", "gone")]
    store.record([*holds, *(HealthNoted(key, "GPU-0", ERRORS) for key in ("worker-a", "gone"))], EPOCH)
    store.prune(EPOCH + DAY)
    assert store.health() == {("worker-a", "GPU-0"): ERRORS}
    store.record([WorkerSeen(a_worker("gone"))], EPOCH + DAY)
    assert [hold.worker_id for hold in store.snapshot().holds] == ["worker-a"]


def test_a_dag_keeps_its_turn_as_long_as_it_has_requests(store):
    prepare(store, "r1")
    store.record([RequestSubmitted(a_pending("r2", dag_id="other"))], EPOCH)
    leases = grant(store, a_place("r1", cpu=1000), a_place("r2", cpu=1000))
    release(store, leases[0], now=EPOCH)
    store.prune(EPOCH)
    assert store.snapshot().dag_tokens == {"dag": 1, "other": 2}
    store.prune(EPOCH + DAY)
    assert store.snapshot().dag_tokens == {"other": 2}
    store.record([RequestSubmitted(a_pending("r3"))], EPOCH)
    (third,) = grant(store, a_place("r3", cpu=1000))
    assert (third.token, store.snapshot().dag_tokens) == (3, {"other": 2, "dag": 3})


def test_keys_go_when_they_were_not_used_for_long(engine):
    keys, store = WorkerKeys(engine), SqlStore(engine)
    for worker_id in ("used", "unused", "revoked", "known"):
        keys.open_enrolment(worker_id, "0" * 64, EPOCH, EPOCH)
        keys.enrol(worker_id, "0" * 64, "1" * 64, EPOCH)
    keys.open_enrolment("secret", "0" * 64, EPOCH, EPOCH)
    keys.open_enrolment("new secret", "0" * 64, EPOCH + DAY, EPOCH)
    keys.revoke("revoked", EPOCH)
    store.record([WorkerSeen(a_worker("known"))], EPOCH)
    with engine.begin() as connection:
        newest = int((EPOCH + DAY).timestamp() * 1e6)
        connection.execute(
            tables.worker_key.update().where(tables.worker_key.c.worker_id == "used").values(nonce=newest)
        )
    store.prune(EPOCH)
    assert len(keys.changes(0)) == 6
    store.prune(EPOCH + DAY)
    assert {change.worker_id for change in keys.changes(0)} == {"used", "unused", "known", "new secret"}
    store.prune(EPOCH + 366 * DAY)
    assert {change.worker_id for change in keys.changes(0)} == {"used", "known"}


def test_an_agent_whose_worker_was_forgotten_by_name_is_refused(engine):
    keys, store = WorkerKeys(engine), SqlStore(engine)

    def answer(nonce: int) -> AgentReply:
        message = AgentMessage("worker-a", "1" * 64, nonce, "one", WorkerSeen(a_worker(), leases=frozenset()))
        return keys.take([message], EPOCH)[0]

    for nonce in (1, 2):
        keys.open_enrolment("worker-a", "0" * 64, EPOCH, EPOCH)
        keys.enrol("worker-a", "0" * 64, "1" * 64, EPOCH)
        assert answer(nonce).outcome is Admission.TAKEN
        store.record([WorkerLost("worker-a")], EPOCH)
        assert store.forget("worker-a", EPOCH + DAY)
        assert answer(nonce + 1).outcome is Admission.REVOKED
        assert store.snapshot().workers == ()


def test_everything_about_a_worker_is_forgotten_by_name(engine):
    keys, store = WorkerKeys(engine), SqlStore(engine)
    for worker_id in ("worker-a", "enrolled"):
        keys.open_enrolment(worker_id, "0" * 64, EPOCH + 2 * DAY, EPOCH)
    prepare(store, "r1")
    later = EPOCH + DAY
    with pytest.raises(StoreError, match="found that it is online"):
        store.forget("worker-a", later)
    (lease,) = grant(store, a_place("r1", cpu=1000))
    store.record([WorkerLost("worker-a"), HoldPlaced(a_hold("worker-a"))], EPOCH)
    store.record([HealthNoted("worker-a", "GPU-0", ERRORS)], EPOCH)
    with pytest.raises(StoreError, match=f"found that it holds these leases: '{lease.id}'. Wait"):
        store.forget("worker-a", later)
    release(store, lease, now=EPOCH)
    with pytest.raises(StoreError, match="found that it was seen, or held a lease, after 00:00:00 UTC"):
        store.forget("worker-a", EPOCH)
    store.prune(later)
    assert store.forget("worker-a", later)
    assert not store.forget("enrolled", later)
    assert (store.snapshot().workers, rows(engine)) == ((), {})
    with pytest.raises(StoreError, match="can't forget worker 'worker-a'; found no such worker"):
        store.forget("worker-a", later)
