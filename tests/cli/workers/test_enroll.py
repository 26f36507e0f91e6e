"""``airflow hetero enroll``, ``revoke`` and ``worker``, as their users run them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from local_airflow import PATIENCE_S, LocalAirflow
from sqlalchemy import Engine, NullPool, create_engine, select

from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.workers.enroll import check_name, enroll_worker
from hetero_airflow.cli.workers.revoke import revoke_worker
from hetero_airflow.errors import HeteroError, IdentityError
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore

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


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """Airflow's API server alone."""
    dags = tmp_path_factory.mktemp("dags")
    simulated = "nvidia/h100-80gb:2"
    with LocalAirflow(tmp_path_factory.mktemp("agents"), dags, components=["api-server"], simulated=simulated) as made:
        yield made


def start_agent(airflow: LocalAirflow, name: str, secret: str = "", *arguments: str) -> subprocess.Popen[str]:
    environment = airflow.environment | ({"HETERO_AIRFLOW_ENROLMENT": secret} if secret else {})
    environment |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/agents-need-no-database.db"}
    command = [sys.executable, "-m", "airflow", "hetero", "worker", "--url", airflow.url, "--name", name, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_an_agent_from_enrolment_to_revocation(airflow):
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
    store = SqlStore(engine)
    secret = secret_in(airflow.run("hetero", "enroll", "node-7").stdout)
    labels = ("--labels", '{"zone": "a"}')
    agent = start_agent(airflow, "node-7", secret, *labels)
    airflow.wait_until(lambda: store.snapshot().workers, "the worker to be known")
    (worker,) = store.snapshot().workers
    assert (worker.id, worker.engine, worker.labels, worker.state) == ("node-7", "celery", {"zone": "a"}, "online")
    assert [device.model for device in worker.devices if device.simulated] == ["h100-80gb"] * 2
    assert "node-7" in airflow.run("hetero", "workers").stdout
    assert "a key that was enrolled at" in airflow.run("hetero", "enroll", "node-7", check=False).stderr

    agent.send_signal(signal.SIGTERM)
    output, _ = agent.communicate(timeout=PATIENCE_S)
    assert (agent.returncode, store.snapshot().workers[0].state) == (0, WorkerState.LOST)
    assert "Worker node-7 has left." in output
    assert secret not in output

    agent = start_agent(airflow, "node-7")
    airflow.wait_until(lambda: store.snapshot().workers[0].state is WorkerState.ONLINE, "the worker to be back")
    assert store.snapshot().holds == ()
    airflow.run("hetero", "revoke", "node-7")
    output, _ = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 1
    assert "airflow hetero enroll" in output
    assert "Traceback" not in output
    engine.dispose()


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
