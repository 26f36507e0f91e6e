"""A real control plane of Kubernetes for these tests, with the rights for Airflow from docs/kubernetes/."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client
from kubernetes.utils import create_from_dict

from tests.control_plane import ControlPlane, running_control_plane
from tests.engines.kubernetes.fake_api import a_pod
from tests.played_nodes import PlayedNodes, played_nodes
from tests.waiting import eventually

DOCUMENTS = Path(__file__).parents[3] / "docs" / "kubernetes"
CLASSES = {"gpu-high": 1000, "gpu-low": 10}


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with docs/kubernetes/rbac.yaml applied, and two priority classes."""
    with running_control_plane(tmp_path_factory.mktemp("plane")) as plane:
        prepare(plane)
        yield plane


def prepare(plane: ControlPlane) -> None:
    """Give a control plane what the fixture `plane` has."""
    api_client = plane.connect()
    for manifest in yaml.safe_load_all((DOCUMENTS / "rbac.yaml").read_text()):
        create_from_dict(api_client, manifest)
    for name, value in CLASSES.items():
        made = client.V1PriorityClass(metadata=client.V1ObjectMeta(name=name), value=value)
        client.SchedulingV1Api(api_client).create_priority_class(made)
    eventually(lambda: _takes_pods(client.CoreV1Api(api_client)))


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[PlayedNodes]:
    """The control plane without nodes and pods."""
    with played_nodes(plane.connect()) as nodes:
        yield nodes


def _takes_pods(api: client.CoreV1Api) -> bool:
    """Whether the controllers have given the namespace's service accounts what they need."""
    try:
        api.create_namespaced_pod("airflow", a_pod("t", namespace="airflow"), dry_run="All")
    except client.ApiException:
        return False
    return True
