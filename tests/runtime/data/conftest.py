"""A bucket in a real server of S3, and a cache folder."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from hetero_airflow.runtime import data
from hetero_airflow.settings import DATA_VARIABLE
from tests.checkpoints.conftest import clients_are_closed, new_bucket, s3_credentials, s3_server

__all__ = ["clients_are_closed", "new_bucket", "s3_credentials", "s3_server"]


class Bucket:
    """A bucket that tests fill."""

    def __init__(self, server: str, name: str) -> None:
        session = boto3.session.Session("testing", "hunter2", region_name="us-east-1")
        self.client = session.client("s3", endpoint_url=server)
        self.name = name
        self.url = f"s3://{name}"

    def put(self, key: str, content: bytes) -> str:
        """Write an object; its URL."""
        self.client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"{self.url}/{key}"


@pytest.fixture
def bucket(s3_server, new_bucket, s3_credentials) -> Iterator[Bucket]:
    """An empty bucket."""
    bucket = Bucket(s3_server, new_bucket())
    with contextlib.closing(bucket.client):
        yield bucket


@pytest.fixture
def settings(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The settings of a task's data; `use` takes them over."""
    return {"folder": str(tmp_path / "cache"), "own_endpoints": {"s3": s3_server}, "endpoints": [s3_server]}


@pytest.fixture
def use(settings: dict, monkeypatch: pytest.MonkeyPatch):
    """Begins as a new process does, with these settings."""

    def use(**changed: object) -> None:
        monkeypatch.setenv(DATA_VARIABLE, json.dumps(settings | changed))
        data._caches.clear()

    use()
    yield use
    data._caches.clear()
