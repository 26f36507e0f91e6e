"""Checkpoints of a real S3 server, with the data cache of this host before them."""

import gc
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.httpsession import URLLib3Session

from hetero_airflow.checkpoints.object_store import ObjectStore
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.runtime.cached_checkpoints import CachedCheckpoints, with_host_cache
from hetero_airflow.runtime.checkpoint_session import CheckpointSession, read_published
from hetero_airflow.runtime.data.folder import CacheFolder
from hetero_airflow.settings import DATA_VARIABLE
from tests.checkpoints.conftest import clients_are_closed, new_bucket, s3_credentials, s3_place, s3_server
from tests.checkpoints.test_store_contract import *  # noqa: F403  the contract of every store

__all__ = ["clients_are_closed", "new_bucket", "s3_credentials", "s3_place", "s3_server"]

WEIGHTS = list(range(1000))


@pytest.fixture
def cache(tmp_path_factory):
    """This host's cache folder."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(s3_place, cache, monkeypatch):
    """A place in an empty bucket; this host's cache folder is empty, too."""
    monkeypatch.setenv(DATA_VARIABLE, json.dumps({"folder": str(cache)}))
    return s3_place(token=1)


@pytest.fixture
def store(place):
    return with_host_cache(open_store(place), place)


@pytest.fixture
def fetched(monkeypatch):
    """The files of checkpoints that were asked of the store."""
    paths: list[str] = []
    send = URLLib3Session.send

    def counted(self, request):
        name = request.url.partition("?")[0].rpartition("/")[2]
        if request.method == "GET" and name in ("state.json", "words.txt", "state"):
            paths.append(name)
        return send(self, request)

    monkeypatch.setattr(URLLib3Session, "send", counted)
    return paths


def begun(place, token):
    """A process of the task's next run on this host."""
    place = place.model_copy(update={"token": token})
    return CheckpointSession(place, with_host_cache(open_store(place), place), None)


def save(session, step, files=None):
    session.save(step, {"weights": [*WEIGHTS, step]}, metrics=None, files=files, wait=True, final=False)


def cached_files(cache):
    return sorted(cache.glob("objects/*/*/*/data/*"))


def test_a_task_that_goes_on_here_reads_no_file_from_the_store(place, fetched):
    save(begun(place, 1), 3)
    checkpoint = begun(place, 2).latest()
    assert (checkpoint.step, checkpoint.state) == (3, {"weights": [*WEIGHTS, 3]})
    assert fetched == []


def test_an_evaluation_beside_it_reads_no_file_from_the_store(place, fetched):
    session = begun(place, 1)
    save(session, 3)
    entry = session.published
    found = {"url": place.url, "path": place.path, "key": entry.key, "digest": entry.digest}
    assert read_published(place, found).state == {"weights": [*WEIGHTS, 3]}
    assert fetched == []


def test_another_host_reads_each_file_once(place, fetched, tmp_path, monkeypatch):
    save(begun(place, 1), 3)
    monkeypatch.setenv(DATA_VARIABLE, json.dumps({"folder": str(tmp_path / "other")}))
    assert begun(place, 2).latest().step == 3
    first = list(fetched)
    assert first
    assert begun(place, 3).latest().step == 3
    assert fetched == first


def test_a_damaged_file_in_the_cache_is_read_again_and_replaced(place, fetched, cache):
    save(begun(place, 1), 3)
    (path,) = cached_files(cache)
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + b"\0")
    assert begun(place, 2).latest().state == {"weights": [*WEIGHTS, 3]}
    assert len(fetched) == 1
    (path,) = cached_files(cache)
    assert path.read_bytes() == content


def test_a_cached_file_that_is_too_large_is_read_again(place, fetched, cache):
    save(begun(place, 1), 3)
    (path,) = cached_files(cache)
    content = path.read_bytes() * 2
    larger = path.parents[1].with_name(f"{path.parents[1].name.partition('-')[0]}-{len(content)}")
    path.parents[1].rename(larger)
    path = larger / "data" / path.name
    path.chmod(0o644)
    path.write_bytes(content)
    assert begun(place, 2).latest().state == {"weights": [*WEIGHTS, 3]}


