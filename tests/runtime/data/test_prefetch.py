"""Data that is read ahead by a process of its own."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import zstandard

from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data.cache import Cache
from hetero_airflow.runtime.data.folder import CacheFolder
from tests.checkpoints.fault_proxy import fault_proxy
from tests.waiting import PATIENCE_S

COMMAND = [sys.executable, "-m", "hetero_airflow.runtime.data.prefetch"]


@pytest.fixture
def begin(use):
    """Starts the process with these URLs."""
    readers = []

    def begin(*urls: str) -> subprocess.Popen[str]:
        reader = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        readers.append(reader)
        reader.stdin.write(f"{json.dumps(urls)}\n")
        reader.stdin.flush()
        return reader

    yield begin
    for reader in readers:
        reader.kill()
        with reader:
            pass


def test_objects_and_folders_are_in_the_cache_when_the_next_task_asks(bucket, settings, begin):
    urls = [bucket.put(f"train/{number}", os.urandom(10)) for number in range(9)]
    table = bucket.put("table.csv", b"a,b")
    others = [bucket.put(f"others/{number}", b"a") for number in range(2)]
    reader = begin(f"{bucket.url}/train/", table, f"{bucket.url}/others")
    assert reader.stdout.read() == "Read ahead for the next tasks: 12 objects, 95B\n"
    assert reader.wait(PATIENCE_S) == 0
    for url in [*urls, table, *others]:
        assert data.cached(url, revalidate="never").is_relative_to(settings["folder"])


def test_what_is_in_the_cache_is_not_read_again_and_nothing_is_said(bucket, begin):
    url = bucket.put("a", b"a")
    data.cached(url)
    assert begin(url).stdout.read() == ""


def test_a_quarter_of_the_cache_is_the_most(bucket, settings):
    urls = [bucket.put(f"{number}", bytes(100)) for number in range(3)]
    cache = Cache(DataSettings(**{**settings, "size_bytes": 900}))
    assert cache.read_ahead(urls) == (2, 200)


def test_without_a_cache_folder_nothing_is_read(bucket, settings, tmp_path):
    (tmp_path / "file").touch()
    cache = Cache(DataSettings(**{**settings, "folder": str(tmp_path / "file")}))
    assert cache.read_ahead([bucket.put("a", b"a")]) == (0, 0)


def test_a_store_that_fails_is_one_line_and_no_error(bucket, settings, use, begin):
    with fault_proxy(settings["own_endpoints"]["s3"]) as proxy:
        proxy.fault = lambda method, path, number: "403"
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])
        reader = begin(f"{bucket.url}/a/")
        said = reader.stdout.read()
    assert said.startswith("The data of the next tasks is not read ahead: ")
    assert "AccessDenied" in said
    assert reader.wait(PATIENCE_S) == 0


def test_what_is_not_there_yet_is_no_error(bucket, begin):
    assert begin(f"{bucket.url}/a", f"{bucket.url}/b/").stdout.read() == ""


def test_it_ends_with_its_task_in_the_middle_of_an_object(bucket, settings, use, begin):
    url = bucket.put("large", bytes(1 << 20))
    asked, is_over = threading.Event(), threading.Event()

    def silent(method: str, path: str, number: int) -> None:
        asked.set()
        is_over.wait(PATIENCE_S)

    with fault_proxy(settings["own_endpoints"]["s3"]) as proxy:
        proxy.fault = silent
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])
        reader = begin(url)
        assert asked.wait(PATIENCE_S)
        reader.stdin.close()
        assert reader.wait(PATIENCE_S) == 0
        is_over.set()


def test_what_is_there_decompressed_is_not_read_again(bucket, begin, use, tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.arange(9))
    packed = zstandard.ZstdCompressor().compress((tmp_path / "a.npy").read_bytes())
    url = bucket.put("shards/a.npy.zst", packed)
    assert list(data.shards([url])[0]) == list(range(9))
    assert begin(f"{bucket.url}/shards/").stdout.read() == ""


def test_one_process_of_a_host_reads_at_a_time(bucket, settings, begin):
    url = bucket.put("a", b"a")
    with CacheFolder(Path(settings["folder"])).in_turn():
        reader = begin(url)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(2)
    assert reader.stdout.read() == "Read ahead for the next tasks: 1 object, 1B\n"
