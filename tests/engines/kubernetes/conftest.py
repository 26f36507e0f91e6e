"""The checks of bodies and an API server, for every test of this folder."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import kubernetes_bodies
from tests.engines.kubernetes.fake_api import FakeApi, running_api


@pytest.fixture(scope="session")
def check_body() -> Callable[[dict[str, Any], str], None]:
    """Fails for a body that is not of the model."""
    return kubernetes_bodies.check_body


@pytest.fixture(scope="session")
def check_pod() -> Callable[[dict[str, Any]], None]:
    """Fails for a pod that an API server would refuse."""
    return kubernetes_bodies.check_pod


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """An API server of its own for each test; `host` is its address."""
    with running_api() as (api, host):
        api.host = host
        yield api
