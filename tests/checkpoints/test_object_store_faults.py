"""What only S3's client does: checksums, certificates, cached answers, unfinished uploads."""

import gc
import resource
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.loading import load_latest, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import claim_place
from hetero_airflow.errors import CheckpointStoreUnavailable
from tests.checkpoints.fault_proxy import FaultProxy, fault_proxy
from tests.checkpoints.test_faulty_stores import save

YEAR = timedelta(days=365)


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    """A proxy before S3."""
    with fault_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def place(proxy: FaultProxy, s3_place) -> CheckpointPlace:
    """In S3, through the proxy."""
    return s3_place(endpoint=proxy.url, endpoints=(proxy.url,), token=1)


@pytest.fixture
def store(place: CheckpointPlace) -> CheckpointStore:
    return open_store(place)


def test_bytes_that_change_during_the_transfer_are_requested_again(store, place, proxy: FaultProxy, tmp_path) -> None:
    entry = save(store, claim_place(store, place), tmp_path, 1)
    seen: set[str] = set()

    def fault(method: str, path: str, number: int) -> str | None:
        is_new = path not in seen
        seen.add(path)
        return "flipped" if is_new and method == "GET" and "tensors" in path else None

    proxy.fault = fault
    assert load_latest(store, place, tmp_path / "loaded") == entry
    assert any("tensors" in path for path in seen)


@pytest.fixture
def secure_store(proxy: FaultProxy, s3_place, tmp_path, monkeypatch) -> Callable[[], CheckpointStore]:
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
    secure_store, proxy: FaultProxy, tmp_path, monkeypatch
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


def test_a_store_that_knows_no_conditions_is_refused_for_that(store, proxy: FaultProxy) -> None:
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


def test_conditional_writes_are_checked_once(store, place, proxy: FaultProxy) -> None:
    for number in range(3):
        store.replace(f"dag/{number}/index.json", b"{}", None)
    assert [path.rpartition("/")[2] for method, path, *_ in proxy.requests] == ["probe~"] * 3 + ["index.json"] * 3


def test_reading_an_unchanged_index_takes_one_request_without_a_body(store, place, proxy: FaultProxy, tmp_path) -> None:
    holder = claim_place(open_store(place), place)
    entry = save(open_store(place), holder, tmp_path, 1)
    proxy.requests.clear()
    for _ in range(5):
        assert read_index(store, place.path).entries == (entry,)
    assert [(method, status) for method, _, status, _ in proxy.requests] == [("GET", 200)] + [("GET", 304)] * 4
    assert [size for *_, size in proxy.requests[1:]] == [0] * 4
    second = save(open_store(place), holder, tmp_path, 2)
    assert read_index(store, place.path).entries == (entry, second)


def test_nothing_above_the_place_is_listed(store, place, proxy: FaultProxy, tmp_path) -> None:
    holder = claim_place(store, place)
    save(store, holder, tmp_path, 1)
    listings = [path for method, path, *_ in proxy.requests if method == "GET" and "?" in path and "prefix=" in path]
    assert len(listings) == 2
    assert all("prefix=a%20prefix%2Fb%2Fdag%2Ftask%2Frun%2F-1%2F" in path for path in listings)


def test_an_unfinished_upload_is_swept(store, place, proxy: FaultProxy, s3_server: str, tmp_path) -> None:
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
