"""Every store, empty: the file system, S3 as moto's HTTP server, Azure as Azurite, Google as a stub of our own."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hetero_airflow.checkpoints import CHECKPOINT_STORES, object_store
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.object_client import make_client
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from tests.checkpoints.azurite_server import ACCOUNT, KEY, azurite, make_container
from tests.checkpoints.google_stub import GoogleStub
from tests.s3_server import running_s3

NewPlace = Callable[..., CheckpointPlace]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


STORES = [pytest.param("az", marks=pytest.mark.system) if name == "az" else name for name in CHECKPOINT_STORES]
"""Azurite takes half a minute to install."""


@pytest.fixture(params=STORES)
def new_place(request: pytest.FixtureRequest) -> NewPlace:
    """Makes places in one store of each kind."""
    return request.getfixturevalue(f"{request.param}_place")  # type: ignore[no-any-return]


one_client = functools.cache(make_client)
"""A client takes longer to make than a test to run."""


@pytest.fixture
def store(new_place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """An empty store."""
    monkeypatch.setattr(object_store, "make_client", one_client)
    return open_store(new_place())


@pytest.fixture(autouse=True)
def clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process opens one client and keeps it; here a later test would report the sockets of hundreds."""
    made: list[Any] = []
    create = botocore.session.Session.create_client

    def create_client(*args: Any, **kwargs: Any) -> Any:
        made.append(create(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(botocore.session.Session, "create_client", create_client)
    yield
    for client in made:
        client.close()


@pytest.fixture
def file_place(tmp_path: Path) -> NewPlace:
    """Makes places in a folder."""

    def make(**fields: object) -> CheckpointPlace:
        return CheckpointPlace.model_validate(
            {"url": (tmp_path / "a store").as_uri(), "path": "dag/task/run/-1"} | fields
        )

    return make


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of moto's HTTP server."""
    with running_s3() as url:
        yield url


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials for boto3; it reads no file of the user and asks no service of a cloud host."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


BUCKETS = count()


@pytest.fixture(scope="session")
def new_bucket(s3_server: str) -> Iterator[Callable[[], str]]:
    """Makes an empty bucket; its name."""
    session = boto3.session.Session("testing", "hunter2", region_name="us-east-1")
    client = session.client("s3", endpoint_url=s3_server)

    def make() -> str:
        name = f"bucket-{next(BUCKETS)}"
        client.create_bucket(Bucket=name)
        return name

    yield make
    client.close()


@pytest.fixture
def s3_place(s3_server: str, new_bucket: Callable[[], str], s3_credentials: None) -> NewPlace:
    """Makes places in a bucket of their own."""
    return _places("s3", new_bucket(), s3_server)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the account in Azurite."""
    with azurite(tmp_path_factory.mktemp("azurite") / "server") as address:
        yield address


@pytest.fixture
def az_place(azure_server: str, cloud_credentials: None, monkeypatch: pytest.MonkeyPatch) -> NewPlace:
    """Makes places in a container of their own."""
    container = f"container-{next(BUCKETS)}"
    make_container(azure_server, container)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    return _places("az", container, azure_server)


@pytest.fixture(scope="session")
def google_server() -> Iterator[GoogleStub]:
    """A stub of Google Cloud Storage."""
    with GoogleStub() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="session")
def google_key(google_server: GoogleStub) -> str:
    """The JSON text of a service account's key."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {"type": "service_account", "client_email": "a@b", "private_key": key.decode(), "private_key_id": "k"}
    )


@pytest.fixture
def gs_place(
    google_server: GoogleStub, google_key: str, cloud_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> NewPlace:
    """Makes places in a bucket of their own."""
    bucket = f"bucket-{next(BUCKETS)}"
    google_server.buckets.add(bucket)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", google_key)
    return _places("gs", bucket, google_server.url)


@pytest.fixture
def cloud_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the user's."""
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def _places(scheme: str, bucket: str, server: str) -> NewPlace:
    def make(**fields: object) -> CheckpointPlace:
        given = {"url": f"{scheme}://{bucket}/a%20prefix/b", "path": "dag/task/run/-1"}
        return CheckpointPlace.model_validate(given | {"endpoint": server, "endpoints": (server,)} | fields)

    return make
