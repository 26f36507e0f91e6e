"""In every store, leases are renewed, change by their transition table, and end."""

from itertools import product

import pytest

from hetero_airflow.errors import InvalidTransition, LeaseLost, LeaseNotFound
from hetero_airflow.model.lease import TRANSITIONS, Lease, LeaseState
from hetero_airflow.model.plan import Plan, Reason, ReasonCode
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.store.store import CheckpointSaved, RequestSubmitted, StartClaimed, StartDelayed, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker, move_lease
from tests.store.contract import IN_MEMORY_TOO, LATER, MUCH_LATER, grant, prepare, release


def test_a_renewed_lease_is_active_and_lasts_longer(store):
    prepare(store, "r1", "r2")
    first, second = grant(store, a_place("r1", **{"GPU-0": 1000}), a_place("r2", **{"GPU-1": 1000}))
    move_lease(store, second.id, second.token, LeaseState.EXPIRED, EPOCH)
    before = store.snapshot()
    assert store.renew([(first.id, first.token), (second.id, second.token)], MUCH_LATER) == frozenset()
    renewed = {"state": LeaseState.ACTIVE, "expires_at": MUCH_LATER}
    after = store.snapshot()
    assert after.leases == (first.model_copy(update=renewed), second.model_copy(update=renewed))
    assert after.sequence > before.sequence
    for part in ("workers", "usage", "pending", "dag_tokens"):
        assert getattr(after, part) is getattr(before, part)
    assert store.renew([(first.id, first.token)], MUCH_LATER) == frozenset()
    assert store.snapshot() is after


def test_what_is_not_held_with_that_token_is_reported_and_not_renewed(store):
    prepare(store, "r1", "r2", "r3")
    held, with_other_token, ended = grant(store, *(a_place(r, cpu=1000) for r in ("r1", "r2", "r3")))
    release(store, ended)
    holds = [
        (held.id, held.token),
        (with_other_token.id, with_other_token.token + 1),
        (ended.id, ended.token),
        ("unknown", 1),
    ]
    assert store.renew(holds, MUCH_LATER) == {with_other_token.id, ended.id, "unknown"}
    assert [(lease.id, lease.expires_at) for lease in store.snapshot().leases] == [
        (held.id, MUCH_LATER),
        (with_other_token.id, LATER),
    ]
    assert store.renew([], MUCH_LATER) == frozenset()


def reach(store, lease: Lease, state: LeaseState) -> None:
    if state == LeaseState.ACTIVE:
        store.renew([(lease.id, lease.token)], LATER)
    elif state != LeaseState.GRANTED:
        move_lease(store, lease.id, lease.token, state, EPOCH)


@IN_MEMORY_TOO
def test_who_holds_a_lease_is_known_until_it_ends(store):
    pending = a_pending("r1", attained_service_s={"nvidia/k80": 12.5}, interruptions=3, gang="g", gang_size=1)
    store.record([WorkerSeen(a_worker()), RequestSubmitted(pending)], EPOCH)
    assert (store.snapshot().pending, store.snapshot().holders) == ((pending,), {})
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    assert (store.snapshot().pending, store.snapshot().holders) == ((), {"r1": pending})
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, LATER)
    assert (store.snapshot().pending, store.snapshot().holders) == ((), {})


