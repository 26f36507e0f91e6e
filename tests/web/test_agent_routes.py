"""What the server accepts from an agent over real HTTP: its own data, once, in time, of limited size."""

import json
import socket
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hetero_airflow.agent.protocol import (
    ENROLMENT_PATH,
    HEARTBEAT_PATH,
    INVENTORY_PATH,
    MAX_HEARTBEAT_BYTES,
    MAX_INVENTORY_BYTES,
    PREFIX,
    Heartbeat,
    InventoryReport,
)
from hetero_airflow.agent.tokens import hash_secret, public_key_hex
from hetero_airflow.health.transitions import leases_to_migrate
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.model.host_data import CacheCounts, HostData, held_name
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import RequestSubmitted, WorkerLost
from hetero_airflow.testing import a_cpu, a_device, a_pending, a_place, move_lease
from tests.api_server import SECRET, Speaker

BEAT = Heartbeat(worker="worker-a").model_dump_json(exclude_defaults=True).encode()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert set(body) == {"code", "asked", "found", "remedy"}
    return answer.status_code, body["code"]


def enrol(speaker: Speaker, secret: str = SECRET, **fields) -> httpx.Response:
    body = {"worker": speaker.worker_id, "public_key": public_key_hex(speaker.key)} | fields
    return speaker.http.post(ENROLMENT_PATH, json=body, headers={"Authorization": f"Bearer {secret}"})


def open_enrolment(engine, worker_id="worker-a") -> None:
    now = datetime.now(UTC)
    WorkerKeys(engine).open_enrolment(worker_id, hash_secret(SECRET), now + timedelta(hours=1), now)


def test_an_agent_enrols_reports_its_inventory_and_beats(speaker, engine, store):
    agent = speaker(enrolled=False)
    open_enrolment(engine)
    assert enrol(agent).status_code == 204
    first = agent.report()
    assert (first.status_code, store.snapshot().workers) == (200, (agent.worker(),))
    reading = Telemetry(device_id="GPU-0", power_w=70.5)
    second = agent.beat(inventory=first.json()["inventory"], telemetry=(reading,))
    assert (second.status_code, second.json()) == (200, first.json())
    assert store.telemetry() == {("worker-a", "GPU-0"): reading}


def test_a_heartbeat_says_what_the_host_holds(speaker, store):
    agent = speaker()
    known = agent.report().json()["inventory"]
    data = HostData(held={held_name("s3://lake/a"): 1}, counts=CacheCounts(hits=3))
    assert agent.beat(inventory=known, data=data).status_code == 200
    assert agent.beat(inventory=known).status_code == 200
    assert store.host_data() == {"worker-a": data}


def test_the_first_heartbeat_of_a_worker_that_no_one_knows_is_reported_that_the_inventory_is_missing(speaker):
    assert speaker().beat().json() == {}


def test_a_second_agent_can_not_enrol_with_a_used_secret_and_a_first_one_again_can(speaker, engine):
    first, second = speaker(enrolled=False), speaker(enrolled=False)
    open_enrolment(engine)
    assert [enrol(secret).status_code for secret in (first, first)] == [204, 204]
    assert refusal(enrol(second)) == (403, "enrolment")
    assert refusal(second.beat()) == (401, "unknown_key")
    assert first.beat().status_code == 200


@pytest.mark.parametrize("secret", ["x" * 43, "x", "ü" * 43, "x" * 10_000])
def test_a_guessed_secret_enrols_nothing(speaker, engine, secret):
    agent = speaker(enrolled=False)
    open_enrolment(engine)
    headers = {"Authorization": f"Bearer {secret}".encode()}
    body = {"worker": "worker-a", "public_key": public_key_hex(agent.key)}
    assert agent.http.post(ENROLMENT_PATH, json=body, headers=headers).status_code in (401, 403)
    assert refusal(agent.beat()) == (401, "unknown_key")


@pytest.mark.parametrize(
    "fields", [{"worker": "<b>"}, {"worker": ""}, {"public_key": "ab"}, {"public_key": "G" * 64}, {"more": 1}]
)
def test_an_enrolment_that_can_not_be_is_refused(speaker, engine, fields):
    open_enrolment(engine)
    assert refusal(enrol(speaker(enrolled=False), **fields)) == (422, "invalid")


