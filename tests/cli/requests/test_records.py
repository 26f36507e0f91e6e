"""The real ``airflow hetero usage`` and ``airflow hetero decisions``."""

import csv
import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import NullPool, create_engine, delete

from hetero_airflow.cli.requests.usage import usage_csv, usage_report
from hetero_airflow.executor.explanation.usage_report import TaskUsage
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse
from hetero_airflow.model.usage.device_time import DEVICE_SECOND
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted
from hetero_airflow.testing import EPOCH, a_pending

DAY = ("--since", "2026-01-01", "--until", "2026-01-02")
PRICES = '{"a100": 2, "cpu": 0.5}'


def shown(installation, *arguments: str, **variables: str) -> str:
    return installation.output("usage", *arguments, AIRFLOW__HETERO__PRICES=PRICES, **variables)


def test_usage_by_dag_shows_what_was_held_and_what_it_costs(installation):
    (gpu, cpu) = json.loads(shown(installation, *DAY, "--json"))
    held_s = 24 * 3600 - 5  # the lease began 5 s after the begin of the day
    assert gpu == {
        "dag": "dag",
        "devices": "nvidia/a100-sxm4-40gb",
        "kind": "gpu",
        "held_s": held_s,
        "leases": 1,
        "cost": pytest.approx(2 * held_s / 3600),
    }
    assert (cpu["kind"], cpu["held_s"], cpu["cost"]) == ("cpu", 2 * held_s, pytest.approx(held_s / 3600))
    text = shown(installation, *DAY)
    assert "dag  nvidia/a100-sxm4-40gb" in text
    assert "24.00" in text
    assert "48.00" in text


def test_usage_by_model_adds_up_and_labels_what_is_simulated(installation):
    rows = {row["model"]: row for row in json.loads(shown(installation, *DAY, "--by", "model", "--json"))}
    assert rows.keys() == {"nvidia/a100-sxm4-40gb", "nvidia/t4 (simulated)", "generic/x86-64"}
    for row in rows.values():
        assert row["existed_s"] == row["held_s"] + row["free_s"] + row["on_hold_s"]
    assert rows["nvidia/t4 (simulated)"]["free_s"] == 24 * 3600
    assert rows["nvidia/t4 (simulated)"]["cost"] is None
    assert "no price" in shown(installation, *DAY, "--by", "model")


def test_usage_by_team_day_and_owner(installation):
    (row, _) = json.loads(
        shown(installation, *DAY, "--by", "team", "--json", AIRFLOW__HETERO__SHARES="research=3, research/d*=1")
    )
    assert row["team"] == "research/d*"
    days = list(csv.DictReader(shown(installation, *DAY, "--by", "day", "--csv").splitlines()))
    assert {row["day"] for row in days} == {"2026-01-01"}
    assert "unknown" in shown(installation, *DAY, "--by", "owner")
    assert "No task held a device" in shown(installation, "--since", "2020-01-01", "--until", "2020-01-02")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--since", "yesterday"), "--since='yesterday' can't be used; found no duration"),
        (("--since", "2026-02-30"), "--since='2026-02-30' can't be used"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "found an empty time. Begin before 2026-01-01"),
        (("--by", "nothing"), "invalid choice"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(installation, arguments, text):
    done = installation.run("hetero", "usage", *arguments)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_prices_and_missing_tables_are_clear_errors(installation, unmigrated):
    assert "NaN, which is no number" in installation.complaint("usage", AIRFLOW__HETERO__PRICES='{"nvidia/h100": NaN}')
    for command in ("usage", "decisions"):
        assert "Run `airflow db migrate`" in unmigrated.complaint(command)


def test_no_name_becomes_a_formula_of_a_spreadsheet_or_a_command_of_a_terminal(render):
    rows = [TaskUsage("=cmd|' /C calc'!A0\x1b[31m", "nvidia/v100", "gpu", 3600 * DEVICE_SECOND, 1, None)]
    (line,) = csv.DictReader(usage_csv(rows, "dag").splitlines())
    assert line["dag"] == "'=cmd|' /C calc'!A0\\x1b[31m"
    text = render(usage_report(rows, "dag", EPOCH, datetime(2026, 1, 2, tzinfo=UTC)))
    assert "\x1b" not in text
    assert "1.00" in text


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
        (line,) = installation.output("decisions", *arguments, FORCE_COLOR="1", COLUMNS="40").splitlines()
        assert line.isascii()
        decision = json.loads(line)
        assert (decision["dag_id"], decision["outcome"]) == (HOSTILE, "refuse")
        assert decision["decided_at"] == decided_at.isoformat()
    assert installation.output("decisions", "--since", "1h") == ""


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
    assert text in installation.complaint("decisions", "--since", since)
