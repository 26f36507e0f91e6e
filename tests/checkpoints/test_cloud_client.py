"""The guards around obstore: where its requests go, who acts, and what an error shows."""

import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hetero_airflow.checkpoints import cloud_client
from hetero_airflow.checkpoints.azure_connection import KIND_VARIABLE
from hetero_airflow.checkpoints.cloud_store import open_azure, open_google
from hetero_airflow.checkpoints.google_connection import KEY_FILE_VARIABLE, KEY_VARIABLE
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError

AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "models", "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg=="}
SAS = {"AZURE_STORAGE_ACCOUNT_NAME": "models", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=hunter2"}


class Server(ThreadingHTTPServer):
    """Answers each request with one status and a `Location`, and records it."""

    def __init__(self, status: int = 200, location: str = "", body: bytes = b"") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.location, self.body = status, location, body
        self.requests: list[str] = []
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_port)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("ETag", '"1"')
        self.send_header("x-goog-generation", "1")
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_PUT(self) -> None:
        self.do_GET()


@pytest.fixture
def new_server() -> Iterator[Callable[..., Server]]:
    """Starts servers."""
    servers = []

    def start(*arguments: object, **fields: object) -> Server:
        servers.append(Server(*arguments, **fields))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def azure_place(endpoint: str) -> CheckpointPlace:
    return CheckpointPlace(url="az://models/a", path="d/t/r/-1", endpoint=endpoint, endpoints=(endpoint,))


@pytest.mark.usefixtures("cloud_credentials")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_is_not_followed(new_server, status, monkeypatch) -> None:
    monkeypatch.setattr(cloud_client, "FIRST_WAIT", cloud_client.FIRST_WAIT / 100)
    other = new_server()
    first = new_server(status, f"http://localhost:{other.port}/models/b/key")
    store = open_azure(azure_place(f"http://127.0.0.1:{first.port}/models"), SAS)
    for attempt in (lambda: store.read("key", at_most=9), lambda: store.replace("key", b"1", None)):
        with pytest.raises(CheckpointStoreUnavailable) as caught:
            attempt()
        assert "hunter2" not in str(caught.value)
    assert first.requests
    assert not other.requests


@pytest.mark.usefixtures("cloud_credentials")
def test_the_error_says_that_a_redirect_was_not_followed(new_server) -> None:
    first = new_server(302, "http://localhost:1/models/b/key")
    store = open_azure(azure_place(f"http://127.0.0.1:{first.port}/models"), SAS, attempts=1)
    with pytest.raises(CheckpointStoreUnavailable, match="a redirect to another host, which is not followed"):
        store.read("key", at_most=9)


@pytest.mark.usefixtures("cloud_credentials")
def test_no_variable_leads_elsewhere(new_server, google_key, monkeypatch) -> None:
    other, own = new_server(), new_server(body=b"own")
    url = f"http://127.0.0.1:{other.port}"
    for name in ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_PROXY_URL", "GOOGLE_PROXY_URL"):
        monkeypatch.setenv(name, url)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url)
    for name in (
        "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_SKIP_SIGNATURE",
        "GOOGLE_SKIP_SIGNATURE",
        "AZURE_USE_FABRIC_ENDPOINT",
    ):
        monkeypatch.setenv(name, "true")
    address = f"http://127.0.0.1:{own.port}"
    google = CheckpointPlace(url="gs://models/a", path="d/t/r/-1", endpoint=address, endpoints=(address,))
    for store in (
        open_azure(azure_place(f"{address}/models"), AZURE),
        open_google(google, {KEY_VARIABLE: google_key}),
    ):
        assert store.read("key", at_most=9).content == b"own"
    assert not other.requests


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("az://models/a", "https://models.blob.core.windows.net.evil.example"),
        ("az://models/a", "http://models.blob.core.windows.net"),
        ("az://models/a", "https://storage.googleapis.com"),
        ("gs://models/a", "https://models.blob.core.windows.net"),
        ("gs://models/a", "http://storage.googleapis.com"),
        ("gs://models/a", "https://evilgoogleapis.com"),
    ],
)
def test_an_endpoint_outside_the_allow_list_is_refused(url, endpoint, monkeypatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "models")
    with pytest.raises(SettingsError, match="neither the provider's own nor an allowed one"):
        open_store(CheckpointPlace(url=url, path="d/t/r/-1", endpoint=endpoint))


def test_a_host_that_gives_out_tokens_is_checked_too(monkeypatch) -> None:
    place = CheckpointPlace(url="az://models/a", path="d/t/r/-1")
    with pytest.raises(SettingsError, match="evil"):
        open_azure(place, AZURE | {"AZURE_AUTHORITY_HOST": "https://evil.example"})


@pytest.mark.usefixtures("cloud_credentials")
def test_azure_without_an_account_is_refused() -> None:
    with pytest.raises(SettingsError, match="no storage account"):
        open_azure(CheckpointPlace(url="az://models/a", path="d/t/r/-1"), {})


@pytest.mark.parametrize("url", ["gs:///prefix", "az://Container", "gs://b", "az://container:80/prefix"])
def test_a_url_without_a_bucket_is_refused(url) -> None:
    with pytest.raises(SettingsError, match="no name of a bucket"):
        open_store(CheckpointPlace(url=url, path="d/t/r/-1"))