def test_no_secret_and_no_key_is_logged(speaker, engine, caplog):
    agent = speaker(enrolled=False)
    enrol(agent)
    token = agent.token("POST", HEARTBEAT_PATH, BEAT)
    agent.send("POST", HEARTBEAT_PATH, BEAT, token)
    assert len(caplog.records) == 2
    assert not any(secret in caplog.text for secret in (SECRET, token, token.split(".")[2], hash_secret(SECRET)))


def test_a_forged_token_is_refused(speaker, store):
    agent = speaker()
    token = agent.token("POST", HEARTBEAT_PATH, BEAT, key=Ed25519PrivateKey.generate())
    assert refusal(agent.send("POST", HEARTBEAT_PATH, BEAT, token)) == (401, "unknown_key")
    head, claims, signature = agent.token("POST", HEARTBEAT_PATH, BEAT).split(".")
    for text in (f"{head}.{claims}.", f"{head}.{claims}.{signature[:-4]}AAAA", f"{head}.{claims[:-4]}AAAA.{signature}"):
        assert agent.send("POST", HEARTBEAT_PATH, BEAT, text).status_code == 401


def test_a_replayed_request_is_refused(speaker, server):
    agent = speaker()
    token = agent.token("POST", HEARTBEAT_PATH, BEAT)
    assert agent.send("POST", HEARTBEAT_PATH, BEAT, token).status_code == 200
    assert refusal(agent.send("POST", HEARTBEAT_PATH, BEAT, token)) == (409, "replayed")
    server.stop()
    server.start()
    assert refusal(agent.send("POST", HEARTBEAT_PATH, BEAT, token)) == (409, "replayed")


@pytest.mark.parametrize("at_s", [-60, 60])
def test_a_token_of_another_time_is_refused(speaker, at_s):
    agent = speaker()
    token = agent.token("POST", HEARTBEAT_PATH, BEAT, now=datetime.now(UTC) + timedelta(seconds=at_s))
    answer = agent.send("POST", HEARTBEAT_PATH, BEAT, token)
    assert refusal(answer) == (401, "expired")
    assert "Set the clocks" in answer.json()["remedy"]


def test_a_token_is_good_for_its_own_request_only(speaker, store):
    agent = speaker()
    body = InventoryReport(worker=agent.worker()).model_dump_json(exclude_defaults=True).encode()
    for method, path, sent in (("PUT", INVENTORY_PATH, BEAT), ("POST", HEARTBEAT_PATH, BEAT + b" ")):
        token = agent.token("POST", HEARTBEAT_PATH, BEAT)
        assert refusal(agent.send(method, path, sent, token)) == (403, "foreign")
    token = agent.token("POST", HEARTBEAT_PATH, body)
    assert refusal(agent.send("PUT", INVENTORY_PATH, body, token)) == (403, "foreign")
    assert store.snapshot().workers == ()


def test_a_worker_speaks_for_itself_only(speaker, store):
    a, b = speaker("worker-a"), speaker("worker-b")
    assert a.report().status_code == 200
    assert refusal(b.report(a.worker(labels={"zone": "b"}))) == (403, "foreign")
    assert refusal(b.beat(worker="worker-a", is_leaving=True)) == (403, "foreign")
    token = b.token("POST", HEARTBEAT_PATH, BEAT, worker="worker-a")
    assert refusal(b.send("POST", HEARTBEAT_PATH, BEAT, token)) == (401, "unknown_key")
    assert (store.snapshot().workers, store.snapshot().holds) == ((a.worker(),), ())


def test_a_worker_that_lies_about_anothers_devices_gets_none_of_them(speaker, store):
    gpu = a_device("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")
    honest, liar = speaker("worker-b"), speaker("worker-a")
    honest.report(honest.worker(devices=(a_cpu(), gpu)))
    answer = liar.report(liar.worker(devices=(a_cpu(), gpu, a_device("GPU-2"))))
    assert answer.json()["contested"] == [gpu.id]
    offers = [[d.id for d in worker.devices if d.leasable] for worker in store.snapshot().workers]
    assert offers == [["cpu", "GPU-2"], ["cpu", gpu.id]]