def test_a_preempted_lease_that_is_renewed_lasts_longer_and_stays_preempted(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    moved = move_lease(store, lease.id, lease.token, LeaseState.PREEMPTED, EPOCH)
    assert store.renew([(lease.id, lease.token)], MUCH_LATER) == frozenset()
    assert store.snapshot().leases == (moved.model_copy(update={"expires_at": MUCH_LATER}),)
    assert store.snapshot().used("worker-a", "GPU-0").share_milli == 1000


@IN_MEMORY_TOO
def test_a_lease_remembers_when_its_task_saved(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([CheckpointSaved(lease.id, lease.token + 1), CheckpointSaved("other", 1)], EPOCH)
    assert store.snapshot().leases == (lease,)
    store.record([CheckpointSaved(lease.id, lease.token)], LATER)
    assert store.snapshot().leases == (lease.model_copy(update={"saved_at": LATER}),)


def test_one_scheduler_starts_the_task_of_a_lease(store):
    prepare(store, "r1", "r2")
    sent, free = grant(store, a_place("r1", **{"GPU-0": 1000})._replace(starter="a"), a_place("r2", **{"GPU-1": 1000}))
    assert (sent.starter, free.starter) == ("a", None)
    wrong_token = StartClaimed(free.id, free.token + 1, "b")
    store.record([wrong_token, StartClaimed("other", 1, "b"), StartClaimed(sent.id, sent.token, "b")], LATER)
    assert store.snapshot().leases == (sent, free)
    claims = [StartClaimed(free.id, free.token, name) for name in ("b", "c")]
    store.record(claims, LATER)
    store.record(claims[1:], LATER)
    assert store.snapshot().leases == (sent, free.model_copy(update={"starter": "b"}))
    move_lease(store, free.id, free.token, LeaseState.RELEASED, LATER)
    store.record([StartClaimed(free.id, free.token, "c")], LATER)
    assert [lease.starter for lease in store.request_history("dag", "run", "r2").leases] == ["b"]


def test_why_what_was_placed_does_not_run_yet_is_reported_until_it_does(store):
    prepare(store, "r1", "r2")
    grant(store, a_place("r1", **{"GPU-0": 1000}))
    reason = Reason(ReasonCode.BUSY, "a container", "no node has room")
    store.record([StartDelayed("r1", reason), StartDelayed("r2", reason), StartDelayed("other", reason)], EPOCH)
    (decision,) = store.request_history("dag", "run", "r1").decisions
    assert decision["reason"] == {"code": "busy", "asked": "a container", "found": "no node has room"}
    assert all(event["reason"] != decision["reason"] for event in store.request_history("dag", "run", "r2").decisions)
    store.record([StartDelayed("r1", None)], EPOCH)
    assert store.request_history("dag", "run", "r1").decisions[0]["reason"] is None


@pytest.mark.parametrize(("was", "to"), list(product(LeaseState, LeaseState)))
def test_a_lease_changes_as_the_table_of_transitions_says(store, was, to):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    reach(store, lease, was)
    if (was, to) in TRANSITIONS:
        assert move_lease(store, lease.id, lease.token, to, LATER) == lease.model_copy(update={"state": to})
        assert store.request_history("dag", "run", "r1").leases[0].state == to
    else:
        before = store.snapshot()
        with pytest.raises(InvalidTransition, match=f"change lease r1.1 to {to}; found that it is {was}"):
            move_lease(store, lease.id, lease.token, to, LATER)
        assert store.snapshot() is before


@pytest.mark.parametrize("end", [LeaseState.RELEASED, LeaseState.EVICTED])
@pytest.mark.parametrize("cause", ["", "host down"])
def test_the_end_of_a_lease_frees_its_devices_and_ends_its_request(store, end, cause):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000, "cpu": 4000}))
    move_lease(store, lease.id, lease.token, end, LATER, cause)
    snapshot = store.snapshot()
    assert snapshot.leases == ()
    assert snapshot.usage == {
        ("worker-a", "GPU-0"): DeviceUsage(0, 0, EPOCH),
        ("worker-a", "cpu"): DeviceUsage(0, 0, EPOCH),
    }
    history = store.request_history("dag", "run", "r1")
    assert (history.state, history.ended_at) == ("ended", LATER)
    assert history.cause == (cause or TRANSITIONS[LeaseState.GRANTED, end])
    grant(store, a_place("r2", **{"GPU-0": 1000, "cpu": 8000}))


@IN_MEMORY_TOO
def test_an_expired_lease_still_holds_its_devices(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    move_lease(store, lease.id, lease.token, LeaseState.EXPIRED, LATER)
    assert store.snapshot().used("worker-a", "GPU-0").share_milli == 1000
    assert store.commit(Plan((a_place("r2", **{"GPU-0": 1000}),)), LATER, LATER).raced == ("r2",)


@IN_MEMORY_TOO
def test_moving_an_unknown_lease_or_with_another_token_raises_and_changes_nothing(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    before = store.snapshot()
    with pytest.raises(LeaseNotFound, match="Lease nothing can't be used; found no such lease"):
        move_lease(store, "nothing", 1, LeaseState.RELEASED, LATER)
    with pytest.raises(LeaseLost, match=r"Lease r1\.1 with token 2 can't be used; found that its token is 1"):
        move_lease(store, lease.id, 2, LeaseState.RELEASED, LATER)
    assert store.snapshot() is before
