"""``airflow hetero cleanup``, in an Airflow of its own, since it removes the tables."""

import os
import re
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import a_worker
from tests.cli.conftest import Installation


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An Airflow that sees no lease files of other tests, and removes none."""
    with pytest.MonkeyPatch.context() as patch, closing(Installation(tmp_path_factory.mktemp("own"))) as made:
        patch.setenv("TMPDIR", str(made.home))
        patch.setenv("XDG_RUNTIME_DIR", str(made.home))
        patch.setenv("TESTS_MEMORY_FOLDER", str(made.home))
        yield made


@pytest.fixture
def clean_up(installation, own):
    """Runs the command on a copy of the installation; a text with `HOME` where its output has the home's path."""
    (own.home / "local_runs" / "run").mkdir(parents=True, exist_ok=True)
    shutil.copy(installation.home / "airflow.db", own.home)
    (own.home / f"hetero-airflow-leases-{os.getuid()}").mkdir(mode=0o700, exist_ok=True)

    def run(*arguments, code=0):
        done = own.run("hetero", "cleanup", *arguments)
        assert done.returncode == code, done
        return (done.stdout + done.stderr).replace(str(own.home), "HOME")

    return run


def query(own, statement):
    with closing(sqlite3.connect(own.home / "airflow.db")) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows


TABLES = "SELECT name FROM sqlite_master WHERE name LIKE '%hetero%' AND type = 'table'"
POOLS = "SELECT pool FROM slot_pool WHERE pool LIKE 'hetero%'"
EXPIRED = "UPDATE hetero_lease SET expires_at = '2026-01-01 00:00:00'"


def test_it_shows_what_it_would_remove_then_removes_it_and_then_finds_nothing(own, clean_up):
    leases = f"hetero-airflow-leases-{os.getuid()}"
    query(own, EXPIRED)
    shown = clean_up()
    assert "This would be removed:\n" in shown
    assert "Nothing was removed. `airflow hetero cleanup --yes` removes it; that can't be undone." in shown
    assert query(own, TABLES)
    removed = clean_up("--yes")
    for text in (shown, removed):
        assert re.search(r"  \d+ tables \(rows: \d+\): hetero_", text)
        assert "  the pool hetero_devices\n" in text
        assert re.findall("  the folder (.*)", text) == ["HOME/local_runs", f"HOME/{leases}"]
        assert "  the checkpoints at file://HOME/checkpoints\n" in text
    assert "Now run `pip uninstall hetero-airflow`" in removed
    assert query(own, TABLES) == query(own, POOLS) == []
    assert not (own.home / "local_runs").exists()
    assert not (own.home / leases).exists()
    nothing = "Nothing is left to remove: no tables, no pool, and no files on this host.\n"
    assert own.run("hetero", "cleanup").stdout == nothing
    assert own.run("db", "migrate").returncode == 0
    assert query(own, TABLES), "a new installation has its tables again"


def test_a_lease_that_has_not_expired_keeps_everything(own, clean_up):
    query(own, "UPDATE hetero_lease SET expires_at = '2126-01-01 00:00:00'")
    assert "can't clean up; found tasks that hold devices (1). Wait" in clean_up("--yes", code=1)
    assert query(own, TABLES)
    assert query(own, POOLS)


def test_a_worker_that_reports_keeps_everything(own, clean_up):
    query(own, EXPIRED)
    engine = create_engine(own.url, poolclass=NullPool)
    SqlStore(engine).record([WorkerSeen(a_worker())], datetime.now(UTC))
    engine.dispose()
    text = clean_up("--yes", code=1)
    assert "found that worker-a was seen less than a minute ago. Stop the schedulers and the agents" in text
    assert query(own, TABLES)


def test_an_unfinished_task_keeps_everything(own, clean_up):
    query(own, EXPIRED)
    query(own, "UPDATE task_instance SET state = 'queued', pool = 'hetero_devices' WHERE task_id = 'plain'")
    text = clean_up("--yes", code=1)
    assert "found tasks in the pool hetero_devices that have not ended (1), as dag.plain of run (queued). Wait" in text
    assert "airflow tasks clear --task-regex plain dag" in text
    assert query(own, TABLES)