def test_a_revoked_worker_is_refused_at_once(speaker, engine, store):
    agent = speaker()
    assert agent.report().status_code == 200
    WorkerKeys(engine).revoke("worker-a", datetime.now(UTC))
    assert refusal(agent.beat()) == (401, "unknown_key")
    assert refusal(agent.report()) == (401, "unknown_key")
    assert store.snapshot().workers[0].state is WorkerState.LOST


def test_a_worker_that_is_enrolled_again_is_heard_by_its_new_key(speaker, engine):
    old = speaker()
    assert old.beat().status_code == 200
    WorkerKeys(engine).revoke("worker-a", datetime.now(UTC))
    new = speaker()
    assert [new.beat().status_code, old.beat().status_code] == [200, 401]


def test_of_two_agents_with_one_key_the_later_one_is_heard(speaker):
    first = speaker()
    second = Speaker(str(first.http.base_url).removesuffix(f"{PREFIX}/"))
    second.key = first.key
    assert [first.report().status_code, second.report().status_code] == [200, 200]
    assert refusal(first.beat()) == (409, "superseded")
    assert second.beat().status_code == 200
    second.http.close()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"worker": {"id": "worker-a", "host": "h", "devices": [{"memory_bytes": -1}]}}', "worker.devices.0.id"),
        (b'{"worker": {"id": "worker-a", "devices": [' + b"{}," * 1_000_000 + b"{}]}}", "a list of 1000001"),
        (b'{"worker": {"id": "worker-a", "host": "<b>", "engine": "celery", "devices": []}}', "markup"),
        (b'{"worker": {"id": "worker-a", "host": "h", "devices": []}}', "the scheduler's own"),
    ],
)
def test_an_inventory_that_can_not_be_is_refused_and_says_why(speaker, store, body, problem):
    agent = speaker()
    answer = agent.send("PUT", INVENTORY_PATH, body)
    assert refusal(answer) == (422, "invalid")
    assert problem in answer.json()["found"]
    assert store.snapshot().workers == ()
    assert agent.report().status_code == 200


def test_negative_memory_is_reported(speaker):
    agent = speaker()
    worker = json.loads(agent.worker().model_dump_json())
    worker["devices"][1]["memory_bytes"] = -1
    answer = agent.send("PUT", INVENTORY_PATH, json.dumps({"worker": worker}).encode())
    assert answer.json()["found"] == "worker.devices.1.memory_bytes: a number below 0"


def test_a_body_above_the_limit_is_not_read_to_its_end(speaker):
    agent = speaker()
    assert refusal(agent.send("PUT", INVENTORY_PATH, b" " * (MAX_INVENTORY_BYTES + 1))) == (413, "too_large")
    assert refusal(agent.send("POST", HEARTBEAT_PATH, b" " * (MAX_HEARTBEAT_BYTES + 1))) == (413, "too_large")


def test_a_stranger_can_not_make_the_server_read_a_body(server, speaker):
    """The answer arrives before the body is complete."""
    agent = speaker(enrolled=False)
    token = agent.token("PUT", INVENTORY_PATH, b"")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = f"PUT {PREFIX}{INVENTORY_PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n"
        connection.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_who_sends_rubbish_again_and_again_has_to_wait_and_others_have_not(speaker, caplog):
    a, b = speaker("worker-a"), speaker("worker-b")
    answers = [a.send("POST", HEARTBEAT_PATH, b"rubbish") for _ in range(25)]
    assert [answer.status_code for answer in answers] == [422] * 20 + [429] * 5
    assert answers[-1].headers["retry-after"] == "60"
    assert b.beat().status_code == 200
    assert len(caplog.records) == 2, "one line for each kind, not one for each request"


def test_a_database_that_is_away_is_reported_without_its_name(speaker, engine):
    agent = speaker()
    assert agent.beat().status_code == 200
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE hetero_state RENAME TO gone")
    try:
        answer = agent.beat()
        assert refusal(answer) == (503, "unavailable")
        assert answer.headers["retry-after"] == "5"
        assert "hetero_state" not in answer.text
        assert str(engine.url.database) not in answer.text
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO hetero_state")
    assert agent.beat().status_code == 200


