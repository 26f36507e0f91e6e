"""S3 that fails as S3 does: a real HTTP proxy before moto's server answers with errors, cuts off, or is slow."""

import contextlib
import gc
import http.client
import resource
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.loading import load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.errors import CheckpointStoreUnavailable
from tests.checkpoints.conftest import NOW
from tests.effort import effort, long

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BROKEN = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
NOT_IMPLEMENTED = b"<Error><Code>NotImplemented</Code><Message>No such feature.</Message></Error>"
UNKNOWN_HEADERS = {"no aws-chunked": ("Content-Encoding", "aws-chunked"), "no conditions": ("If-None-Match", "*")}
KINDS = ["500", "dropped", "answer lost", "cut off"]
YEAR = timedelta(days=365)
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}

Fault = Callable[[str, str, int], str | None]
"""Method, path and number of a request → what goes wrong with it."""


class Proxy(ThreadingHTTPServer):
    """Forwards requests to S3, except for the faults that `fault` selects."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(upstream).netloc
        self.fault: Fault = lambda method, path, number: None
        self.requests: list[tuple[str, str, int, int]] = []
        """Method, path, status, bytes of the answer."""
        self.lock = threading.Lock()
        self.number = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: the tests include connections that the client gave up."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def forward(self) -> None:
        content = self.content()
        with self.server.lock:
            self.server.number += 1
            fault = self.server.fault(self.command, self.path, self.server.number)
        if fault == "dropped":
            self.close_connection = True
            return
        header, text = UNKNOWN_HEADERS.get(fault or "", ("", ""))
        if header in self.headers and text in self.headers[header]:
            self.answer(501, {}, NOT_IMPLEMENTED)
            return
        if fault in ("500", "503"):
            self.answer(int(fault), {}, BROKEN if fault == "500" else SLOW_DOWN)
            return
        if fault == "slow":
            time.sleep(0.2)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        if fault == "ignored":
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("if-")}
        with contextlib.closing(http.client.HTTPConnection(self.server.upstream)) as upstream:
            upstream.request(self.command, self.path, content, headers)
            answer = upstream.getresponse()
            body = answer.read()
        kept_headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(body)
        if fault == "answer lost":
            self.close_connection = True
            return
        if fault == "flipped" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "cut off":
            self.close_connection = True
            body = body[: len(body) // 2]
        self.answer(answer.status, kept_headers, body, length)

    def answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        self.server.requests.append((self.command, self.path, status, len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(Handler, f"do_{method}", Handler.forward)


@pytest.fixture
def proxy(s3_server: str) -> Iterator[Proxy]:
    """A proxy in front of S3."""
    proxy = Proxy(s3_server)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once: the tests check their number, not botocore's waits."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)


@pytest.fixture
def place(proxy: Proxy, s3_place) -> CheckpointPlace:
    """In S3, through the proxy."""
    return s3_place(endpoint=proxy.url, endpoints=(proxy.url,), token=1)


@pytest.fixture
def store(place: CheckpointPlace) -> CheckpointStore:
    return open_store(place)


def save(store: CheckpointStore, holder: WriteClaim, tmp_path: Path, step: int, size: int = 1000) -> CheckpointEntry:
    folder = tmp_path / f"staged{step}"
    folder.mkdir(exist_ok=True)
    (folder / "tensors").write_bytes(bytes(size) + str(step).encode())
    (folder / "state.json").write_text(f'{{"step": {step}}}')
    return publish(store, holder, folder, step=step, metrics={}, now=NOW)


@long
@pytest.mark.parametrize("offset", range(effort(1, 3)))
@pytest.mark.parametrize("kind", [*KINDS, *effort([], ["503", "slow"])])
def test_saves_and_loads_go_through_if_every_third_request_fails(
    store, place, proxy: Proxy, tmp_path, kind: str, offset: int
) -> None:
    hit: list[int] = []

    def fault(method: str, path: str, number: int) -> str | None:
        if number % 3 != offset:
            return None
        hit.append(number)
        return kind

    proxy.fault = fault
    holder = claim_place(store, place)
    entries = [save(store, holder, tmp_path, step) for step in (1, 2)]
    assert load_latest(store, place, tmp_path / "loaded") == entries[1]
    assert (tmp_path / "loaded" / "tensors").read_bytes() == bytes(1000) + b"2"
    assert read_index(store, place.path).entries == tuple(entries)
    assert read_newest_checkpoint(store, "dag", "task").entry == entries[1]
    assert len(hit) > 5


@pytest.mark.system
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file_goes_through_in_parts(store, place, proxy: Proxy, tmp_path, kind: str) -> None:
    seen: set[str] = set()

    def fault(method: str, path: str, number: int) -> str | None:  # the first time of each request
        is_new = path not in seen
        seen.add(path)
        return kind if is_new and method in ("PUT", "POST") else None

    proxy.fault = fault
    entry = save(store, claim_place(store, place), tmp_path, 1, size=20 << 20)
    assert {path.partition("partNumber=")[2][:1] for path in seen if "partNumber=" in path} == {"1", "2", "3"}
    proxy.fault = lambda method, path, number: "cut off" if number % 4 == 0 else None
    assert load_latest(store, place, tmp_path / "loaded") == entry
    assert (tmp_path / "loaded" / "tensors").read_bytes() == bytes(20 << 20) + b"1"


@long
@pytest.mark.parametrize("kind", ["500", "cut off", *effort([], ["503", "dropped"])])
def test_an_unavailable_store_is_reported_and_nothing_is_lost(store, place, proxy: Proxy, tmp_path, kind: str) -> None:
    holder = claim_place(store, place)
    first = save(store, holder, tmp_path, 1)
    proxy.fault = lambda method, path, number: kind if method != "PUT" or kind != "cut off" else "dropped"
    for attempt in (
        lambda: save(store, holder, tmp_path, 2),
        lambda: read_index(store, place.path),
        lambda: load_latest(store, place, tmp_path / "loaded"),
        lambda: store.fetch(f"{place.path}/{first.key}/tensors", tmp_path / "target", at_most=10_000),
        lambda: list(store.sweep(place.path, lambda name, age_s: True)),
    ):
        with pytest.raises(CheckpointStoreUnavailable) as caught:
            attempt()
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    assert not (tmp_path / "loaded").exists()
    assert not (tmp_path / "target").exists()
    proxy.fault = lambda method, path, number: None
    assert load_latest(store, place, tmp_path / "loaded") == first
    assert save(store, holder, tmp_path, 3) == read_index(store, place.path).entries[-1]


@long
def test_a_store_that_fails_during_a_save_keeps_earlier_checkpoints(store, place, proxy: Proxy, tmp_path) -> None:
    holder = claim_place(store, place)
    first = save(store, holder, tmp_path, 1)
    before = proxy.number
    save(store, holder, tmp_path, 2)
    for last in range(0, proxy.number - before, effort(3, 1)):
        start = proxy.number
        proxy.fault = lambda method, path, number, limit=start + last: "503" if number > limit else None
        with contextlib.suppress(CheckpointStoreUnavailable):
            save(store, holder, tmp_path, 3 + last)
        proxy.fault = lambda method, path, number: None
        into = tmp_path / f"loaded{last}"
        loaded = load_latest(store, place, into)
        assert loaded == read_index(store, place.path).entries[-1]
        assert loaded.step >= first.step
        assert (into / "tensors").read_bytes() == bytes(1000) + str(loaded.step).encode()


def test_bytes_that_change_during_the_transfer_are_requested_again(store, place, proxy: Proxy, tmp_path) -> None:
    entry = save(store, claim_place(store, place), tmp_path, 1)
    seen: set[str] = set()

    def fault(method: str, path: str, number: int) -> str | None:
        is_new = path not in seen
        seen.add(path)
        return "flipped" if is_new and method == "GET" and "tensors" in path else None

    proxy.fault = fault
    assert load_latest(store, place, tmp_path / "loaded") == entry
    assert any("tensors" in path for path in seen)


@pytest.mark.parametrize("content", [b"{}", b'{"token": 9, "epoch": 0, "entries": []}'])
def test_a_store_that_ignores_conditions_is_refused_and_nothing_is_overwritten(
    place, proxy: Proxy, content: bytes
) -> None:
    honest = open_store(place)
    honest.replace(f"{place.path}/index.json", content, None)
    proxy.fault = lambda method, path, number: "ignored"
    store = open_store(place)
    with pytest.raises(CheckpointStoreUnavailable, match="does not honour If-None-Match"):
        store.replace(f"{place.path}/index.json", b"mine", None)
    assert honest.read(f"{place.path}/index.json", at_most=100).content == content


@pytest.fixture
def secure_store(proxy: Proxy, s3_place, tmp_path, monkeypatch) -> Callable[[], CheckpointStore]:
    """Opens the store over HTTPS, where botocore sends checksums as trailers."""
    key, certificate = a_certificate()
    (tmp_path / "server.pem").write_bytes(key + certificate)
    (tmp_path / "ca.pem").write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    url = proxy.url.replace("http:", "https:")
    return lambda: open_store(s3_place(endpoint=url, endpoints=(url,), token=1))


def a_certificate() -> tuple[bytes, bytes]:
    """A key and a certificate of its own for 127.0.0.1, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "proxy")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + YEAR)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)


