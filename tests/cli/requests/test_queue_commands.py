from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.requests.named_tasks import queue_outcomes
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.testing import a_pending

RUN = "manual__2026-01-01T00:00:00+00:00"


@pytest.fixture
def stored(installation):
    """How the request of the waiting task stands; afterwards it is as before."""
    engine = create_engine(installation.url, poolclass=NullPool)
    store = SqlStore(engine)

    def read():
        return next(pending for pending in store.snapshot().pending if pending.task_id == "waits")

    before = read()
    yield read
    installation.run("hetero", "unpause", "dag", "waits", "--run-id", RUN)
    installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN, "--priority", before.request.priority)
    assert read() == before
    engine.dispose()


def test_a_waiting_task_is_paused_and_unpaused(installation, stored):
    done = installation.run("hetero", "pause", "dag", "waits", "--run-id", RUN)
    text = "is paused: it gets no devices until `airflow hetero unpause`.\n"
    assert (done.returncode, done.stdout) == (0, f"dag.waits[3] in run {RUN} {text}")
    assert stored().is_paused
    assert "a pause by a person" in installation.run("hetero", "queue").stdout
    explained = installation.run("hetero", "explain", "dag", RUN, "waits", "--map-index", "3").stdout
    assert "a pause by a person" in explained
    assert "Starts" not in explained
    done = installation.run("hetero", "unpause", "dag", "waits", "--run-id", RUN, "--map-index", "3")
    assert done.stdout.endswith("waits for its devices.\n")
    assert not stored().is_paused


def test_bump_takes_the_next_class_or_the_named_one(installation, stored):
    assert installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN).stdout.endswith(
        "waits with the priority high.\n"
    )
    assert stored().request.priority == "high"
    installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN, "--priority", "low")
    assert stored().request.priority == "low"


@pytest.mark.parametrize("command", ["pause", "unpause", "bump"])
def test_a_running_task_is_left_alone(installation, command):
    done = installation.run("hetero", command, "dag", "placed")
    assert done.returncode == 1
    text = f"has its devices already, so {command} does nothing; `airflow hetero cancel` ends it."
    assert done.stdout == f"dag.placed in run run {text}\n"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("nix", "task"), "no run of a DAG nix"),
        (("dag", "task", "--run-id", "nix"), "no such run"),
        (("dag", "nix"), "no such task in the run. Its tasks are placed, plain"),
        (("dag", "plain"), "a task that has ended: success"),
        (("dag", "placed", "nix"), "no such task in the run"),
        (("dag", "placed", "--map-index", "0"), "a task that is not mapped. Leave --map-index out"),
        (("dag", "placed", "waits"), f"tasks that wait or run in 2 runs: {RUN}, run. Name one of them with --run-id"),
    ],
)
@pytest.mark.parametrize("command", ["cancel", "pause", "unpause", "bump"])
def test_a_wrong_name_changes_nothing(installation, command, names, found):
    done = installation.run("hetero", command, *names)
    assert (done.returncode, done.stdout) == (1, "")
    assert found in done.stderr


def test_a_task_that_gets_its_devices_at_the_same_moment_is_reported():
    first, second, third = (a_pending(name) for name in ("first", "second", "third"))
    after = Snapshot(2, pending=(replace(first, is_paused=True),), holders={second.id: second})
    outcomes = queue_outcomes((first, second, third), after, "pause", lambda pending: f"paused: {pending.is_paused}")
    texts = ["paused: True", "has its devices already, so pause does nothing; `airflow hetero cancel` ends it"]
    assert [(outcome.text, outcome.is_done) for outcome in outcomes] == [
        (texts[0], True),
        (texts[1], False),
        ("has just ended", False),
    ]
