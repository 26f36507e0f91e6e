"""The manifests and images of docs/kubernetes.md, as far as they can be checked without a cluster and Docker."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import validate
from packaging.requirements import Requirement

from hetero_airflow.contract import executor_names
from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import pod_parts
from hetero_airflow.model.request import DeviceRequest
from tests.kubernetes_bodies import VERSION, check_pod

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
RBAC = list(yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "rbac.yaml").read_text()))
TEMPLATE = yaml.safe_load((ROOT / "docs" / "kubernetes" / "pod-template.yaml").read_text())
IMAGES = sorted((ROOT / "docker").glob("Dockerfile*"))


def requirements_of(wanted, extras):
    """Names of what the extras ask for, also by way of another extra of the project."""
    requirements = [Requirement(text) for extra in wanted for text in extras[extra]]
    own_extras = [
        extra for requirement in requirements if requirement.name == "hetero-airflow" for extra in requirement.extras
    ]
    return {requirement.name for requirement in requirements} | (
        requirements_of(own_extras, extras) if own_extras else set()
    )


def granted(rules):
    """(resource, verb) of all."""
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.parametrize("manifest", RBAC, ids=lambda manifest: f"{manifest['kind']} {manifest['metadata']['name']}")
def test_each_manifest_is_one(manifest):
    validate(manifest, VERSION, strict=True)


def test_the_scheduler_may_do_what_the_engine_does():
    rules = {manifest["metadata"]["name"]: manifest["rules"] for manifest in RBAC if "rules" in manifest}
    bound = {manifest["roleRef"]["name"]: manifest["subjects"][0]["name"] for manifest in RBAC if "roleRef" in manifest}
    assert bound == dict.fromkeys(rules, "airflow-scheduler")
    everywhere = granted(rules["hetero-airflow-watch"])
    assert {(what, verb) for what in ("nodes", "pods") for verb in ("list", "watch")} <= everywhere
    assert {verb for _, verb in everywhere} <= {"get", "list", "watch"}
    allowed = granted(rules["airflow-pods"])
    assert {("pods", verb) for verb in ("create", "list", "watch", "patch", "delete")} | {
        ("pods/log", "get")
    } <= allowed


def test_the_template_makes_a_pod_that_a_server_takes():
    pod = complete_pod(TEMPLATE, pod_parts(DeviceRequest.parse("gpu", quota={"cpus": 2}), ClusterOptions()))
    pod["spec"]["containers"][0]["image"] = "registry.example/hetero-airflow:1"
    check_pod(pod)
    assert TEMPLATE["spec"]["containers"][0]["name"] == "base"
    assert TEMPLATE["spec"]["serviceAccountName"] in {manifest["metadata"]["name"] for manifest in RBAC}


def test_the_page_names_what_there_is():
    assert f'"classpath": "{executor_names.COORDINATOR_CLASSPATH}"' in PAGE
    for name in re.findall(r"docs/kubernetes/[\w.-]+|docker/Dockerfile[\w.]*", PAGE):
        assert (ROOT / name.rstrip(".")).is_file()


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_installs_what_there_is_and_runs_as_nobody_in_particular(path):
    text = path.read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.M)
    assert set(wanted.split(",")) <= set(extras)
    assert {"scikit-learn", "torch"} <= requirements_of(wanted.split(","), extras), "the example DAGs need them"
    ignored = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}\n" in ignored, "the image is built without it"
    assert re.findall(r"^USER (.*)$", text, re.M) == ["50000:0"]
    assert len(IMAGES) == 2


def test_the_image_for_nvidia_tells_the_container_toolkit_what_it_asks_for():
    text = (ROOT / "docker" / "Dockerfile.nvidia").read_text()
    assert re.search(r"^FROM nvidia/cuda:[\w.-]+$", text, re.M)
    assert "NVIDIA_VISIBLE_DEVICES=all" in text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text
