"""Airflow lists us without a warning."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest
from packaging.requirements import Requirement

from hetero_airflow import operators, sensors
from hetero_airflow.provider import get_provider_info


def run_airflow(tmp_path, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__EXECUTOR": "hetero_airflow.executor.HeteroExecutor"}
    command = [sys.executable, "-m", "airflow", *arguments]
    # elsewhere than in the checkout, where what a build left would be a second copy of us
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if re.search("warning|error", line, re.I)]
    assert complaints == []
    return done.stdout


def test_airflow_shows_the_provider_without_a_warning(tmp_path):
    text = run_airflow(tmp_path, "providers", "get", "hetero-airflow", "--full", "--output", "json")
    assert "HeteroDBManager" in text


def test_airflow_lists_the_plugin_without_a_warning(tmp_path):
    plugins = json.loads(run_airflow(tmp_path, "plugins", "--output", "json"))
    assert [plugin["name"] for plugin in plugins if "hetero" in plugin["source"]] == ["hetero_airflow"]


def test_we_ship_no_listener_since_any_would_break_dags_that_end_from_a_trigger(tmp_path):
    """Trap 9."""
    plugins = json.loads(run_airflow(tmp_path, "plugins", "--output", "json"))
    ours = next(plugin for plugin in plugins if plugin["name"] == "hetero_airflow")
    assert not ours.get("listeners")


def test_what_we_tell_airflow_follows_its_schema_and_names_the_modules_of_all_that_we_export():
    info = get_provider_info()
    schema = (Path(airflow.__file__).parent / "provider_info.schema.json").read_text()
    jsonschema.validate(info, json.loads(schema))
    exported = {
        "operators": (operators.DevicePodOperator, *_classes(operators, "Operator")),
        "sensors": _classes(sensors, "Sensor"),
        "triggers": [sensors.CheckpointPublished],
    }
    for key, classes in exported.items():
        (part,) = info[key]
        assert set(part["python-modules"]) == {cls.__module__ for cls in classes}
        assert part["integration-name"] == info["integrations"][0]["integration-name"]


def _classes(package, ending):
    """What a package exports and people use: not the base class of device operators."""
    names = (name for name in package.__all__ if name.endswith(ending) and name != "DeviceOperator")
    return [getattr(package, name) for name in names]


@pytest.mark.parametrize("option", get_provider_info()["config"]["hetero"]["options"])
def test_airflow_shows_our_options_with_their_defaults(option):
    from airflow.configuration import conf

    from hetero_airflow.settings import default

    assert conf.get("hetero", option) == default(option)


def test_airflow_3_4_is_not_claimed():
    """Trap 8: it changes the executors' keys and queues."""
    from importlib.metadata import requires

    airflow = next(Requirement(text) for text in requires("hetero-airflow") if text.startswith("apache-airflow"))
    assert airflow.specifier.contains("3.3.2")
    assert not airflow.specifier.contains("3.4.0")
