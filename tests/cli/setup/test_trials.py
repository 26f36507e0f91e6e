"""The trial of the checkpoint store, on a real folder."""

import pytest

from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.cli.setup import trials
from hetero_airflow.errors import CheckpointStoreUnavailable


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", tmp_path.as_uri())
    return tmp_path


def test_nothing_is_left_of_a_trial(folder):
    trials._save_and_read()
    assert list(folder.rglob("*")) == []


def test_nothing_is_left_of_a_trial_that_failed(folder, monkeypatch):
    monkeypatch.setattr(FilesystemStore, "read", lambda self, key, **limits: None)
    with pytest.raises(CheckpointStoreUnavailable, match="another content"):
        trials._save_and_read()
    assert list(folder.rglob("*")) == []


def test_the_folder_of_another_trial_stays(folder):
    (folder / "hetero_check" / "trial-1").mkdir(parents=True)
    trials._save_and_read()
    assert [path.name for path in folder.rglob("*")] == ["hetero_check", "trial-1"]
