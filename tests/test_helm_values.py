"""The values of docs/howto/helm.md; with a chart at hand (HETERO_AIRFLOW_HELM_CHART, and helm in PATH) rendered too."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hetero_airflow.contract.executor_names import hetero_executor_name
from hetero_airflow.executor.recommended_settings import recommendations

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "kubernetes" / "values.yaml"
VALUES = yaml.safe_load(FILE.read_text())
RBAC = list(yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "rbac.yaml").read_text()))

CHART = os.environ.get("HETERO_AIRFLOW_HELM_CHART", "")


def test_the_settings_are_the_recommended_ones():
    settings = {(each.section, each.option): each.value for each in recommendations("hetero", "kubernetes")}
    del settings["core", "executor"]
    found = {
        (section, option): str(value)
        for section, options in VALUES["config"].items()
        for option, value in options.items()
        if section != "hetero"
    }
    assert found == settings
    assert VALUES["config"]["hetero"]["engine"] == "kubernetes"


def test_the_chart_takes_the_executor_for_a_kubernetes_executor_and_airflow_for_ours():
    assert hetero_executor_name(VALUES["executor"]) == "HeteroKubernetesExecutor"
    assert "KubernetesExecutor" in VALUES["executor"]


def test_the_service_accounts_are_those_of_the_rights():
    made = {each["metadata"]["name"] for each in RBAC if each["kind"] == "ServiceAccount"}
    accounts = [VALUES[part]["serviceAccount"] for part in ("scheduler", "apiServer")]
    accounts.append(VALUES["workers"]["kubernetes"]["serviceAccount"])
    assert {account["name"] for account in accounts} == made
    assert not any(account["create"] for account in accounts)


@pytest.mark.skipif(
    not CHART or shutil.which("helm") is None, reason="no helm, or no chart in HETERO_AIRFLOW_HELM_CHART"
)
def test_the_chart_accepts_and_renders_them(tmp_path):
    command = ["helm", "template", "airflow", CHART, "--namespace", "airflow", "--values", str(FILE)]
    folders = {f"HELM_{name}_HOME": str(tmp_path) for name in ("CACHE", "CONFIG", "DATA")}
    done = subprocess.run(command, env=os.environ | folders, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    kinds = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    scheduler = kinds["Deployment", "airflow-scheduler"]["spec"]["template"]["spec"]
    assert scheduler["serviceAccountName"] == "airflow-scheduler"
    assert ("ServiceAccount", "airflow-scheduler") not in kinds
    launchers = kinds["RoleBinding", "airflow-pod-launcher-rolebinding"]["subjects"]
    assert "airflow-scheduler" in {subject["name"] for subject in launchers}
    pod = yaml.safe_load(kinds["ConfigMap", "airflow-config"]["data"]["pod_template_file.yaml"])
    assert pod["spec"]["serviceAccountName"] == "airflow-task"
    assert pod["spec"]["containers"][0]["image"] == "registry.example/airflow-hetero:1"
    config = kinds["ConfigMap", "airflow-config"]["data"]["airflow.cfg"]
    assert "engine = kubernetes" in config
    assert f"executor = {VALUES['executor']}" in config
