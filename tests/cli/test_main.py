"""The console script ``hetero`` beside ``airflow hetero``."""

import re
import sys

import pytest

from hetero_airflow.cli.commands import COMMANDS
from hetero_airflow.cli.main import WITHOUT_AIRFLOW, main
from tests.cli.test_commands import RUN


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "--json"],
        ["workers", "--json"],
        ["devices", "--json"],
        ["models", "--json"],
        ["usage", "--by", "owner", "--json"],
        ["explain", "dag", RUN, "waits", "--map-index", "3", "--json"],
        ["explain", "dag", "placed", "--json"],
        ["decisions", "--since", "3650d"],
        ["snapshot"],
        ["top", "--once"],
        ["tokens"],
        ["revoke"],
        ["forget", "no-such-worker"],
        ["drain", "no-such-worker"],
        ["explain", "dag", "plain"],
        ["alerts"],
        ["dashboard"],
        ["schema"],
    ],
)
def test_it_prints_what_airflow_hetero_prints(installation, arguments):
    done, expected = installation.hetero(*arguments), installation.run("hetero", *arguments)
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    if arguments[0] in ("devices", "snapshot", "top"):  # with times and readings of the moment
        assert re.sub(r"\d+", "0", done.stdout) == re.sub(r"\d+", "0", expected.stdout)
    else:
        assert done.stdout == expected.stdout


def test_it_passes_on_a_command_that_needs_airflow(tmp_path, monkeypatch):
    passed_on = {command.name for command in COMMANDS} - WITHOUT_AIRFLOW
    assert {"plan", "doctor", "config", "cancel", "worker"} <= passed_on
    airflow, called = tmp_path / "airflow", []
    airflow.touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("os.execv", lambda path, command: called.append((path, command)))
    monkeypatch.setattr("hetero_airflow.cli.main.read_without_airflow", lambda: sys.exit("it is passed on"))
    with pytest.raises(SystemExit, match="it is passed on"):
        main(["plan", "dags/a.py", "--json"])
    assert called == [(str(airflow), [str(airflow), "hetero", "plan", "dags/a.py", "--json"])]


@pytest.mark.parametrize("url", ["no url", "oracle+nothing://user:secret@host/a", "mysql://user:secret@host/a"])
def test_a_url_that_can_not_be_used_is_named_without_its_password(installation, monkeypatch, url):
    variables = {"AIRFLOW_HOME": str(installation.home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}
    monkeypatch.setattr(type(installation), "_environment", lambda self: variables)
    done = installation.hetero("queue")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("[database] sql_alchemy_conn can't be used; found a URL that SQLAlchemy can't use (")
    assert "secret" not in done.stderr


def test_a_secrets_backend_needs_airflow(installation, monkeypatch):
    monkeypatch.setattr(
        type(installation),
        "_environment",
        lambda self: {"AIRFLOW_HOME": str(self.home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_SECRET": "a/b"},
    )
    done = installation.hetero("queue")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("[database] sql_alchemy_conn can't be used; found a value in a secrets backend.")
