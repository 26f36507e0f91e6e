"""The cache with the stores of Google (a stub) and Azure (Azurite)."""

import json
import os
import signal

import numpy
import psutil
import pytest

from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.errors import DataError
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data.bucket import PART_BYTES
from tests.checkpoints.conftest import az_place, azure_server, cloud_credentials, google_key, google_server, gs_place
from tests.waiting import eventually

__all__ = ["az_place", "azure_server", "cloud_credentials", "google_key", "google_server", "gs_place"]


@pytest.fixture(params=["gs", pytest.param("az", marks=pytest.mark.system)])
def folder(request, use, tmp_path):
    """The URL of a folder, and what writes an object there."""
    place = request.getfixturevalue(f"{request.param}_place")()
    root = f"{request.param}://{place.url.split('/')[2]}"
    store = open_store(place.model_copy(update={"url": root}))
    use(own_endpoints={request.param: place.endpoint}, endpoints=[place.endpoint])

    def write(name, content):
        (tmp_path / "source").write_bytes(content)
        store.put(f"folder/{name}", tmp_path / "source")
        return f"{root}/folder/{name}"

    return f"{root}/folder", write


def test_objects_are_read_and_another_content_is_seen(folder, use):
    root, write = folder
    large = bytes(2 * PART_BYTES) + b"end"
    urls = [write("small", b"1"), write("empty", b""), write("large", large)]
    assert [data.cached(url).read_bytes() for url in urls] == [b"1", b"", large]
    assert {path.name for path in data.cached_tree(root).iterdir()} == {"small", "empty", "large"}
    write("small", b"2")
    assert data.cached(urls[0]).read_bytes() == b"1", "one content in a process"
    assert data.cached(urls[0], "always").read_bytes() == b"2"
    assert data.cached(urls[0], "never").read_bytes() == b"2"
    with pytest.raises(DataError, match="found nothing there"):
        data.cached(f"{root}/nothing")


def in_fork(work):
    """What a forked process returns, as JSON."""
    read, write = os.pipe()
    if (process := os.fork()) == 0:
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(process, 0)
    return json.loads(said)


def test_a_fork_of_a_process_that_has_used_the_store_reads_and_writes_too(folder, use, tmp_path):
    root, write = folder
    urls = [write("a", b"1"), write("b", b"2")]
    assert data.cached(urls[0]).read_bytes() == b"1"
    (tmp_path / "new").write_bytes(b"3")
    numpy.save(tmp_path / "rows.npy", numpy.arange(4))
    shard = write("rows.npy", (tmp_path / "rows.npy").read_bytes())

    def work():
        read = [path.read_bytes().decode() for path in data.cached_all(urls)]
        published = data.publish(tmp_path / "new", f"{root}/new")
        names = sorted(path.name for path in data.cached_tree(root).iterdir())
        return read, published["size_bytes"], names, data.shards([shard])[0].tolist(), data.cached(urls[1]).name

    assert in_fork(work) == [["1", "2"], 1, ["a", "b", "new", "rows.npy"], [0, 1, 2, 3], "b"]


def test_errors_are_the_same_in_a_fork(folder, use, tmp_path):
    root, write = folder
    data.cached(write("a", b"1"))

    def error_of(call, *arguments):
        try:
            call(*arguments)
        except (DataError, OSError) as error:
            return [type(error).__name__, str(error)]

    missing = (data.publish, tmp_path / "none", f"{root}/a")
    calls = [(data.cached, f"{root}/nothing"), missing, (data.cached_all, "text")]
    here = [error_of(*call) for call in calls]
    assert in_fork(lambda: [error_of(*call) for call in calls]) == here


def test_the_process_that_reads_ends_with_its_fork(folder, use):
    _, write = folder
    url = write("a", b"1")
    data.cached(url)

    def work():
        data.cached(url)
        return data._cache()._reader.pid

    reader = in_fork(work)
    eventually(lambda: not psutil.pid_exists(reader) or psutil.Process(reader).status() == psutil.STATUS_ZOMBIE)


def test_after_an_interruption_no_call_gets_the_answer_of_another(folder, use):
    _, write = folder
    urls = [write("a", b"1"), write("b", b"2")]
    data.cached(urls[0])

    def work():
        def interrupt(*_):
            raise TimeoutError

        data.cached(urls[0])
        signal.signal(signal.SIGALRM, interrupt)
        os.kill(data._cache()._reader.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            data.cached(urls[0])
        except DataError as error:
            said = error.found
        return said, data.cached(urls[1]).read_bytes().decode()

    assert in_fork(work) == ["a process that reads for this one, and has ended", "2"]


def test_a_reader_that_was_killed_is_started_again(folder, use):
    _, write = folder
    url = write("a", b"1")
    data.cached(url)

    def work():
        data.cached(url)
        os.kill(data._cache()._reader.pid, signal.SIGKILL)
        try:
            data.cached(url)
        except DataError:
            return data.cached(url).read_bytes().decode()

    assert in_fork(work) == "1"
