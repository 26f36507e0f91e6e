"""Every store there is, each empty: the file system, and S3 as moto's real HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace

NewPlace = Callable[..., CheckpointPlace]


@pytest.fixture(params=["file"])
def new_place(request: pytest.FixtureRequest) -> NewPlace:
    """Makes places in one store of each kind."""
    return request.getfixturevalue(f"{request.param}_place")  # type: ignore[no-any-return]


@pytest.fixture
def store(new_place: NewPlace) -> CheckpointStore:
    """An empty store."""
    return open_store(new_place())


@pytest.fixture
def file_place(tmp_path: Path) -> NewPlace:
    """Makes places in a folder."""

    def make(**fields: object) -> CheckpointPlace:
        return CheckpointPlace.model_validate(
            {"url": (tmp_path / "a store").as_uri(), "path": "dag/task/run/-1"} | fields
        )

    return make
