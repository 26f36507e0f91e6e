"""Two Celery workers with agents, a real Redis and PostgreSQL: nothing is leased twice, nothing lost."""

import time

import pytest

from tests.celery_fleet import running_fleet
from tests.system.conftest import QUICK
from tests.system.fleet_contract import WORKERS, FleetContract
from tests.system.fleet_runs import finish, start_training, tries, with_example

# As soon as the others of `QUICK`, but what was sent is to be good for longer than a message waits at most.
SETTINGS = {**QUICK, "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60", "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, make_postgres_database):
    home = tmp_path_factory.mktemp("fleet")
    dags = with_example(home / "dags", "retrain_digits.py")
    with running_fleet(home, dags, make_postgres_database(), WORKERS, SETTINGS) as fleet:
        fleet.add_plain("w0")
        yield fleet


class TestCelery(FleetContract):
    @pytest.mark.fleet
    def test_redis_that_is_away_loses_nothing(self, fleet):
        run_id = start_training(fleet, "brokerless", 40)
        fleet.redis.kill()
        later = fleet.airflow.trigger("long", {"seconds": 1})
        time.sleep(5)
        fleet.redis.start()
        finish(fleet, "brokerless", run_id, 40)
        assert fleet.airflow.wait_for_run("long", later, 120) == "success"
        assert tries(fleet, "long", later) == [1]
