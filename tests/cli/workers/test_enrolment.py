"""``airflow hetero enroll``, ``revoke`` and ``worker``, as their users run them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, NullPool, create_engine, select

from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.workers.enrolment import (
    check_name,
    enroll_worker,
    make_token,
    revoke_token,
    revoke_worker,
    tokens_report,
)
from hetero_airflow.errors import HeteroError, IdentityError
from hetero_airflow.store import tables
from hetero_airflow.store.sql.join_tokens import JoinTokens
from hetero_airflow.store.sql.worker_keys import WorkerKeys

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def database(tmp_path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


def secret_in(text: str) -> str:
    match = re.search(
        r"HETERO_AIRFLOW_ENROLMENT=(\S{43}) airflow hetero worker --url URL --name \S+$", text, re.MULTILINE
    )
    assert match is not None
    return match[1]


def test_a_secret_is_shown_once_and_kept_as_a_hash(database, render):
    text = render(enroll_worker(database, "node-7", NOW))
    assert text.startswith("Worker node-7 can enrol one agent within 1 h. Run this on its host:\n")
    secret = secret_in(text)
    with database.connect() as connection:
        (row,) = connection.execute(select(tables.worker_key))
    assert row.secret_hash == hash_secret(secret)
    assert secret not in str(row)


def test_a_join_token_is_shown_once_listed_and_revoked(database, render):
    text = render(make_token(database, "gpu-*", 20, "30d", NOW), width=120)
    assert "workers with names like gpu-*, up to 20 at a time" in text
    (secret,) = re.findall(r"HETERO_AIRFLOW_ENROLMENT=(\S{43}) airflow hetero worker --url URL$", text, re.MULTILINE)
    (id_,) = set(re.findall(r"join-[0-9a-f]{8}", text))
    keys = WorkerKeys(database)
    keys.enrol("gpu-1", hash_secret(secret), "a" * 64, NOW)
    listed = render(tokens_report(JoinTokens(database).all(), NOW))
    assert listed.splitlines()[1].split("  ")[0] == id_
    assert "1 / 20" in listed
    assert "for 30 d" in listed
    assert secret not in listed
    text = render(revoke_token(database, id_, NOW), width=120)
    assert text.startswith(f"Join token {id_} is revoked. Nobody can enrol with it.\n1 of its workers stay")
    assert "revoked 0 s ago" in render(tokens_report(JoinTokens(database).all(), NOW))
    with pytest.raises(IdentityError, match="that it is revoked already"):
        list(revoke_token(database, id_, NOW))


@pytest.mark.parametrize(
    ("names", "workers", "valid", "problem"),
    [
        ("", 1, "1d", "Use another name"),
        ("gpu-*,cpu-*", 1, "1d", "Use another name"),
        ("gpu-*", 0, "1d", "a number outside 1 to 100000"),
        ("gpu-*", 1, "soon", "--valid="),
    ],
)
def test_a_token_with_bad_limits_is_refused(database, names, workers, valid, problem):
    with pytest.raises(HeteroError, match=problem):
        list(make_token(database, names, workers, valid, NOW))
    assert JoinTokens(database).all() == []


def test_revoking_a_worker_and_an_unused_secret_have_different_texts(database, render):
    render(enroll_worker(database, "node-7", NOW))
    text = render(revoke_worker(database, "node-7", NOW))
    assert text == "Worker node-7 is revoked. Its secret is not valid any more."
    with pytest.raises(IdentityError, match="revoked already"):
        list(revoke_worker(database, "node-7", NOW))


@pytest.mark.parametrize("name", ["", "weird name ü", "<b>", "a\x1b[31m", "a\nb", "a,b", "w" * 257])
def test_a_name_that_no_worker_may_have_is_refused(database, name):
    with pytest.raises(HeteroError, match="Use another name"):
        list(enroll_worker(database, name, NOW))
    assert check_name("node-7/gpu 0") == "node-7/gpu 0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "no key in"),
        (("--labels", "[]"), "no JSON object of texts"),
        (("--engine", "local"), "the scheduler's own"),
        (("--user", "no-such-user"), "no such user on this host"),
    ],
)
def test_wrong_arguments_of_the_agent_are_errors(installation, arguments, text):
    url = "http://127.0.0.1:9"  # nothing is asked there
    done = installation.run("hetero", "worker", "--url", url, "--name", "node-8", *arguments)
    assert done.returncode == 1
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
