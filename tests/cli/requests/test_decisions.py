"""The real ``airflow hetero decisions``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import NullPool, create_engine, delete

from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted
from hetero_airflow.testing import a_pending

pytestmark = pytest.mark.system

HOSTILE = "[red]\x1b[31m\n\u202ezug \N{LATIN SMALL LETTER U WITH DIAERESIS}"


@pytest.fixture
def decided_at(installation):
    """When a task with a hostile name was refused: two hours ago. The other decisions are months old."""
    engine = create_engine(installation.url, poolclass=NullPool)
    now = datetime.now(UTC) - timedelta(hours=2)
    refuse = Refuse(HOSTILE, Reason(ReasonCode.COUNT, "4 × gpu", "2"), "2 × gpu", Account("fifo", HOSTILE))
    store = SqlStore(engine)
    store.commit(Plan((refuse,)), now, now, [RequestSubmitted(a_pending(HOSTILE, "gpu:4", dag_id=HOSTILE))])
    yield now
    with engine.begin() as connection:
        connection.execute(delete(tables.decision).where(tables.decision.c.request_id == HOSTILE))
        connection.execute(delete(tables.request).where(tables.request.c.id == HOSTILE))
    engine.dispose()


def test_decisions_are_json_lines_that_no_name_can_break(installation, decided_at):
    for arguments in ((), ("--since", "3h")):
        done = installation.run("hetero", "decisions", *arguments, FORCE_COLOR="1", COLUMNS="40")
        assert (done.returncode, done.stderr) == (0, "")
        (line,) = done.stdout.splitlines()
        assert line.isascii()
        decision = json.loads(line)
        assert (decision["dag_id"], decision["outcome"]) == (HOSTILE, "refuse")
        assert decision["decided_at"] == decided_at.isoformat()
    done = installation.run("hetero", "decisions", "--since", "1h")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("since", "text"),
    [
        (
            "yesterday",
            '--since=\'yesterday\' can\'t be used; found no duration. Write a duration such as "30m" or "2h"',
        ),
        ("1 day", "found the unknown unit 'day'. Did you mean \"1d\"?"),
        ("0d", "found a time that is not above 0 s"),
        ("9999d", "found a time above the limit of 366 days. Check the unit"),
        ("\x1b[31m", "--since='\\x1b[31m' can't be used"),
    ],
)
def test_a_since_that_is_no_duration_is_a_clear_error(installation, since, text):
    done = installation.run("hetero", "decisions", "--since", since)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_decisions_without_tables(unmigrated):
    done = unmigrated.run("hetero", "decisions")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Run `airflow db migrate`" in done.stderr
