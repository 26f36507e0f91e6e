"""Objects in the cache folder, from a real server of S3."""

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest
from botocore.httpsession import URLLib3Session

from hetero_airflow.errors import DataError, SettingsError
from hetero_airflow.model.data_url import DataUrl
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data.bucket import PART_BYTES
from tests.checkpoints.fault_proxy import fault_proxy


@pytest.fixture
def requests(monkeypatch):
    """What boto3 sends."""
    sent: list[str] = []
    send = URLLib3Session.send

    def counted(self, request):
        sent.append(request.method + (" list" if "list-type" in request.url else ""))
        return send(self, request)

    monkeypatch.setattr(URLLib3Session, "send", counted)
    return sent


def test_an_object_is_read_once_and_stays(bucket, use, requests):
    url = bucket.put("a/b/letters.txt", b"abc")
    requests.clear()
    path = data.cached(url)
    assert path.read_bytes() == b"abc"
    assert path.name == "letters.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert data.cached(url) == path
    assert requests == ["GET list", "GET"]
    with data.open_cached(url) as file:
        assert file.read() == b"abc"
    use()
    assert data.cached(url) == path
    assert requests == ["GET list", "GET", "GET list"]


def test_a_large_object_is_read_in_parts(bucket, use, requests):
    content = os.urandom(2 * PART_BYTES + 1)
    url = bucket.put("large", content)
    requests.clear()
    assert data.cached(url).read_bytes() == content
    assert requests == ["GET list", *["GET"] * 3]


@pytest.mark.parametrize(
    ("rule", "is_new"), [("run", [False, True]), ("always", [True, True]), ("never", [False, False])]
)
def test_another_content_is_seen_when_the_rule_says_so(bucket, use, rule, is_new):
    url = bucket.put("a", b"old")
    data.cached(url)
    bucket.put("a", b"new")
    seen = [data.cached(url, rule).read_bytes() == b"new"]
    use()
    seen.append(data.cached(url, rule).read_bytes() == b"new")
    assert seen == is_new


def test_the_content_that_came_last_is_taken_without_asking(bucket, use):
    for content in (b"1", b"22", b"333"):
        url = bucket.put("a", content)
        data.cached(url, "always")
    assert data.cached(url, "never").read_bytes() == b"333"


def test_a_tree_has_all_objects_of_a_folder(bucket, use, requests):
    for name in ("a", "b/c", "b/d/e"):
        bucket.put(f"data/{name}", name.encode())
    bucket.put("data2/a", b"not in it")
    bucket.put("data/b/", b"")
    requests.clear()
    for url in (f"{bucket.url}/data", f"{bucket.url}/data/"):
        root = data.cached_tree(url)
        found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert found == {name: name.encode() for name in ("a", "b/c", "b/d/e")}
    assert sorted(requests) == [*["GET"] * 3, *["GET list"] * 2]
    assert data.cached_tree(bucket.url).is_dir()


def test_many_objects_are_read_in_their_order(bucket, use):
    urls = [bucket.put(f"data/{number}", str(number).encode()) for number in range(40)]
    assert [path.read_text() for path in data.cached_all(reversed(urls))] == [str(n) for n in reversed(range(40))]
    with pytest.raises(DataError, match="nothing there"):
        data.cached_all([urls[0], f"{bucket.url}/nothing", urls[1]])


@pytest.mark.parametrize("key", ["data/a//b", "data/../a", "data/a\x7fb", "data/./a"])
def test_a_key_that_is_no_path_is_named_and_nothing_is_written(bucket, use, settings, key):
    bucket.put("data/0", b"0")
    bucket.put(key, b"1")
    with pytest.raises(DataError, match=r"The key .* can't be used; found no name of a file. Name the objects"):
        data.cached_tree(f"{bucket.url}/data")
    assert not list(Path(settings["folder"]).glob("objects/*"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("a/b", "no scheme"),
        ("file:///etc/passwd", "a file, which needs no cache"),
        ("http://host/a", "the scheme 'http'"),
        ("s4://bucket/a", "the scheme 's4'. Write s3://bucket/key"),
        ("s3:///a", "no name of a bucket"),
        ("s3://b/a", "no name of a bucket"),
        ("s3://user:hunter2@bucket/a", "a user or password in it"),
        ("s3://bucket/a\nb", "a character that can't be printed"),
        ("s3://bucket/folder/", "a folder. Use cached_tree"),
        ("s3://bucket", "a folder. Use cached_tree"),
    ],
)
def test_a_url_that_can_not_be_read_is_refused(use, url, text):
    with pytest.raises(DataError, match=re.escape(text)) as caught:
        data.cached(url)
    assert "hunter2" not in str(caught.value)


def test_a_rule_that_does_not_exist_is_refused(use):
    with pytest.raises(DataError, match=r"revalidate='daily'.*Use one of run, always, never"):
        data.cached("s3://bucket/a", "daily")  # type: ignore[arg-type]