def test_the_cache_keeps_the_newest_checkpoint_of_a_place(place, cache):
    session = begun(place, 1)
    for step in range(4):
        save(session, step)
    assert len(cached_files(cache)) == 1
    later = begun(place, 2)
    assert later.latest().step == 3
    later.forget_latest()
    save(later, 4)
    assert len(cached_files(cache)) == 1


def test_what_a_task_writes_to_its_files_changes_no_cached_one(place, fetched, tmp_path):
    source = tmp_path / "words.txt"
    source.write_text("first")
    save(begun(place, 1), 3, files={"words.txt": source})
    checkpoint = begun(place, 2).latest()
    (checkpoint.files / "words.txt").write_text("second")
    assert (begun(place, 3).latest().files / "words.txt").read_text() == "first"
    assert fetched == []


def test_many_processes_of_a_host_read_a_file_once(place, fetched, cache, tmp_path):
    open_store(place).put("dag/task/run/-1/k/state", Path(__file__))

    def fetch(number: int) -> bytes:
        store = CachedCheckpoints(open_store(place), place, CacheFolder(cache))
        target = tmp_path / str(number)
        store.fetch("dag/task/run/-1/k/state", target, at_most=1 << 20)
        return target.read_bytes()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(fetch, range(4))) == {Path(__file__).read_bytes()}
    assert fetched == ["state"]


def test_a_cache_on_another_disk_gets_copies(place, fetched, monkeypatch):
    def other_disk(*names: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_disk)
    save(begun(place, 1), 3)
    assert begun(place, 2).latest().step == 3
    assert fetched == []


def test_without_a_cache_folder_the_store_is_asked(place, fetched, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(DATA_VARIABLE, json.dumps({"folder": str(tmp_path / "file")}))
    save(begun(place, 1), 3)
    assert begun(place, 2).latest().step == 3
    assert len(fetched) == 1


def test_a_full_disk_keeps_the_save_and_leaves_the_cache_out(place, cache, monkeypatch):
    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheFolder, "new_file", full)
    save(begun(place, 1), 3)
    assert cached_files(cache) == []
    assert begun(place, 2).latest().step == 3


def test_a_folder_of_checkpoints_has_no_cache_before_it(place, tmp_path):
    place = place.model_copy(update={"url": tmp_path.as_uri(), "endpoint": None, "endpoints": ()})
    store = open_store(place)
    assert with_host_cache(store, place) is store


def test_a_file_that_was_damaged_on_its_way_is_read_once_more(place, cache, monkeypatch):
    save(begun(place, 1), 3)
    monkeypatch.setenv(DATA_VARIABLE, json.dumps({"folder": str(cache / "other")}))
    fetch, damaged = ObjectStore.fetch, []

    def damage_first(self, key, target, *, at_most):
        fetch(self, key, target, at_most=at_most)
        if not damaged:
            damaged.append(key)
            target.write_bytes(bytes([target.read_bytes()[0] ^ 1]) + target.read_bytes()[1:])

    monkeypatch.setattr(ObjectStore, "fetch", damage_first)
    assert begun(place, 2).latest().state == {"weights": [*WEIGHTS, 3]}
    assert len(damaged) == 1


def test_a_cache_that_is_removed_meanwhile_costs_nothing_but_requests(place, cache, fetched):
    session = begun(place, 1)
    save(session, 3)
    later = begun(place, 2)
    shutil.rmtree(cache)
    assert later.latest().state == {"weights": [*WEIGHTS, 3]}
    save(later, 4)
    assert begun(place, 3).latest().step == 4


def test_a_file_that_would_fill_the_most_of_the_cache_is_left_out(place, cache, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, json.dumps({"folder": str(cache), "size_bytes": 5000}))
    save(begun(place, 1), 3)
    assert cached_files(cache) == []


def test_a_process_that_opens_many_checkpoints_opens_the_cache_once(place):
    session = begun(place, 1)
    save(session, 3)
    entry = session.published
    found = {"url": place.url, "path": place.path, "key": entry.key, "digest": entry.digest}
    read_published(place, found)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert read_published(place, found).step == 3
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