def test_a_worker_that_leaves_is_reported_what_is_left(speaker, store):
    agent = speaker()
    agent.report()
    answer = agent.beat(is_leaving=True)
    assert answer.json()["leases"] == 0
    assert [hold.kind for hold in store.snapshot().holds] == [HoldKind.LEAVING]
    assert store.snapshot().workers[0].state is WorkerState.LOST
    agent.instance = "f" * 32
    agent.report()
    assert store.snapshot().holds == ()
    assert store.snapshot().workers[0].state is WorkerState.ONLINE


def test_the_tasks_of_a_machine_that_is_taken_back_move_until_there_is_no_notice(speaker, store):
    agent = speaker()
    agent.report()
    lease = a_lease(store, "r1", "worker-a")
    agent.beat(reclaimed="AWS is to stop it at 12:00")
    agent.beat(reclaimed="AWS is to stop it at 12:01")
    (hold,) = store.snapshot().holds
    assert (hold.kind, hold.device_id, hold.moves, hold.cause) == (
        HoldKind.RECLAIMED, "", True, "AWS is to stop it at 12:00",
    )  # fmt: skip
    assert not any(device.leasable for device in store.snapshot().workers[0].devices)
    assert [moved.id for moved, _ in leases_to_migrate(store.snapshot())] == [lease.id]
    agent.report()
    assert [hold.kind for hold in store.snapshot().holds] == [HoldKind.RECLAIMED]
    agent.beat()
    assert store.snapshot().holds == ()


def test_a_spot_machine_that_is_told_to_stop_leaves_and_moves_its_tasks(speaker, store):
    agent = speaker()
    agent.report()
    a_lease(store, "r1", "worker-a")
    assert agent.beat(is_leaving=True, reclaimed="its agent was told to stop").json()["leases"] == 1
    assert {hold.kind for hold in store.snapshot().holds} == {HoldKind.LEAVING, HoldKind.RECLAIMED}
    assert len(leases_to_migrate(store.snapshot())) == 1


def a_lease(store, request_id: str, worker_id: str) -> Lease:
    now = datetime.now(UTC)
    store.record([RequestSubmitted(a_pending(request_id))], now)
    place = a_place(request_id, worker_id, **{"GPU-0": 1000})
    (lease,) = store.commit(Plan((place,)), now, now + timedelta(hours=1)).leases
    return lease


def test_a_worker_reports_of_its_leases_and_is_reported_which_are_over(speaker, store):
    agent = speaker()
    agent.report()
    lease = a_lease(store, "r1", "worker-a")
    assert "end" not in agent.beat(leases={lease.id}).json()
    assert store.heartbeats()["worker-a"].leases == {lease.id}
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, datetime.now(UTC))
    assert agent.beat(leases={lease.id}).json()["end"] == [lease.id]


def test_a_worker_that_lies_about_anothers_leases_changes_nothing_for_that_one(speaker, store):
    a, b = speaker("worker-a"), speaker("worker-b")
    other_worker = b.worker(devices=(a_cpu(), a_device("GPU-7")))
    assert [a.report().status_code, b.report(other_worker).status_code] == [200, 200]
    lease = a_lease(store, "r1", "worker-a")
    assert "end" not in b.beat(leases={lease.id}).json()
    assert {name: heartbeat.leases for name, heartbeat in store.heartbeats().items()} == {
        "worker-a": set(),
        "worker-b": {lease.id},
    }
    store.record([WorkerLost("worker-a"), WorkerLost("worker-b")], datetime.now(UTC))
    assert a.report().json()["inventory"]
    assert b.report(other_worker, leases={lease.id}).json() == {"unknown": [lease.id]}, "it keeps only itself out"


@pytest.mark.parametrize(
    ("leases", "problem"),
    [
        (["<b>"], "markup"),
        (["a\x1b[31m"], "printed"),
        ([""], "0 characters"),
        (["l" * 321], "321 characters"),
        ([str(n) for n in range(5000)], "a list of 5000"),
        ([1], "no text"),
        ("l1", "no list"),
    ],
)
def test_leases_that_can_not_be_are_refused_and_it_is_said_why(speaker, leases, problem):
    agent = speaker()
    body = json.dumps({"worker": "worker-a", "leases": leases}).encode()
    answer = agent.send("POST", HEARTBEAT_PATH, body)
    assert refusal(answer) == (422, "invalid")
    assert problem in answer.json()["found"]
    assert agent.beat(leases={f"r{n}.{n}" for n in range(4096)}).status_code == 200
