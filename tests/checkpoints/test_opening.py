"""Which stores are opened, and with which client."""

from pathlib import Path

import pytest

from hetero_airflow import registry
from hetero_airflow.checkpoints import CHECKPOINT_STORES
from hetero_airflow.checkpoints.endpoints import check_endpoint
from hetero_airflow.checkpoints.object_client import AWS, make_client
from hetero_airflow.checkpoints.opening import open_store, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError


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
        name, value = "memory", "builtins:repr"

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point])
    place = CheckpointPlace(url="memory://bucket", path="d/t/r/-1")
    assert open_store(place) == repr(place)


@pytest.mark.parametrize("scheme", CHECKPOINT_STORES)
def test_every_row_can_be_imported(scheme: str) -> None:
    assert callable(registry.load("hetero_airflow.checkpoint_stores", CHECKPOINT_STORES, scheme))


PLACE = CheckpointPlace(url="s3://bucket/prefix", path="d/t/r/-1")


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        ("https://s3.eu-central-1.amazonaws.com", []),
        ("https://bucket.s3.cn-north-1.amazonaws.com.cn", []),
        ("https://minio.example:9000", ["https://minio.example:9000"]),
        ("HTTPS://MINIO.example/", ["https://minio.example:443"]),
        ("http://[::1]:9000", ["http://[::1]:9000"]),
    ],
)
def test_an_endpoint_of_aws_or_an_allowed_one_is_taken(endpoint: str, allowed: list[str]) -> None:
    check_endpoint(endpoint, allowed, AWS)


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://evil.example",
        "https://minio.example:9001",
        "http://minio.example:9000",
        "https://minio.example:9000.evil.example",
        "https://minio.example:9000@evil.example",
        "https://user:hunter2@minio.example:9000",
        "https://amazonaws.com.evil.example",
        "http://s3.amazonaws.com",
        "https://evilamazonaws.com",
        "http://169.254.169.254",
        "file:///etc/passwd",
        "minio.example:9000",
        "https://",
        "https://minio.example:port",
        "https://[minio",
        "",
    ],
)
def test_an_endpoint_outside_the_allow_list_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(PLACE.model_copy(update={"endpoint": endpoint, "endpoints": ("https://minio.example:9000",)}))
    assert "hunter2" not in str(caught.value)


def test_boto3_can_not_be_configured_to_go_elsewhere(
    s3_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert make_client(None, []).meta.endpoint_url.endswith(".amazonaws.com")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://evil.example")
    with pytest.raises(SettingsError, match=r"Endpoint https://evil\.example"):
        make_client(None, [])
    assert make_client(None, ["https://evil.example"]).meta.endpoint_url == "https://evil.example"


@pytest.mark.parametrize("url", ["s3:///prefix", "s3://Bucket", "s3://b", "s3://bucket:80/prefix", "s3://a_b/c"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="no name of a bucket"):
        open_store(CheckpointPlace(url=url, path="d/t/r/-1"))


def test_a_missing_bucket_is_reported(s3_place) -> None:
    store = open_store(s3_place(url="s3://no-such-bucket/x"))
    for attempt in (lambda: store.read("a", at_most=1), lambda: store.replace("a", b"", None)):
        with pytest.raises(CheckpointStoreUnavailable, match="Make the bucket") as caught:
            attempt()
        assert caught.value.found == "NoSuchBucket (HTTP 404)"


def test_missing_credentials_are_reported(s3_place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CheckpointStoreUnavailable, match="Set checkpoint_conn_id"):
        open_store(s3_place()).read("a", at_most=1)


def test_a_missing_profile_is_reported(s3_place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CheckpointStoreUnavailable, match="no usable credentials"):
        open_store(s3_place())
