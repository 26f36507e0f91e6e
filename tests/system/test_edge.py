"""Two edge workers with agents, which reach the API server but no database. They run the same DAGs as other engines."""

import pytest

from tests.edge_fleet import running_edge_fleet
from tests.system.conftest import QUICK
from tests.system.fleet_contract import WORKERS, FleetContract, cut_off_and_wake_up
from tests.system.fleet_runs import with_example


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, make_postgres_database):
    home = tmp_path_factory.mktemp("edge")
    dags = with_example(home / "dags", "retrain_digits.py")
    settings = {
        **QUICK,
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    }
    with running_edge_fleet(home, dags, make_postgres_database(), WORKERS, settings) as fleet:
        fleet.launch_worker("w0", "default")
        yield fleet


class TestEdge(FleetContract):
    def test_a_worker_that_wakes_up_fails_no_run_under_two_schedulers(self, fleet, two_schedulers):
        """The scheduler that places the second run need not be the one that lost the first."""
        cut_off_and_wake_up(fleet, "woken")
