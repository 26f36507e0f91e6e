"""Our reader beside Airflow's own, each in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from hetero_airflow.contract.airflow_options import AirflowOptions
from hetero_airflow.errors import SettingsError

OPTIONS = [("database", "sql_alchemy_conn"), ("hetero", "policy"), ("core", "executor"), ("hetero", "absent")]

AIRFLOWS = """
import json, sys
from airflow.configuration import conf
print(json.dumps([conf.get(section, key, fallback=None) for section, key in json.loads(sys.argv[1])]))
"""

FILE = """
[database]
sql_alchemy_conn = postgresql+psycopg2://user:100%%@host/$NAME
[core]
executor = hetero_airflow.executor.HeteroExecutor
[hetero]
policy = fifo
"""


@pytest.mark.parametrize(
    ("file", "variables"),
    [
        ("", {}),
        (FILE, {"NAME": "airflow"}),
        (FILE, {"AIRFLOW__HETERO__POLICY": "makespan", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:///$HOME/a.db"}),
        (FILE, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "printf 'sqlite:////of a command'"}),
        ("[database]\nsql_alchemy_conn_cmd = printf sqlite:////of_the_file\n", {}),
        ("[database]\nsql_alchemy_conn_cmd = false\nsql_alchemy_conn = sqlite:////first\n", {}),
    ],
)
def test_it_reads_what_airflow_reads(tmp_path, file, variables):
    (tmp_path / "other.cfg").write_text(file)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONFIG": str(tmp_path / "other.cfg"),
        **({} if file else {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"}),
        **variables,
    }
    command = [sys.executable, "-c", AIRFLOWS, json.dumps(OPTIONS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    url, *others = json.loads(done.stdout.splitlines()[-1])
    for name, value in environment.items():
        os.environ[name] = value  # expansion reads the process's environment, as Airflow's does
    try:
        options = AirflowOptions(environment)
        assert options.database_url == url
        found = [options.get(section, key) for section, key in OPTIONS[1:]]
    finally:
        for name in environment.keys() - kept.keys():
            del os.environ[name]
    defaults = {0: "assignment", 1: "LocalExecutor"}  # Airflow knows them, and our callers give them as a fallback
    assert [defaults.get(place) if value is None else value for place, value in enumerate(found)] == others


def test_an_option_that_can_not_be_read_spoils_no_other(tmp_path):
    (tmp_path / "airflow.cfg").write_text("[hetero]\nlabels = 100%\npolicy = fifo\n")
    assert AirflowOptions({"AIRFLOW_HOME": str(tmp_path)}).get("hetero", "policy") == "fifo"


@pytest.mark.parametrize(
    ("file", "variables", "problem"),
    [
        ("", {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_SECRET": "a/b"}, "a secrets backend. Use `airflow hetero`"),
        ("[database]\nsql_alchemy_conn_secret = a/b\n", {}, "a secrets backend"),
        ("[database]\nsql_alchemy_conn_cmd = false\n", {}, "exit code 1 of its command false"),
        ("no section\n", {}, "no configuration: "),
        ("[database]\nsql_alchemy_conn_cmd = /no/such/program\n", {}, "a command that can't run: "),
        ("", {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "print 'unclosed"}, "a command that can't run: "),
        ("[database]\nsql_alchemy_conn = sqlite:///100%.db\n", {}, "Correct it in airflow.cfg"),
    ],
)
def test_what_it_can_not_read_is_an_error(tmp_path, file, variables, problem):
    (tmp_path / "airflow.cfg").write_text(file)
    with pytest.raises(SettingsError, match=problem):
        _ = AirflowOptions({"AIRFLOW_HOME": str(tmp_path), **variables}).database_url
