from __future__ import annotations

import shlex
from configparser import ConfigParser

import pytest
from sqlalchemy import create_engine

from hetero_airflow.cli.setup.config import check_installation, environment_text, ini_text
from hetero_airflow.cli.setup.recommended_settings import Setting
from hetero_airflow.executor.recommended_settings import Recommendation

SETTINGS = (
    Setting(Recommendation("core", "executor", "x", "tasks run unplaced"), None, "x"),
    Setting(Recommendation("sdk", "a", '{"50%": "it\'s"}', "it is slow"), None, '{"50%": "it\'s"}'),
    Setting(Recommendation("sdk", "b", "1", "it is slower"), "1", "1"),
)
NOTES = """\
# The executor creates the pool devices\\n of device tasks at its first start.
# This creates the tables: airflow db migrate
# SQLite supports one scheduler. A PostgreSQL URL names its driver, as in postgresql+psycopg2://user@host/airflow,
# since SQLAlchemy 2.1 reads postgresql:// as psycopg 3.
# This checks the installation: airflow hetero config --check"""


def test_ini_text_is_what_airflow_cfg_takes():
    text = ini_text(SETTINGS, "devices\n")
    assert text == (
        """\
# Merge these into the sections of airflow.cfg, or set them as variables: airflow hetero config --env

[core]
# Without it, tasks run unplaced.
executor = x

[sdk]
# Without it, it is slow.
a = {"50%%": "it's"}
# Without it, it is slower.
b = 1

"""
        + NOTES
    )
    parser = ConfigParser()
    parser.read_string(text)
    assert {name: dict(parser[name]) for name in parser.sections()} == {
        "core": {"executor": "x"},
        "sdk": {"a": '{"50%": "it\'s"}', "b": "1"},
    }


def test_environment_text_is_what_a_shell_takes():
    text = environment_text(SETTINGS, "devices\n")
    assert text == (
        """\
# Without it, tasks run unplaced.
export AIRFLOW__CORE__EXECUTOR=x

# Without it, it is slow.
export AIRFLOW__SDK__A='{"50%": "it'"'"'s"}'

# Without it, it is slower.
export AIRFLOW__SDK__B=1

"""
        + NOTES
    )
    assert shlex.split(text, comments=True) == [
        "export",
        "AIRFLOW__CORE__EXECUTOR=x",
        "export",
        'AIRFLOW__SDK__A={"50%": "it\'s"}',
        "export",
        "AIRFLOW__SDK__B=1",
    ]


@pytest.mark.parametrize(
    ("engine", "url", "expected"),
    [
        ("local", "", []),
        ("celery", "", [False]),
        ("edge", "models", [False]),
        ("kubernetes", "s3://models", [True]),
    ],
)
def test_the_place_of_checkpoints_is_checked_if_tasks_can_change_hosts(monkeypatch, engine, url, expected):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", engine)
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", url)
    findings = check_installation(create_engine("sqlite://"))
    assert [finding.is_ok for finding in findings if finding.subject == "[hetero] checkpoint_url"] == expected
