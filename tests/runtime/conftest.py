"""A task's place and its supervisor's folder, both empty, and runs of a task that begin one after the other."""

import multiprocessing.util
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from hetero_airflow.contract.notice import Notice, give_notice
from hetero_airflow.runtime.checkpoint_session import CheckpointSession

Begin = Callable[..., CheckpointSession]
"""What begins a new run of the task."""

GIVEN = Notice(cause="preempted by train/fit", by=datetime(2026, 11, 20, 12, tzinfo=UTC))


@pytest.fixture(scope="session", autouse=True)
def folder_for_sockets() -> None:
    """Loader workers share the folder of this process: one that a worker makes while it ends would stay behind."""
    multiprocessing.util.get_temp_dir()


@pytest.fixture
def control(tmp_path: Path) -> Path:
    folder = tmp_path / "control"
    folder.mkdir()
    return folder


@pytest.fixture
def notice(control: Path) -> Callable[[], None]:
    """Tells the task to save and stop."""
    return lambda: give_notice(control, GIVEN)


@pytest.fixture
def place(tmp_path: Path) -> CheckpointPlace:
    return CheckpointPlace(url=(tmp_path / "store").as_uri(), path=checkpoint_path("train", "fit", "manual", -1))


@pytest.fixture
def folder_of_place(tmp_path: Path, place: CheckpointPlace) -> Path:
    """Where the files of the place's checkpoints lie."""
    return tmp_path / "store" / place.path


@pytest.fixture
def begin(tmp_path: Path, place: CheckpointPlace, control: Path) -> Begin:
    """A new run of the task, as if in a process of its own; with another token, if one is given."""

    def begun(token: int | None = None, store: CheckpointStore | None = None) -> CheckpointSession:
        store = store or FilesystemStore(tmp_path / "store")
        return CheckpointSession(place.model_copy(update={"token": token}), store, control)

    return begun
