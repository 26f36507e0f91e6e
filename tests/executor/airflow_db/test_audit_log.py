"""Airflow's audit log on a real SQLite."""

import pytest
from airflow.models import import_all_models
from airflow.models.log import Log
from airflow.models.taskinstancekey import TaskInstanceKey
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from hetero_airflow.executor.airflow_db import audit_log
from hetero_airflow.executor.airflow_db.audit_log import explain_failure

KEY = TaskInstanceKey("dag", "train", "run", 1, -1)


@pytest.fixture
def written():
    """Writes events as Airflow's scheduler does; what stands in the table then."""
    import_all_models()
    engine = create_engine("sqlite://")
    Log.__table__.create(engine)

    def written(*events, key=KEY):
        with Session(engine) as session:
            session.add_all(Log(event=event, extra="Executor reported ...", task_instance=key) for event in events)
            session.commit()
        with Session(engine) as session:
            return [tuple(row) for row in session.execute(select(Log.event, Log.extra).order_by(Log.id))]

    yield written
    engine.dispose()


def test_the_reason_of_a_failure_stands_in_place_of_a_mismatch_once(written):
    explain_failure(KEY, "No known worker can ever run this")
    assert written("failed", "state mismatch") == [
        ("failed", "Executor reported ..."),
        ("hetero_airflow", "No known worker can ever run this"),
    ]
    assert written("state mismatch")[-1] == ("state mismatch", "Executor reported ...")


def test_a_real_mismatch_of_another_try_is_kept(written):
    explain_failure(KEY, "text")
    assert written("state mismatch", key=KEY.with_try_number(2)) == [("state mismatch", "Executor reported ...")]


def test_reasons_that_airflow_never_asks_for_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(audit_log, "_reasons", {})
    for number in range(audit_log._MAX_REASONS + 10):
        explain_failure(KEY.with_try_number(number), "text")
    assert len(audit_log._reasons) == audit_log._MAX_REASONS