def test_a_store_that_refuses_checksums_in_trailers_works_without_and_the_error_says_so(
    secure_store, proxy: Proxy, tmp_path, monkeypatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(1000))
    proxy.fault = lambda method, path, number: "no aws-chunked"
    for write in (
        lambda store: store.replace("dag/index.json", b"{}", None),
        lambda store: store.put("dag/part", source),
    ):
        monkeypatch.delenv("AWS_REQUEST_CHECKSUM_CALCULATION", raising=False)
        with pytest.raises(CheckpointStoreUnavailable, match=r"NotImplemented.*CALCULATION=when_required for") as error:
            write(secure_store())
        assert "Try again" not in str(error.value)
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        write(secure_store())


def test_a_store_that_knows_no_conditions_is_refused_for_that(store, proxy: Proxy) -> None:
    proxy.fault = lambda method, path, number: "no conditions"
    with pytest.raises(CheckpointStoreUnavailable, match="does not honour If-None-Match"):
        store.replace("dag/index.json", b"{}", None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # s3transfer forgets the socket
def test_a_full_disk_of_this_host_is_reported_and_leaves_no_file(store, place, tmp_path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    store.put("dag/whole", source)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        with pytest.raises(CheckpointStoreUnavailable, match="File too large on this host"):
            store.fetch("dag/whole", tmp_path / "target", at_most=3 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "target").exists()
    gc.collect()


def test_conditional_writes_are_checked_once(store, place, proxy: Proxy) -> None:
    for number in range(3):
        store.replace(f"dag/{number}/index.json", b"{}", None)
    assert [path.rpartition("/")[2] for method, path, *_ in proxy.requests] == ["probe~"] * 3 + ["index.json"] * 3


def test_reading_an_unchanged_index_takes_one_request_without_a_body(store, place, proxy: Proxy, tmp_path) -> None:
    holder = claim_place(open_store(place), place)
    entry = save(open_store(place), holder, tmp_path, 1)
    proxy.requests.clear()
    for _ in range(5):
        assert read_index(store, place.path).entries == (entry,)
    assert [(method, status) for method, _, status, _ in proxy.requests] == [("GET", 200)] + [("GET", 304)] * 4
    assert [size for *_, size in proxy.requests[1:]] == [0] * 4
    second = save(open_store(place), holder, tmp_path, 2)
    assert read_index(store, place.path).entries == (entry, second)


def test_nothing_above_the_place_is_listed(store, place, proxy: Proxy, tmp_path) -> None:
    holder = claim_place(store, place)
    save(store, holder, tmp_path, 1)
    listings = [path for method, path, *_ in proxy.requests if method == "GET" and "?" in path and "prefix=" in path]
    assert len(listings) == 2
    assert all("prefix=a%20prefix%2Fb%2Fdag%2Ftask%2Frun%2F-1%2F" in path for path in listings)


def test_an_unfinished_upload_is_swept(store, place, proxy: Proxy, s3_server: str, tmp_path) -> None:
    bucket = urlsplit(place.url).netloc
    client = boto3.client("s3", endpoint_url=s3_server)
    unfinished = client.create_multipart_upload(
        Bucket=bucket, Key=f"a prefix/b/{place.path}/000000000001-0-00000000/tensors"
    )
    elsewhere = client.create_multipart_upload(Bucket=bucket, Key="elsewhere/000000000001-0-00000000/tensors")
    save(store, claim_place(store, place), tmp_path, 1)
    remaining = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["UploadId"] for upload in remaining] == [elsewhere["UploadId"]]
    assert unfinished["UploadId"] != elsewhere["UploadId"]