def test_what_is_missing_is_said(bucket, use):
    for read in (data.cached, data.cached_tree):
        with pytest.raises(DataError, match=r"can't read '.*/nothing'; found nothing there"):
            read(f"{bucket.url}/nothing")


def test_an_endpoint_that_is_not_allowed_is_refused(bucket, use):
    use(endpoints=[])
    with pytest.raises(SettingsError, match="neither the provider's own nor an allowed one"):
        data.cached(f"{bucket.url}/a")


def test_a_bucket_that_can_not_be_listed_is_read(bucket, use, s3_server):
    url = bucket.put("folder/a", b"1")
    with fault_proxy(s3_server) as proxy:
        proxy.fault = lambda method, path, number: "403" if "list-type" in path else None
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])
        assert data.cached(url).read_bytes() == b"1"
        assert [method for method, *_ in proxy.requests] == ["GET", "HEAD", "GET"]
        with pytest.raises(DataError, match=r"can't list 's3://.*/folder'; found AccessDenied \(HTTP 403\)"):
            data.cached_tree(f"{bucket.url}/folder")


@pytest.mark.parametrize("fault", ["500", "cut off", "dropped"])
def test_a_store_that_does_not_answer_is_an_error_and_nothing_is_cached(bucket, use, settings, s3_server, fault):
    url = bucket.put("a", b"12345")
    with fault_proxy(s3_server) as proxy:
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])
        proxy.fault = lambda method, path, number: fault if path.endswith("/a") and method == "GET" else None
        with pytest.raises(DataError, match=r"can't read 's3://.*/a'"):
            data.cached(url)
        files = [path for path in Path(settings["folder"]).rglob("*") if path.is_file()]
        assert {path.name for path in files} <= {
            "evicting",
            "lock~",
            "used",
            hashlib.sha256(url.encode()).hexdigest()[:3],
        }
        proxy.fault = lambda method, path, number: None
        assert data.cached(url).read_bytes() == b"12345"


def test_an_object_that_changes_at_each_attempt_is_never_mixed(bucket, use, s3_server):
    url = bucket.put("a", b"0" * 2 * PART_BYTES)
    with fault_proxy(s3_server) as proxy:
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])

        def fault(method, path, number):
            if method == "GET" and path.endswith("/a"):
                bucket.put("a", str(number).encode() * 2 * PART_BYTES)

        proxy.fault = fault
        with pytest.raises(DataError, match="another content at each of 3 attempts"):
            data.cached(url)
        proxy.fault = lambda method, path, number: None
        assert len(set(data.cached(url).read_bytes())) == 1


@pytest.mark.parametrize("size", [0, 10, (9 << 20) + 1])
def test_what_is_published_is_in_the_store_and_in_the_cache(bucket, use, requests, tmp_path, size):
    old = data.cached(bucket.put("models/new", b"old"))
    source = tmp_path / "model"
    source.write_bytes(b"n" * size)
    requests.clear()
    data.publish(source, f"{bucket.url}/models/new")
    source.write_bytes(b"something else")
    sent = list(requests)
    stored = bucket.client.get_object(Bucket=bucket.name, Key="models/new")["Body"].read()
    requests.clear()
    own = data.cached(f"{bucket.url}/models/new")
    use()
    assert stored == own.read_bytes() == data.cached(f"{bucket.url}/models/new").read_bytes() == b"n" * size
    assert (old.read_bytes(), requests) == (b"old", ["GET list"])
    assert "GET" not in sent


def test_what_another_writer_replaced_at_once_is_not_cached(bucket, use, tmp_path):
    url = f"{bucket.url}/models/new"
    (tmp_path / "model").write_bytes(b"own")
    data.cached(bucket.put("models/first", b"1"))
    objects = data._cache()._bucket(DataUrl.of(url))._objects
    objects._client.meta.events.register("after-call.s3.PutObject", lambda **_: bucket.put("models/new", b"theirs"))
    data.publish(tmp_path / "model", url)
    assert data.cached(url).read_bytes() == b"theirs"


def test_what_can_not_be_published_is_said(bucket, use, tmp_path):
    with pytest.raises(FileNotFoundError):
        data.publish(tmp_path / "none", f"{bucket.url}/a")
    with pytest.raises(IsADirectoryError):
        data.publish(tmp_path, f"{bucket.url}/a")
    (tmp_path / "file").write_text("text")
    with pytest.raises(DataError, match="found a folder"):
        data.publish(tmp_path / "file", f"{bucket.url}/a/")
    with pytest.raises(
        DataError, match=r"can't write 's3://no-such-bucket/a'; found NoSuchBucket.*ake the bucket, or correct its name"
    ):
        data.publish(str(tmp_path / "file"), "s3://no-such-bucket/a")
    assert list((tmp_path / "cache").rglob("data/*")) == []


def test_a_file_is_published_without_a_cache_folder(bucket, use, tmp_path):
    (tmp_path / "file").write_text("text")
    use(folder="/proc/nothing")
    data.publish(tmp_path / "file", f"{bucket.url}/a")
    assert data.cached(f"{bucket.url}/a").read_text() == "text"
