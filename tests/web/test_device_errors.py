"""Errors of devices that an agent reports over real HTTP, up to the hold that schedulers see."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from hetero_airflow.agent.protocol import HEARTBEAT_PATH, MAX_ERRORS, DeviceError, Heartbeat
from hetero_airflow.model.devices.health import HealthState
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.testing import a_cpu, a_device
from hetero_airflow.web.agent_routes import health_changes


def xid(number=79, device_id="GPU-0", at=None) -> DeviceError:
    return DeviceError(device_id=device_id, xid=number, at=at or datetime.now(UTC))


def states(store) -> dict[tuple[str, str], str]:
    return {key: health.state for key, health in store.health().items()}


@pytest.fixture
def agent(speaker):
    speaker_a = speaker()
    speaker_a.report()
    return speaker_a


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (xid(), "XID 79, GPU has fallen off the bus"),
        (DeviceError(device_id="GPU-0", ecc_errors=2, at=datetime.now(UTC)), "2 uncorrected ECC errors"),
    ],
)
def test_a_fatal_error_takes_the_device_out_at_once(agent, store, error, cause):
    assert agent.beat(errors=(error,)).status_code == 200
    (hold,) = store.snapshot().holds
    assert (hold.worker_id, hold.device_id, hold.kind, hold.cause) == ("worker-a", "GPU-0", HoldKind.QUARANTINED, cause)
    assert [d.id for d in store.snapshot().workers[0].devices if d.leasable] == ["cpu", "GPU-1"]


def test_a_storm_of_xid_45_leaves_no_trace(agent, store):
    before = store.snapshot()
    now = datetime.now(UTC)
    errors = tuple(xid(45, at=now - timedelta(seconds=n)) for n in range(MAX_ERRORS))
    assert agent.beat(errors=errors).status_code == 200
    assert (store.snapshot() is before, store.health()) == (True, {})


def test_errors_that_count_by_rate_count_over_heartbeats_and_once_if_reported_again(agent, store):
    now = datetime.now(UTC)
    first, second, third = (xid(63, at=now - timedelta(minutes=n)) for n in (3, 2, 1))
    for errors in ((first,), (first, second), (first, second)):
        agent.beat(errors=errors)
    assert (states(store), store.snapshot().holds) == ({("worker-a", "GPU-0"): HealthState.HEALTHY}, ())
    agent.beat(errors=(third,))
    assert states(store) == {("worker-a", "GPU-0"): HealthState.QUARANTINED}


def test_a_worker_speaks_for_its_own_devices_only(agent, speaker, store):
    other_speaker = speaker("worker-b")
    other_speaker.report(other_speaker.worker(devices=(a_cpu(), a_device("GPU-7"))))
    assert other_speaker.beat(errors=(xid(device_id="GPU-0"), xid(device_id="GPU-9"))).status_code == 200
    assert (store.health(), store.snapshot().holds) == ({}, ())
    other_speaker.beat(errors=(xid(device_id="GPU-7"),))
    assert set(store.health()) == {("worker-b", "GPU-7")}


@pytest.mark.parametrize(
    ("errors", "problem"),
    [
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z"}], "either an xid or ecc_errors"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z", "xid": 1, "ecc_errors": 1}], "either an xid or"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00", "xid": 79}], "a time without a zone"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z", "xid": 2**63}], "above 10000"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z", "ecc_errors": 0}], "not above 0"),
        ([{"device_id": "<b>", "at": "2026-01-01T00:00:00Z", "xid": 79}], "markup"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z", "class": "fatal", "xid": 1}], "an unknown field"),
        ([{"device_id": "GPU-0", "at": "2026-01-01T00:00:00Z", "xid": 79}] * (MAX_ERRORS + 1), f"{MAX_ERRORS} items"),
    ],
)
def test_errors_that_can_not_be_are_refused_and_it_is_said_why(agent, store, errors, problem):
    answer = agent.send("POST", HEARTBEAT_PATH, json.dumps({"worker": "worker-a", "errors": errors}).encode())
    assert answer.status_code == 422
    assert problem in answer.json()["found"]
    assert store.health() == {}


def test_an_agent_that_knows_no_errors_is_heard(agent):
    assert agent.send("POST", HEARTBEAT_PATH, b'{"worker": "worker-a"}').status_code == 200


@pytest.mark.parametrize("year", [1, 9999])
def test_no_clock_holds_a_device_for_ever(agent, store, year):
    before = datetime.now(UTC)
    at = datetime(year, 1, 1, tzinfo=UTC)
    assert agent.beat(errors=(xid(at=at),)).status_code == 200
    (health,) = store.health().values()
    assert before - timedelta(days=1) <= health.since <= datetime.now(UTC)
    assert health.until == health.since + timedelta(minutes=1)


def test_many_errors_of_one_device_are_one_change():
    now = datetime.now(UTC)
    beat = Heartbeat(worker="worker-a", errors=tuple(xid(63, at=now - timedelta(seconds=n)) for n in range(100)))
    assert [health_change.device_id for health_change in health_changes("worker-a", beat.errors, now)] == ["GPU-0"]
