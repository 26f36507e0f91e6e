"""What the processes of a host found in its cache, and what that saved."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from hetero_airflow.model.host_data import CacheCounts
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data import counting
from hetero_airflow.runtime.data.counting import CacheCounter, read_counts


@pytest.fixture
def root(tmp_path):
    (tmp_path / "locks").mkdir()
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    """The seconds that `time.monotonic` shows."""
    now = [0.0]
    monkeypatch.setattr(counting.time, "monotonic", lambda: now[0])
    return now


def test_each_content_counts_once_per_process_and_not_if_the_process_has_read_it_itself(bucket, use, tmp_path):
    urls = [bucket.put(f"a/{number}", b"12345") for number in range(3)]
    for _ in range(2):
        data.cached_tree(f"{bucket.url}/a")
    first = read_counts(tmp_path / "cache")
    assert (first.hits, first.misses, first.read_bytes, first.saved_bytes) == (0, 3, 15, 0)
    assert first.read_s > 0
    use()
    for _ in range(2):
        data.cached_all(urls[:2])
    assert data.cached(urls[2], "never")
    data._cache()._counter.write()
    second = read_counts(tmp_path / "cache")
    assert (second.hits, second.misses, second.read_bytes, second.saved_bytes) == (3, 3, 15, 15)
    assert second.read_s == first.read_s
    assert second.saved_s == pytest.approx(first.read_s)


def test_without_a_cache_folder_nothing_is_kept(bucket, use, tmp_path):
    url = bucket.put("a", b"12345")
    use(folder="/dev/null/no")
    data.cached(url)
    assert read_counts(tmp_path / "cache") == CacheCounts()


def test_reads_at_once_are_one_time(root, clock):
    counter = CacheCounter(root)
    with counter.reading(100):
        clock[0] = 2
        with counter.reading(200):
            clock[0] = 3
        clock[0] = 4
    counter.write()
    counter.note_hit(root / "a", 600)
    counter.write()
    assert read_counts(root) == CacheCounts(hits=1, misses=2, read_bytes=300, read_s=4, saved_bytes=600, saved_s=8)


def test_a_read_that_fails_is_none(root, clock):
    counter = CacheCounter(root)

    def fail() -> None:
        clock[0] += 60
        raise OSError("full")

    with pytest.raises(OSError, match="full"), counter.reading(100):
        fail()
    counter.write()
    assert read_counts(root) == CacheCounts()


def test_counts_are_written_every_few_seconds(root, clock):
    counter = CacheCounter(root)
    for second in range(8):
        clock[0] = second
        counter.note_hit(root / str(second), 1)
    assert read_counts(root).hits == 6
    counter.write()
    assert read_counts(root).hits == 8


def test_what_the_folder_does_not_take_is_tried_again(tmp_path):
    root = tmp_path / "cache"
    counter = CacheCounter(root)
    counter.note_hit(root / "a", 1)
    counter.write()
    (root / "locks").mkdir(parents=True)
    counter.write()
    counter.write()
    assert read_counts(root).hits == 1


@pytest.mark.parametrize("text", ["", "{", '{"hits": -1}', '{"more": 1}'])
def test_a_damaged_file_begins_anew(tmp_path, text):
    (tmp_path / "counts").write_text(text)
    assert read_counts(tmp_path) == CacheCounts()


def hit(root: Path, number: int, *, is_killed: bool) -> None:
    counter = CacheCounter(root)
    for index in range(20):
        counter.note_hit(root / f"{number}-{index}", 1)
    if is_killed:
        counter.write()
        os.kill(os.getpid(), signal.SIGKILL)


def test_no_process_overwrites_the_counts_of_another(root):
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=hit, args=(root, number), kwargs={"is_killed": number == 0}) for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert read_counts(root).hits == 60
