"""Join tokens: who may join with one, and what it can't take over."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from hetero_airflow.errors import IdentityError
from hetero_airflow.store.sql.agent_messages import Admission, AgentMessage
from hetero_airflow.store.sql.join_tokens import JoinToken, JoinTokens
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker

SOON, LATER = EPOCH + timedelta(minutes=1), EPOCH + timedelta(days=40)
KEY, OTHER_KEY = "a" * 64, "b" * 64


@pytest.fixture
def keys(engine) -> WorkerKeys:
    return WorkerKeys(engine)


@pytest.fixture
def tokens(engine) -> JoinTokens:
    made = JoinTokens(engine)
    for id_, names, most in (("gpus", "gpu-*", 2), ("all", "*", 100)):
        until = EPOCH + timedelta(days=30)
        made.create(JoinToken(id_, names, most, until, EPOCH, None), f"hash of {id_}")
    return made


def report(keys, name, key=KEY, nonce=1) -> None:
    event = WorkerSeen(a_worker(name))
    (reply,) = keys.take([AgentMessage(name, key, nonce, "one", event)], SOON)
    assert reply.outcome is Admission.TAKEN


def of_token(tokens, id="gpus") -> int:
    return next(token.workers for token in tokens.all() if token.id == id)


def test_workers_join_by_themselves_up_to_the_limit(keys, tokens, engine):
    keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
    keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
    keys.enrol("gpu-2", "hash of gpus", OTHER_KEY, SOON)
    assert of_token(tokens) == 2
    with pytest.raises(IdentityError, match=r"found that this token has enrolled as many workers as it may \(2\)"):
        keys.enrol("gpu-3", "hash of gpus", KEY, SOON)
    report(keys, "gpu-1")
    SqlStore(engine).record([WorkerLost("gpu-1")], SOON)
    assert of_token(tokens) == 1
    keys.enrol("gpu-3", "hash of gpus", KEY, SOON)


def test_many_that_join_at_once_stay_within_the_limit(keys, tokens):
    def join(number):
        try:
            keys.enrol(f"gpu-{number}", "hash of gpus", f"{number:064}", SOON)
        except IdentityError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(join, range(16))) == 2


@pytest.mark.parametrize(
    ("name", "at", "problem"),
    [
        ("cpu-1", SOON, "found a token for gpu-*"),
        ("gpu-1", LATER, "found that the token was valid until 2026-01-31 00:00 UTC"),
    ],
)
def test_its_limits_hold(keys, tokens, name, at, problem):
    with pytest.raises(IdentityError) as refused:
        keys.enrol(name, "hash of gpus", KEY, at)
    assert problem in str(refused.value)
    assert keys.changes(0) == []


def test_a_revoked_token_lets_nobody_join_and_its_workers_stay(keys, tokens):
    keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
    assert tokens.revoke("gpus", SOON) == 1
    with pytest.raises(IdentityError, match="found that the token is revoked"):
        keys.enrol("gpu-2", "hash of gpus", KEY, SOON)
    report(keys, "gpu-1")
    for id_, problem in (("gpus", "that it is revoked already"), ("other", "no such token")):
        with pytest.raises(IdentityError, match=problem):
            tokens.revoke(id_, SOON)


def test_it_replaces_the_key_of_a_lost_worker_that_it_enrolled_and_no_other(keys, tokens, engine):
    keys.enrol("gpu-1", "hash of gpus", KEY, EPOCH)
    with pytest.raises(IdentityError, match="found the key of another agent"):
        keys.enrol("gpu-1", "hash of gpus", OTHER_KEY, EPOCH)
    report(keys, "gpu-1")
    with pytest.raises(IdentityError, match="found the key of another agent"):
        keys.enrol("gpu-1", "hash of gpus", OTHER_KEY, SOON + timedelta(hours=1))
    SqlStore(engine).record([WorkerLost("gpu-1")], SOON)
    with pytest.raises(IdentityError, match="found the key of another agent"):
        keys.enrol("gpu-1", "hash of all", OTHER_KEY, SOON)
    keys.enrol("gpu-1", "hash of gpus", OTHER_KEY, SOON)
    (reply,) = keys.take([AgentMessage("gpu-1", KEY, 9, "one", WorkerSeen(a_worker("gpu-1")))], SOON)
    assert reply.outcome is Admission.REVOKED
    report(keys, "gpu-1", OTHER_KEY, 2)


def test_an_agent_that_ended_before_its_first_report_comes_again_a_minute_later(keys, tokens):
    keys.enrol("gpu-1", "hash of gpus", KEY, EPOCH)
    keys.enrol("gpu-1", "hash of gpus", OTHER_KEY, EPOCH + timedelta(seconds=61))
    assert keys.changes(0)[0].public_key == OTHER_KEY


def test_it_enrols_no_worker_that_a_person_revoked_or_enrolled_or_that_is_a_schedulers_host(keys, tokens, engine):
    keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
    keys.revoke("gpu-1", SOON)
    with pytest.raises(IdentityError, match="found that a person has revoked the worker"):
        keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
    keys.open_enrolment("gpu-2", "own", EPOCH + timedelta(hours=1), EPOCH)
    keys.enrol("gpu-2", "own", KEY, SOON)
    with pytest.raises(IdentityError, match="found the key of another agent"):
        keys.enrol("gpu-2", "hash of gpus", OTHER_KEY, SOON)
    SqlStore(engine).record([WorkerSeen(a_worker("gpu-3"))], SOON)
    with pytest.raises(IdentityError, match="a scheduler reports as its own host"):
        keys.enrol("gpu-3", "hash of gpus", KEY, SOON)
    keys.open_enrolment("gpu-1", "own", EPOCH + timedelta(hours=1), EPOCH)
    keys.enrol("gpu-1", "own", OTHER_KEY, SOON)
    with pytest.raises(IdentityError, match="found the key of another agent"):
        keys.enrol("gpu-1", "hash of gpus", KEY, SOON)
