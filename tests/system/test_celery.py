"""Two Celery workers with agents, a real Redis and PostgreSQL: no device is leased twice, and no task is lost."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from local_airflow import ColdAirflow
from sqlalchemy import NullPool, create_engine, text

import hetero_airflow
from tests import lease_audit
from tests.celery_fleet import running_fleet
from tests.checkpoints.conftest import s3_server
from tests.s3_lake import lake_settings
from tests.system.conftest import QUICK
from tests.system.fleet_contract import WORKERS, FleetContract
from tests.system.fleet_runs import finish, leases, notes, run, start_training, tries, with_example
from tests.system.overlaps import overlaps
from tests.system.scheduler_jobs import owned_tasks

__all__ = ["s3_server"]

# As short as the other times of `QUICK`, but longer than a message waits at most.
SETTINGS = {
    **QUICK,
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
}

BEGUN = ("queued", "running", "success")
MOST_RUNS = 12


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, make_postgres_database, s3_server):
    home = tmp_path_factory.mktemp("fleet")
    dags = with_example(home / "dags", "retrain_digits.py", "retrain_from_store.py")
    settings = {**SETTINGS, **lake_settings(s3_server, "fleet"), "AIRFLOW__HETERO__DATA_CACHE": f"{home}/cache"}
    with running_fleet(home, dags, make_postgres_database(), WORKERS, settings) as fleet:
        fleet.add_plain("w0")
        yield fleet


NEXT_MIGRATION = """
import sqlalchemy as sa
from alembic import op
from hetero_airflow.store.migrations.versions.v0001_create_tables import revision as down_revision

revision = "next"


def upgrade():
    op.add_column("hetero_lease", sa.Column("next_column", sa.String(20)))
"""


@pytest.fixture
def next_version(tmp_path):
    """A folder with the package and one more migration, as its next version has one."""
    package = Path(hetero_airflow.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / package.name / "store/migrations/versions/v0002_next.py").write_text(NEXT_MIGRATION)
    return tmp_path


class TestCelery(FleetContract):
    def test_kill_9_of_one_of_two_schedulers_leaves_its_tasks_to_the_other(self, fleet, two_schedulers):
        engine, first, second = two_schedulers
        fleet.airflow.wait_until_freed()
        lease_audit.audit(engine)
        runs = [fleet.airflow.trigger("spread")]

        def of_second():
            """What the second scheduler holds and has started, once both schedulers have started some tasks."""
            tasks = owned_tasks(engine, "spread", runs)
            waiting = {request.id for request in fleet.airflow.store().snapshot().pending}
            held = {id_ for id_, task in tasks.items() if task.scheduler == second and id_ in waiting}
            running = {id_ for id_, task in tasks.items() if task == (second, "running", 1)}
            is_one_sided = not held or first not in {task.scheduler for task in tasks.values()}
            if is_one_sided and all(task.state in BEGUN for task in tasks.values()) and len(runs) < MOST_RUNS:
                runs.append(fleet.airflow.trigger("spread"))  # it is random which of them queues the tasks of a run
            started = {task.scheduler for task in tasks.values() if task.state in ("running", "success")}
            return (held, running) if held and running and started == {first, second} else None

        held, running = fleet.airflow.wait_until(of_second, "both schedulers to have tasks")
        fleet.airflow.kill("scheduler-2")
        at = time.time()
        tasks_left = owned_tasks(engine, "spread", runs)
        waiting = {request.id for request in fleet.airflow.store().snapshot().pending}
        shares = {job: sum(task.scheduler == job for task in tasks_left.values()) for job in (first, second)}
        print(f"tasks queued by each scheduler at the kill: {shares}; held {len(held)}, running {len(running)}")
        for run_id in runs:
            assert fleet.airflow.wait_for_run("spread", run_id) == "success"
        print(f"all {8 * len(runs)} tasks were over {time.time() - at:.1f} s after the kill")
        tasks = owned_tasks(engine, "spread", runs)
        assert len(tasks) == 8 * len(runs)
        assert {(task.state, task.try_number) for task in tasks.values()} == {("success", 1)}
        # what it sent just before it was killed is still QUEUED, and runs without an heir
        orphans = [id_ for id_ in held & waiting if tasks_left[id_] == (second, "queued", 1)]
        assert orphans, "it had started them all before it was killed"
        assert {tasks[id_].scheduler for id_ in orphans} == {first}
        uses = [fleet.airflow.xcom("spread", run_id, "use", number) for run_id in runs for number in range(8)]
        assert {use["worker"] for use in uses} == {"w1", "w2"}
        assert overlaps(uses) == []
        assert lease_audit.overlaps(engine) == []

    def test_workers_train_evaluate_and_publish_with_data_of_an_object_store(self, fleet):
        run_id = run(fleet, "retrain_from_store", {"upload_digits": True}, timeout_s=240)
        published = fleet.airflow.xcom("retrain_from_store", run_id, "publish")
        assert published["accuracy"] == fleet.airflow.xcom("retrain_from_store", run_id, "evaluate") > 0.85
        source = {"source_dag_id": "retrain_from_store", "source_run_id": run_id}
        (event,) = fleet.airflow.api("GET", "/assets/events", params=source)["asset_events"]
        assert event["extra"]["sha256"] == published["sha256"]

    def test_redis_that_is_away_loses_nothing(self, fleet):
        run_id = start_training(fleet, "brokerless")
        fleet.redis.kill()
        later = fleet.airflow.trigger("long", {"seconds": 1})
        time.sleep(5)
        fleet.redis.start()
        finish(fleet, "brokerless", run_id)
        assert fleet.airflow.wait_for_run("long", later) == "success"
        assert tries(fleet, "long", later) == [1]

    def test_an_upgrade_keeps_running_tasks_with_their_leases_and_the_queue(self, fleet, next_version, monkeypatch):
        """The last test: it leaves tables of the next version. The workers and their agents stay as they are."""
        airflow = fleet.airflow
        airflow.wait_until_freed()
        run_id = start_training(fleet, "upgraded")
        (training,) = leases(fleet, "train")
        long, waiting = airflow.trigger("long"), airflow.trigger("long")
        airflow.wait_until(lambda: leases(fleet, "long"), "a task to take the other GPUs")
        airflow.wait_until(lambda: airflow.store().snapshot().pending, "a task to wait")
        os.kill(airflow.pid("scheduler"), signal.SIGTERM)
        airflow.wait_until(lambda: airflow.has_ended("scheduler"), "the scheduler to stop")
        monkeypatch.setitem(airflow.environment, "PYTHONPATH", str(next_version))
        monkeypatch.setattr(airflow, "_starter", ColdAirflow(airflow.environment))  # a warm one has this version
        airflow.migrate()
        engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
        with engine.connect() as connection:
            assert connection.execute(text("SELECT next_column FROM hetero_lease")).all(), "it is not migrated"
        airflow.launch("scheduler")
        for id_ in (long, waiting):
            assert airflow.wait_for_run("long", id_) == "success"
            assert tries(fleet, "long", id_) == [1]
        assert [lease.token for lease in leases(fleet, "train")] == [training.token]
        finish(fleet, "upgraded", run_id)
        assert len(notes(fleet, "upgraded", "start")) == 1, "it was started again"
