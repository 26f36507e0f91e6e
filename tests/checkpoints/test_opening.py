from __future__ import annotations

import pytest

from hetero_airflow import registry
from hetero_airflow.checkpoints import CHECKPOINT_STORES
from hetero_airflow.checkpoints.opening import open_store, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("", "no scheme"),
        ("/shared/folder", "no scheme"),
        ("ftp://host/folder", "no store for the scheme 'ftp'"),
        ("s3://[bucket", "no URL"),
        ("s3://bucket/a?versionId=1", "a query or a fragment"),
        ("s3://bucket/a#b", "a query or a fragment"),
        ("s3://bucket/a/%2E%2E/b", "a part '..'"),
        ("file:///a/%00b", "a character that can't be printed"),
    ],
)
def test_an_unusable_url_is_refused_with_the_reason(url: str, found: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(CheckpointPlace(url=url, path="d/t/r/-1"))
    assert caught.value.found == found


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/prefix", "s3://key@bucket", "s3://:hunter2@bucket"])
def test_a_password_in_a_url_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(CheckpointPlace(url=url, path="d/t/r/-1"))
    assert "hunter2" not in str(caught.value)
    assert "bucket" not in str(caught.value)


def test_a_path_is_unquoted() -> None:
    assert split_url("file:///a%20b/c").path == "/a b/c"


def test_a_store_of_another_package_is_opened_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "gs", "builtins:repr"

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point])
    place = CheckpointPlace(url="gs://bucket", path="d/t/r/-1")
    assert open_store(place) == repr(place)


@pytest.mark.parametrize("scheme", CHECKPOINT_STORES)
def test_every_row_can_be_imported(scheme: str) -> None:
    assert callable(registry.load("hetero_airflow.checkpoint_stores", CHECKPOINT_STORES, scheme))
