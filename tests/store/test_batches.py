"""Many leases in one call give the same result as one after the other, in every store."""

from datetime import timedelta

import pytest

from hetero_airflow.errors import InvalidTransition
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.tallies import read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker

LATER = EPOCH + timedelta(minutes=1)
ACCOUNT = Account("p", "s")
GIB = 2**30


@pytest.fixture(name="fleet")
def make_fleet(store):
    """Two workers and ten waiting requests."""
    store.record([*map(WorkerSeen, (a_worker("a"), a_worker("b")))], EPOCH)
    store.record([RequestSubmitted(a_pending(f"r{n}")) for n in range(10)], EPOCH)
    return store


def used(store, worker_id: str, device_id: str) -> tuple[int, int]:
    usage = store.snapshot().used(worker_id, device_id)
    return usage.share_milli, usage.memory_bytes


def test_parts_of_a_device_are_counted_together(fleet):
    parts = tuple(a_place(f"r{n}", "a", **{"GPU-0": 400}) for n in range(3))
    made = fleet.commit(Plan((*parts, a_place("r3", "b", **{"GPU-0": 400}))), EPOCH, LATER)
    assert ([lease.request_id for lease in made.leases], made.raced) == (["r0", "r1", "r3"], ("r2",))
    assert used(fleet, "a", "GPU-0") == (800, 0)
    moves = [LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in made.leases]
    assert [outcome.state for outcome in fleet.move(moves, LATER)] == [LeaseState.RELEASED] * 3
    assert used(fleet, "a", "GPU-0") == used(fleet, "b", "GPU-0") == (0, 0)
    assert fleet.snapshot().used("a", "GPU-0") == DeviceUsage(0, 0, EPOCH)


def test_host_memory_and_cores_are_counted_together(fleet):
    def place(name: str, cores: int, memory: int) -> Place:
        return Place(name, "a", 0, (Claim("cpu", 1000 * cores, memory * GIB),), ACCOUNT)

    plan = Plan((place("r0", 2, 40), place("r1", 2, 40), place("r2", 4, 20), place("r3", 3, 1), place("r4", 2, 4)))
    made = fleet.commit(plan, EPOCH, LATER)
    assert ([lease.request_id for lease in made.leases], made.raced) == (["r0", "r2", "r4"], ("r1", "r3"))
    cores = [core for lease in made.leases for claim in lease.claims for core in claim.cores]
    assert sorted(cores) == list(range(8)), "each core once"
    assert used(fleet, "a", "cpu") == (8000, 64 * GIB)


def test_one_request_gets_one_lease_however_often_a_plan_places_it(fleet):
    twice = Plan((a_place("r0", "a", **{"GPU-0": 1000}), a_place("r0", "b", **{"GPU-0": 1000})))
    made = fleet.commit(twice, EPOCH, LATER)
    assert ([lease.worker_id for lease in made.leases], made.raced) == (["a"], ("r0",))
    assert used(fleet, "b", "GPU-0") == (0, 0)


def test_tokens_grow_in_the_order_of_the_plan(fleet):
    plan = Plan(tuple(a_place(f"r{n}", "ab"[n % 2], cpu=1000) for n in (3, 1, 2)))
    leases = fleet.commit(plan, EPOCH, LATER).leases
    assert [lease.request_id for lease in leases] == ["r3", "r1", "r2"]
    first = leases[0].token
    assert [lease.token for lease in leases] == [first, first + 1, first + 2]
    assert fleet.snapshot().leases == leases


def test_a_lease_may_move_twice_in_one_call(fleet):
    (lease,) = fleet.commit(Plan((a_place("r0", "a", **{"GPU-0": 1000}),)), EPOCH, LATER).leases
    moves = [
        LeaseMove(lease.id, lease.token, to) for to in (LeaseState.EXPIRED, LeaseState.EVICTED, LeaseState.RELEASED)
    ]
    expired, evicted, refused = fleet.move(moves, LATER)
    assert [type(result) for result in (expired, evicted, refused)] == [Lease, Lease, InvalidTransition]
    assert (expired.state, evicted.state) == (LeaseState.EXPIRED, LeaseState.EVICTED)
    assert used(fleet, "a", "GPU-0") == (0, 0)
    request_history = fleet.request_history("dag", "run", "r0")
    assert (request_history.state, request_history.leases[0].state) == ("ended", LeaseState.EVICTED)


def test_a_device_that_vanished_goes_with_the_last_of_the_leases_that_end_together(fleet):
    plan = Plan(tuple(a_place(f"r{n}", "a", **{"GPU-1": 500}) for n in range(2)))
    leases = fleet.commit(plan, EPOCH, LATER).leases
    fleet.record([WorkerSeen(a_worker("a", (a_cpu(), a_device("GPU-0"))))], EPOCH)
    assert [device.id for device in fleet.snapshot().workers[0].devices] == ["cpu", "GPU-0", "GPU-1"]
    fleet.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED) for lease in leases], LATER)
    assert [device.id for device in fleet.snapshot().workers[0].devices] == ["cpu", "GPU-0"]


@pytest.mark.postgres
def test_a_plan_that_meets_a_writer_without_the_lock_is_refused_whole_and_its_waits_are_kept(
    postgres_engine, empty, beside_a_writer
):
    empty(postgres_engine)
    first, second = SqlStore(postgres_engine), SqlStore(postgres_engine)
    first.record([WorkerSeen(a_worker()), *(RequestSubmitted(a_pending(f"r{n}")) for n in range(4))], EPOCH)
    before = second.snapshot().sequence
    waits = Wait("r3", 1, Reason(ReasonCode.BUSY, "1", "0"), ACCOUNT)
    plan = Plan((a_place("r1", **{"GPU-1": 1000}), a_place("r2", **{"GPU-0": 1000}), waits))
    events, written = [RequestSubmitted(a_pending("r4"))], Plan((a_place("r0", **{"GPU-0": 1000}),))
    _, refused = beside_a_writer(written, lambda: second.commit(plan, EPOCH, LATER, events))
    assert (refused.leases, refused.raced) == ((), ("r1", "r2"))
    snapshot = second.snapshot()
    assert ([request.id for request in snapshot.pending], snapshot.sequence) == (["r1", "r2", "r3", "r4"], before + 2)
    used = {key: usage.share_milli for key, usage in snapshot.usage.items() if usage.share_milli}
    assert used == {("worker-a", "GPU-0"): 1000}
    assert [decision["outcome"] for decision in second.request_history("dag", "run", "r3").decisions] == ["wait"]
    assert not second.request_history("dag", "run", "r1").decisions
    with read_transaction(postgres_engine) as connection:
        assert [(tally.name, tally.count) for tally in read_tallies(connection)] == [("waited", 1)], "of r0"
