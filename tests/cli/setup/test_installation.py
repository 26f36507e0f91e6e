"""What an installation is asked, on a database without any tables."""

import pytest
from sqlalchemy import create_engine

from hetero_airflow.cli.setup.installation import check_installation


@pytest.mark.parametrize(
    ("engine", "url", "expected"),
    [
        ("local", "", []),
        ("celery", "", [False]),
        ("edge", "models", [False]),
        ("kubernetes", "s3://models", [True]),
    ],
)
def test_the_place_of_checkpoints_is_looked_at_where_tasks_move_between_hosts(monkeypatch, engine, url, expected):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", engine)
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", url)
    findings = check_installation(create_engine("sqlite://"))
    assert [one.is_ok for one in findings if one.subject == "[hetero] checkpoint_url"] == expected
