"""Keys: one of a worker is enrolled once and revoked at once, no message counts twice; schedulers share one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from hetero_airflow.errors import IdentityError, StoreError
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.agent_messages import Admission, AgentMessage, AgentReply
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.worker_keys import KeyChange, WorkerKeys, grant_signer
from hetero_airflow.store.store import HoldPlaced, RequestSubmitted, WorkerAlive, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

SOON, LATER = EPOCH + timedelta(minutes=1), EPOCH + timedelta(hours=2)
UNTIL = EPOCH + timedelta(hours=1)
KEY, OTHER_KEY = "a" * 64, "b" * 64
LEAVING = HoldPlaced(Hold("worker-a", "", HoldKind.LEAVING, "its agent stops", EPOCH, "an agent starts there"))


@pytest.fixture
def keys(engine) -> WorkerKeys:
    return WorkerKeys(engine)


@pytest.fixture
def store(engine) -> SqlStore:
    return SqlStore(engine)


@pytest.fixture
def enrolled(keys) -> WorkerKeys:
    keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    keys.enrol("worker-a", "hash", KEY, SOON)
    return keys


def seen(nonce=1, instance="one", worker=None, **fields) -> AgentMessage:
    given = {"worker_id": "worker-a", "public_key": KEY, "nonce": nonce, "instance": instance}
    return AgentMessage(**given | {"event": WorkerSeen(worker or a_worker())} | fields)


def alive(nonce, **fields) -> AgentMessage:
    return seen(nonce, **{"event": WorkerAlive("worker-a")} | fields)


def outcomes(answers: list[AgentReply]) -> list[Admission]:
    return [answer.outcome for answer in answers]


def test_a_key_is_enrolled_once_with_the_secret(keys):
    keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    assert [change.public_key for change in keys.changes(0)] == [None]
    with pytest.raises(IdentityError, match="a secret that was not made for it"):
        keys.enrol("worker-a", "another", KEY, SOON)
    keys.enrol("worker-a", "hash", KEY, SOON)
    with pytest.raises(IdentityError, match="a secret that another agent has used"):
        keys.enrol("worker-a", "hash", OTHER_KEY, SOON)
    assert [change.public_key for change in keys.changes(0)] == [KEY]


def test_an_agent_that_missed_the_answer_enrols_the_same_key_again(enrolled):
    before = enrolled.changes(0)
    enrolled.enrol("worker-a", "hash", KEY, LATER)
    assert enrolled.changes(0) == before


@pytest.mark.parametrize(("worker_id", "now"), [("worker-a", LATER), ("worker-b", SOON)])
def test_an_old_secret_and_one_of_another_worker_enrol_nothing(keys, worker_id, now):
    keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    with pytest.raises(IdentityError, match="too old" if now is LATER else "not made for it"):
        keys.enrol(worker_id, "hash", KEY, now)
    assert [change.public_key for change in keys.changes(0)] == [None]


def test_a_new_secret_voids_the_one_before(keys):
    keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    keys.open_enrolment("worker-a", "newer", UNTIL, EPOCH)
    with pytest.raises(IdentityError, match="not made for it"):
        keys.enrol("worker-a", "hash", KEY, SOON)
    keys.enrol("worker-a", "newer", KEY, SOON)


def test_a_second_enrolment_is_refused_until_the_first_is_revoked(enrolled):
    with pytest.raises(
        IdentityError, match=r"a key that was enrolled at 2026-01-01 00:01:00 UTC\. Run `airflow hetero revoke`"
    ):
        enrolled.open_enrolment("worker-a", "newer", UNTIL, SOON)
    assert enrolled.revoke("worker-a", SOON) is True
    enrolled.open_enrolment("worker-a", "newer", UNTIL, SOON)
    enrolled.enrol("worker-a", "newer", OTHER_KEY, SOON)
    assert outcomes(enrolled.take([seen(9), seen(1, public_key=OTHER_KEY)], SOON)) == ["revoked", "taken"]


def test_no_agent_gets_the_name_of_a_host_that_a_scheduler_reports(keys, store):
    store.record([WorkerSeen(a_worker())], EPOCH)
    with pytest.raises(IdentityError, match="a worker of this name that a scheduler reports"):
        keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    assert keys.changes(0) == []


def test_revoking_who_was_never_enrolled_or_twice_is_an_error(enrolled):
    with pytest.raises(IdentityError, match="no enrolled worker of this name"):
        enrolled.revoke("worker-b", SOON)
    enrolled.revoke("worker-a", SOON)
    with pytest.raises(IdentityError, match="revoked already"):
        enrolled.revoke("worker-a", SOON)


def test_a_secret_that_was_not_used_can_be_revoked(keys):
    keys.open_enrolment("worker-a", "hash", UNTIL, EPOCH)
    assert keys.revoke("worker-a", EPOCH) is False
    with pytest.raises(IdentityError, match="not made for it"):
        keys.enrol("worker-a", "hash", KEY, SOON)


def test_a_revoked_worker_is_lost_at_once_and_not_heard_again(enrolled, store):
    enrolled.take([seen()], SOON)
    assert store.snapshot().workers == (a_worker(),)
    enrolled.revoke("worker-a", SOON)
    assert store.snapshot().workers[0].state is WorkerState.LOST
    assert enrolled.take([alive(2), seen(3)], SOON) == [AgentReply(Admission.REVOKED), AgentReply(Admission.REVOKED)]
    assert store.snapshot().workers[0].state is WorkerState.LOST


def test_changes_report_what_is_newer_only(enrolled):
    (first,) = enrolled.changes(0)
    assert first == KeyChange("worker-a", KEY, first.changed)
    assert enrolled.changes(first.changed) == []
    enrolled.revoke("worker-a", SOON)
    (second,) = enrolled.changes(first.changed)
    assert (second.public_key, second.changed > first.changed) == (None, True)


def test_what_an_agent_reports_is_in_the_store(enrolled, store):
    reading = Telemetry(device_id="GPU-0", power_w=70.5)
    assert outcomes(enrolled.take([seen(), alive(2, event=WorkerAlive("worker-a", (reading,)))], SOON)) == ["taken"] * 2
    assert store.snapshot().workers == (a_worker(),)
    assert (store.last_seen(), store.telemetry()) == ({"worker-a": SOON}, {("worker-a", "GPU-0"): reading})


def test_nothing_is_taken_twice_whoever_asks_and_whatever_restarts(enrolled, engine):
    assert outcomes(enrolled.take([seen(5), alive(5), alive(4)], SOON)) == ["taken", "replayed", "replayed"]
    assert outcomes(WorkerKeys(engine).take([alive(5), alive(6), alive(6)], LATER)) == ["replayed", "taken", "replayed"]


def test_one_refused_stops_no_other(enrolled, store):
    messages = [alive(1, worker_id="worker-b", event=WorkerAlive("worker-b")), seen(1, public_key=OTHER_KEY), seen(1)]
    assert outcomes(enrolled.take(messages, SOON)) == ["revoked", "revoked", "taken"]
    assert [worker.id for worker in store.snapshot().workers] == ["worker-a"]


def test_the_answer_names_the_inventory_that_the_store_has(enrolled):
    (unknown,) = enrolled.take([alive(1, instance="one")], SOON)
    (first,) = enrolled.take([seen(2)], SOON)
    (same,) = enrolled.take([alive(3)], SOON)
    (changed,) = enrolled.take([seen(4, worker=a_worker(labels={"zone": "b"}))], SOON)
    assert (unknown.digest, same) == ("", first)
    assert len({first.digest, changed.digest, ""}) == 3


def test_of_two_agents_with_one_key_the_one_that_began_last_counts(enrolled):
    messages = [seen(1, "one"), seen(2, "two"), alive(3, instance="one"), alive(4, instance="two")]
    assert outcomes(enrolled.take(messages, SOON)) == ["taken", "taken", "superseded", "taken"]
    assert outcomes(enrolled.take([alive(5, instance="one"), seen(6, "one")], SOON)) == ["superseded", "taken"]


def test_a_worker_that_was_taken_for_lost_has_to_report_its_inventory_again(enrolled, store):
    enrolled.take([seen(1)], SOON)
    store.record([WorkerLost("worker-a")], LATER)
    (answer,) = enrolled.take([alive(2)], LATER)
    assert (answer.outcome, answer.digest) == (Admission.TAKEN, "")
    assert store.snapshot().workers[0].state is WorkerState.LOST
    (answer,) = enrolled.take([seen(3)], LATER)
    assert answer.digest
    assert store.snapshot().workers == (a_worker(),)


def two_agents(keys) -> None:
    keys.open_enrolment("worker-b", "hash-b", UNTIL, EPOCH)
    keys.enrol("worker-b", "hash-b", OTHER_KEY, SOON)


def message_of_other_host(nonce, devices, **fields) -> AgentMessage:
    worker = a_worker("worker-b", devices, **fields)
    return seen(nonce, worker_id="worker-b", public_key=OTHER_KEY, worker=worker)


def offered(store, worker_id) -> list[str]:
    worker = next(worker for worker in store.snapshot().workers if worker.id == worker_id)
    return [device.id for device in worker.devices if device.leasable]


GPU = a_device("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")


def test_of_two_agents_that_report_one_device_the_first_gets_its_tasks(enrolled, store):
    two_agents(enrolled)
    devices = (a_cpu(), GPU, a_device("GPU-7"))
    worker = a_worker(devices=(a_cpu(), GPU), engine="celery")
    reports = [seen(1, worker=worker), message_of_other_host(1, devices, engine="celery")]
    first, second = enrolled.take(reports, SOON)
    assert (first.contested, second.contested) == ((GPU.id,), (GPU.id,))
    assert (offered(store, "worker-a"), offered(store, "worker-b")) == (["cpu", GPU.id], ["cpu", "GPU-7"])
    enrolled.revoke("worker-a", LATER)
    assert offered(store, "worker-b") == ["cpu", GPU.id, "GPU-7"]
    (answer,) = enrolled.take([message_of_other_host(2, (a_cpu(), GPU))], LATER)
    assert answer.contested == ()


def test_a_device_that_a_lost_worker_has_leased_is_contested(enrolled, store):
    two_agents(enrolled)
    enrolled.take([seen(1, worker=a_worker(devices=(a_cpu(), GPU)))], SOON)
    store.record([RequestSubmitted(a_pending("r1"))], SOON)
    (lease,) = store.commit(Plan((a_place("r1", **{GPU.id: 1000}),)), SOON, LATER).leases
    store.record([WorkerLost("worker-a")], LATER)
    (answer,) = enrolled.take([message_of_other_host(1, (a_cpu(), GPU))], LATER)
    assert (answer.contested, offered(store, "worker-b")) == ((GPU.id,), ["cpu"])
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, LATER)
    assert offered(store, "worker-b") == ["cpu", GPU.id]


def test_a_heartbeat_changes_no_snapshot(enrolled, store):
    enrolled.take([seen(1)], SOON)
    before = store.snapshot()
    enrolled.take([alive(2)], SOON)
    assert store.snapshot() is before


def test_a_worker_that_leaves_gets_no_task_and_is_lost_once_its_last_lease_has_ended(enrolled, store):
    enrolled.take([seen(1)], SOON)
    store.record([RequestSubmitted(a_pending("r1")), RequestSubmitted(a_pending("r2"))], SOON)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), SOON, LATER).leases
    (answer,) = enrolled.take([alive(2, leaving=LEAVING)], SOON)
    assert (answer.outcome, answer.leases) == (Admission.TAKEN, 1)
    assert store.commit(Plan((a_place("r2", **{"GPU-1": 1000}),)), SOON, LATER).raced == ("r2",)
    assert store.snapshot().workers[0].state is WorkerState.ONLINE
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, LATER)
    again = HoldPlaced(replace(LEAVING.hold, since=LATER))
    (answer,) = enrolled.take([alive(3, leaving=again)], LATER)
    assert answer.leases == 0
    assert store.snapshot().holds == (LEAVING.hold,)
    assert store.snapshot().workers[0].state is WorkerState.LOST


def test_an_agent_that_starts_again_takes_off_its_own_hold_and_no_persons(enrolled, store):
    drained = Hold("worker-a", "", HoldKind.DRAINED, "new fan", EPOCH, "undrained")
    enrolled.take([seen(1), alive(2, leaving=LEAVING)], SOON)
    store.record([HoldPlaced(drained)], SOON)
    enrolled.take([seen(3, "one", a_worker(labels={"a": "b"}))], SOON)
    assert set(store.snapshot().holds) == {drained, LEAVING.hold}
    enrolled.take([seen(4, "two")], SOON)
    assert store.snapshot().holds == (drained,)
    assert store.snapshot().workers[0].state is WorkerState.ONLINE


def test_an_agent_is_reported_which_of_its_leases_are_over_and_nothing_of_others(enrolled, keys, store):
    keys.open_enrolment("worker-b", "b", UNTIL, EPOCH)
    keys.enrol("worker-b", "b", OTHER_KEY, SOON)
    enrolled.take([seen(1)], SOON)
    store.record([RequestSubmitted(a_pending("r1")), RequestSubmitted(a_pending("r2"))], SOON)
    places = (a_place("r1", **{"GPU-0": 1000}), a_place("r2", **{"GPU-1": 1000}))
    over, held = store.commit(Plan(places), SOON, LATER).leases
    leases = frozenset({over.id, held.id, "unknown"})
    (before,) = enrolled.take([alive(2, event=WorkerAlive("worker-a", leases=leases))], SOON)
    move_lease(store, over.id, over.token, LeaseState.EVICTED, LATER)
    owned, foreign = enrolled.take(
        [
            alive(3, event=WorkerAlive("worker-a", leases=leases)),
            alive(1, worker_id="worker-b", public_key=OTHER_KEY, event=WorkerAlive("worker-b", leases=leases)),
        ],
        LATER,
    )
    assert (before.end, owned.end, foreign.end) == ((), (over.id,), ())
    assert (before.unknown, owned.unknown, foreign.unknown) == (("unknown",), ("unknown",), tuple(sorted(leases)))
    assert store.heartbeats()["worker-a"].leases == leases


def test_a_lost_worker_is_kept_out_until_its_agent_has_ended_what_is_over(enrolled, store):
    enrolled.take([seen(1)], SOON)
    store.record([RequestSubmitted(a_pending("r1"))], SOON)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), SOON, LATER).leases
    store.record([WorkerLost("worker-a")], LATER)
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, LATER)
    there = frozenset({lease.id})
    (beat,) = enrolled.take([alive(2, event=WorkerAlive("worker-a", leases=there))], LATER)
    (report,) = enrolled.take([seen(3, event=WorkerSeen(a_worker(), leases=there))], LATER)
    assert [(answer.outcome, answer.digest, answer.end) for answer in (beat, report)] == [
        (Admission.TAKEN, "", (lease.id,))
    ] * 2
    assert store.snapshot().workers[0].state is WorkerState.LOST
    (report,) = enrolled.take([seen(4, event=WorkerSeen(a_worker(), leases=frozenset()))], LATER)
    assert (bool(report.digest), report.end) == (True, ())
    assert store.snapshot().workers[0].state is WorkerState.ONLINE


def key_of(engine) -> str:
    return grant_signer(engine).sign(lease="r.1", token=1, task="t", start_by=0).key


def test_all_schedulers_sign_with_one_key_that_stays(engine):
    with ThreadPoolExecutor(4) as schedulers:
        keys = set(schedulers.map(key_of, [engine] * 8))
    assert len(keys) == 1
    SqlStore(engine).record([WorkerSeen(a_worker())], EPOCH)
    assert {key_of(engine)} == keys


def test_what_is_no_key_is_an_error_that_says_what_to_do(engine):
    with engine.begin() as connection:
        connection.execute(update(tables.state).values(grant_key="rubbish"))
    with pytest.raises(StoreError, match=r"no Ed25519 key. Set it to NULL and restart all schedulers"):
        grant_signer(engine)
    with engine.connect() as connection:
        assert connection.execute(select(tables.state.c.grant_key)).scalar() == "rubbish"
