"""The configured policy decides in a real Airflow, here on different simulated devices.

The default knows from data sheets that an H100 is faster than a 910B. FIFO takes the device with the smaller memory.
"""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("installation", "policy", "kind"),
    [("airflow", "assignment", "gpu"), pytest.param("airflow_on_postgres", "fifo", "npu", marks=pytest.mark.postgres)],
)
def test_the_configured_policy_decides(request, installation, policy, kind):
    airflow = request.getfixturevalue(installation)
    airflow.wait_until_freed()
    run_id = airflow.trigger("either")
    assert airflow.wait_for_run("either", run_id) == "success"
    assert airflow.xcom("either", run_id, "either")["kind"] == kind
    command = [sys.executable, "-m", "airflow", "hetero", "explain", "either", run_id, "either", "--json"]
    done = subprocess.run(command, env=os.environ | airflow.environment, capture_output=True, text=True, check=True)
    placed = [decision for decision in json.loads(done.stdout)["decisions"] if decision["outcome"] == "place"]
    assert [decision["account"]["policy"] for decision in placed] == [policy]
