"""What a host says that its cache holds."""

import os
import shutil
import threading

import pytest

from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.model.host_data import MAX_HELD, CacheCounts, HostData, held_name
from hetero_airflow.runtime.data import holdings
from hetero_airflow.runtime.data.counting import CacheCounter
from hetero_airflow.runtime.data.folder import CacheFolder
from hetero_airflow.runtime.data.holdings import Holdings, HoldingsWatch
from hetero_airflow.runtime.data.zstd import unpacked_url
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture
def folder(tmp_path):
    return CacheFolder(tmp_path / "cache")


def put(folder, url, size_bytes, *, etag="1", used=1000):
    version = ObjectVersion(url.partition("://")[2].partition("/")[2], etag, size_bytes)
    file = folder.new_file(url)
    file.write_bytes(b"." * size_bytes)
    path = folder.publish(file, url, version)
    os.utime(path.parents[1], (used, used))
    return path


def named(**bytes_by_url):
    return dict(sorted((held_name(url), size_bytes) for url, size_bytes in bytes_by_url.items()))


def test_a_host_without_a_cache_holds_nothing(tmp_path):
    assert Holdings(tmp_path / "none").look() == HostData()


def test_objects_count_with_their_folders_up_to_the_bucket(folder):
    put(folder, "s3://lake/train/a.csv", 3)
    put(folder, "s3://lake/train/deep/b.csv", 4)
    put(folder, "gs://other/c", 5)
    assert Holdings(folder.root).look().held == named(
        **{
            "s3://lake/": 7,
            "s3://lake/train/": 7,
            "s3://lake/train/deep/": 4,
            "s3://lake/train/a.csv": 3,
            "s3://lake/train/deep/b.csv": 4,
            "gs://other/": 5,
            "gs://other/c": 5,
        }
    )


def test_the_content_that_was_used_last_counts(folder):
    put(folder, "s3://lake/a", 3, etag="1", used=20)
    put(folder, "s3://lake/a", 5, etag="2", used=10)
    assert Holdings(folder.root).look().held == named(**{"s3://lake/": 3, "s3://lake/a": 3})


def test_it_follows_what_comes_and_goes(folder):
    seen = Holdings(folder.root)
    path = put(folder, "s3://lake/a", 3)
    first = seen.look()
    assert seen.look() == first
    put(folder, "s3://lake/b", 4)
    assert seen.look().held == named(**{"s3://lake/": 7, "s3://lake/a": 3, "s3://lake/b": 4})
    shutil.rmtree(path.parents[2])
    assert seen.look().held == named(**{"s3://lake/": 4, "s3://lake/b": 4})
    shutil.rmtree(folder.root)
    assert seen.look() == HostData()


def test_of_many_those_that_were_used_last_are_reported(folder, monkeypatch):
    monkeypatch.setattr(holdings, "LOOKED_AT", 10 * MAX_HELD)
    for number in range(MAX_HELD + 20):
        put(folder, f"s3://lake/{number % 2}/{number}", 1, used=number + 1)
    held = Holdings(folder.root).look().held
    assert len(held) == MAX_HELD
    assert held[held_name("s3://lake/0/")] == (MAX_HELD + 20) // 2
    assert held_name(f"s3://lake/1/{MAX_HELD + 19}") in held
    assert held_name("s3://lake/0/0") not in held


def test_a_large_folder_is_known_after_several_looks(folder, monkeypatch):
    monkeypatch.setattr(holdings, "LOOKED_AT", 10)
    for number in range(50):
        put(folder, f"s3://lake/{number}", 1)
    seen = Holdings(folder.root)
    sizes = [seen.look().held[held_name("s3://lake/")] for _ in range(12)]
    assert sizes[0] < 20
    assert sizes == sorted(sizes)
    assert sizes[-1] == 50


def test_it_has_the_counts_of_the_host(folder):
    counter = CacheCounter(folder.root)
    counter.note_hit(folder.root / "a", 7)
    counter.write()
    assert Holdings(folder.root).look() == HostData(counts=CacheCounts(hits=1, saved_bytes=7))


def test_foreign_entries_are_no_objects(folder):
    put(folder, "s3://lake/a", 3)
    part = folder.root / "objects" / "ab"
    for name in ("backup/0123456789abcdef-5", f"{'ab' * 32}/0123456789abcdef-{10**30}"):
        (part / name / "data").mkdir(parents=True)
    damaged = part / ("ab" * 31 + "cd") / "0123456789abcdef-5"
    (damaged / "data").mkdir(parents=True)
    (damaged / "url").write_bytes(b"s3://lake/\xff")
    held = Holdings(folder.root).look().held
    assert held == named(**{"s3://lake/": 3, "s3://lake/a": 3})


def test_a_decompressed_object_counts_as_the_object_itself(folder):
    put(folder, unpacked_url("s3://lake/train/a.npy.zst", "1"), 9)
    assert Holdings(folder.root).look().held == named(
        **{"s3://lake/": 9, "s3://lake/train/": 9, "s3://lake/train/a.npy.zst": 9}
    )


def test_a_watch_has_the_last_look_and_never_waits_for_one(folder, monkeypatch):
    put(folder, "s3://lake/a", 3)
    watch, may_go_on, is_slow = HoldingsWatch(folder.root), threading.Event(), threading.Event()
    look = watch._holdings.look
    monkeypatch.setattr(watch._holdings, "look", lambda: (is_slow.set(), may_go_on.wait(PATIENCE_S), look())[2])
    assert watch.data() == HostData()
    assert is_slow.wait(PATIENCE_S)
    assert watch.data() == HostData()
    may_go_on.set()
    eventually(lambda: watch.data().held == named(**{"s3://lake/": 3, "s3://lake/a": 3}))


def test_a_look_that_fails_is_logged_and_changes_nothing(folder, monkeypatch, caplog):
    watch = HoldingsWatch(folder.root)
    monkeypatch.setattr(watch._holdings, "look", lambda: 1 / 0)
    assert watch.data() == HostData()
    eventually(lambda: "can't be found out" in caplog.text)
    assert watch.data() == HostData()
