"""``airflow hetero enroll``, ``revoke`` and ``worker``, as their users run them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, NullPool, create_engine, select

from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.workers.enrolment import check_name, enroll_worker, revoke_worker
from hetero_airflow.errors import HeteroError, IdentityError
from hetero_airflow.store import tables

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