@pytest.mark.usefixtures("cloud_credentials")
@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (403, b"<Error><Code>AuthenticationFailed</Code><Message>sig=hunter2</Message></Error>", "rights"),
        (403, b"hunter2", "rights"),
        (400, b"<Error><Code>InvalidInput</Code>hunter2</Error>", "InvalidInput, HTTP 400"),
        (404, b"<Error><Code>ContainerNotFound</Code>hunter2</Error>", "Make the bucket"),
        (404, b"<html>hunter2", "HTTP 404"),
        (409, b"<Error><Code>LeaseIdMissing</Code></Error>", "LeaseIdMissing"),
    ],
)
def test_an_error_shows_the_code_and_not_the_answer(new_server, status, body, found) -> None:
    server = new_server(status, body=body)
    store = open_azure(azure_place(f"http://127.0.0.1:{server.port}/models"), SAS, attempts=1)
    for attempt in (lambda: store.read("key", at_most=9), lambda: store.replace("key", b"1", None)):
        with pytest.raises(CheckpointStoreUnavailable, match=found) as caught:
            attempt()
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__} {caught.value.__suppress_context__}"
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("key", ["hunter2", json.dumps({"private_key": "hunter2", "client_email": "a@b"})])
@pytest.mark.usefixtures("cloud_credentials")
def test_a_key_that_cant_be_used_is_not_shown(google_server, key) -> None:
    place = CheckpointPlace(
        url="gs://b00/a", path="d/t/r/-1", endpoint=google_server.url, endpoints=(google_server.url,)
    )
    with pytest.raises(CheckpointStoreUnavailable) as caught:
        open_google(place, {KEY_VARIABLE: key}, attempts=1).read("key", at_most=9)
    assert "hunter2" not in str(caught.value)


def test_a_forked_process_gets_an_error_and_does_not_wait(gs_place, tmp_path: Path) -> None:
    store = open_store(gs_place())
    assert store.read("key", at_most=9) is None
    child = os.fork()
    if child == 0:
        try:
            store.read("key", at_most=9)
        except CheckpointStoreUnavailable as error:
            (tmp_path / "error").write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert 'get_context("spawn")' in (tmp_path / "error").read_text()


def test_a_missing_bucket_is_reported(gs_place) -> None:
    store = open_store(gs_place(url="gs://no-such-bucket/x"))
    for attempt in (
        lambda: store.read("a", at_most=1),
        lambda: store.replace("a", b"", None),
        lambda: list(store.sweep("a", lambda name, age_s: True)),
    ):
        with pytest.raises(CheckpointStoreUnavailable, match="Make the bucket"):
            attempt()


@pytest.mark.usefixtures("cloud_credentials")
@pytest.mark.parametrize(
    ("credentials", "kind"),
    [
        ({}, "sas_token"),
        ({KIND_VARIABLE: "access_key", "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg=="}, "access_key"),
        ({KIND_VARIABLE: "managed_identity", "AZURE_CLIENT_ID": "c"}, "managed_identity"),
        ({KIND_VARIABLE: "identity"}, "workload_identity"),
    ],
)
def test_the_connections_credential_comes_before_those_of_the_host(monkeypatch, credentials, kind) -> None:
    host = {
        **SAS,
        "AZURE_CLIENT_ID": "host",
        "AZURE_TENANT_ID": "host",
        "AZURE_FEDERATED_TOKEN_FILE": "/run/token",
    }
    for name, value in host.items():
        monkeypatch.setenv(name, value)
    place = CheckpointPlace(url="az://models/a", path="d/t/r/-1")
    of_trigger = cloud_client.azure_client(place, "models", credentials).config
    for name, value in credentials.items():  # a task has them in its environment
        monkeypatch.setenv(name, value)
    assert cloud_client.azure_client(place, "models", None).config == of_trigger
    assert of_trigger["credential_type"] == kind
    assert of_trigger.get("client_id") == {"managed_identity": "c", "workload_identity": "host"}.get(kind)


@pytest.mark.usefixtures("cloud_credentials")
@pytest.mark.parametrize("name", ["GOOGLE_BEARER_TOKEN", "SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT"])
def test_a_variable_that_would_beat_googles_key_is_refused_by_name(monkeypatch, google_key, name) -> None:
    monkeypatch.setenv(name, "/run/hunter2.json")
    with pytest.raises(SettingsError, match=f"the variable {name} on this host") as caught:
        open_google(CheckpointPlace(url="gs://models/a", path="d/t/r/-1"), {KEY_VARIABLE: google_key})
    assert "hunter2" not in str(caught.value)


def test_a_key_of_google_may_be_a_file(gs_place, google_key, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    (tmp_path / "key.json").write_text(google_key)
    store = open_google(gs_place(), {KEY_FILE_VARIABLE: str(tmp_path / "key.json")})
    assert store.read("key", at_most=9) is None
    with pytest.raises(SettingsError, match="a key_path that can't be read on this host"):
        open_google(gs_place(), {KEY_FILE_VARIABLE: str(tmp_path / "none")})


def test_an_object_that_another_sweeper_removed_ends_no_sweep(gs_place, google_server, tmp_path) -> None:
    store = open_store(gs_place())
    source = tmp_path / "source"
    source.write_bytes(b"1")
    for name in "abc":
        store.put(f"place/old/{name}", source)
    gone = next(at for at in google_server.objects if at[1].endswith("place/old/b"))

    def is_garbage(name: str, age_s: float) -> bool:
        del google_server.objects[gone]
        return True

    assert list(store.sweep("place", is_garbage)) == ["old"]
    assert not [at for at in google_server.objects if "place/old" in at[1] and at[0] == gone[0]]


def test_a_name_that_cant_be_read_is_named_by_the_sweep(gs_place, google_server) -> None:
    place = gs_place()
    google_server.store((place.url.split("/")[2], "a prefix/b/place/old//x"), b"")
    with pytest.raises(CheckpointStoreUnavailable, match="a name that can't be read"):
        list(open_store(place).sweep("place", lambda name, age_s: True))
