"""The contract of `CheckpointStore`, for every store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore, StoredObject
from hetero_airflow.errors import InvalidCheckpoint
from tests.effort import effort, long

KEY = "dag/task/run/-1/index.json"
HOSTILE = ["", "..", "../outside", "a/../../outside", "/etc/passwd", "a\0b", "a\nb", "a\\b", "a//b", "a" * 10_240]


def put(store: CheckpointStore, key: str, content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(content)
    store.put(key, source)


def test_an_unwritten_object_does_not_exist(store: CheckpointStore, tmp_path: Path) -> None:
    assert store.read(KEY, at_most=10) is None
    with pytest.raises(InvalidCheckpoint):
        store.fetch(KEY, tmp_path / "target", at_most=10)
    assert not (tmp_path / "target").exists()
    assert list(store.sweep("dag/task/run/-1", lambda name, age_s: True)) == []


def test_a_small_object_is_read_as_it_was_written(store: CheckpointStore) -> None:
    version = store.replace(KEY, b'{"a": "\xc3\xa4"}', None)
    assert version is not None
    assert store.read(KEY, at_most=100) == StoredObject(b'{"a": "\xc3\xa4"}', version)


def test_a_second_create_is_refused_and_the_first_stays(store: CheckpointStore) -> None:
    version = store.replace(KEY, b"first", None)
    assert store.replace(KEY, b"second", None) is None
    assert store.read(KEY, at_most=100) == StoredObject(b"first", str(version))


def test_only_the_last_reader_can_replace_an_object(store: CheckpointStore) -> None:
    first = store.replace(KEY, b"1", None)
    second = store.replace(KEY, b"2", first)
    assert second not in (None, first)
    assert store.replace(KEY, b"3", first) is None
    assert store.read(KEY, at_most=100) == StoredObject(b"2", str(second))
    assert store.replace(KEY, b"3", second) is not None
    assert store.read(KEY, at_most=100).content == b"3"  # type: ignore[union-attr]


def test_a_missing_object_can_not_be_replaced(store: CheckpointStore) -> None:
    other_version = store.replace("dag/other.json", b"1", None)
    assert store.replace(KEY, b"2", other_version) is None
    assert store.read(KEY, at_most=100) is None


@long
def test_of_writers_that_race_exactly_one_wins_each_time(store: CheckpointStore) -> None:
    writers, keys, turns = 8, effort(10, 625), effort(10, 625)  # in the long form, 10,000 conditional writes or more

    def create(writer: int) -> list[int]:
        written = (store.replace(f"dag/{key}.json", b"%d" % writer, None) for key in range(keys))
        return [key for key, version in enumerate(written) if version is not None]

    def count_up(_: int) -> int:
        won = 0
        for _ in range(turns):
            stored = store.read(KEY, at_most=100)
            assert stored is not None
            won += store.replace(KEY, b"%d" % (int(stored.content) + 1), stored.version) is not None
        return won

    store.replace(KEY, b"0", None)
    with ThreadPoolExecutor(writers) as threads:
        created = list(threads.map(create, range(writers)))
        won = sum(threads.map(count_up, range(writers)))
    assert sorted(key for keys_of_one in created for key in keys_of_one) == list(range(keys))
    for writer, keys_of_one in enumerate(created):
        for key in keys_of_one:
            assert store.read(f"dag/{key}.json", at_most=9).content == b"%d" % writer  # type: ignore[union-attr]
    assert store.read(KEY, at_most=100).content == b"%d" % won  # type: ignore[union-attr]
    assert won >= turns


def test_more_than_asked_for_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    store.replace(KEY, b"12345", None)
    assert store.read(KEY, at_most=5) is not None
    with pytest.raises(InvalidCheckpoint, match="at most 4 bytes"):
        store.read(KEY, at_most=4)
    store.fetch(KEY, tmp_path / "whole", at_most=5)
    with pytest.raises(InvalidCheckpoint, match="at most 4 bytes"):
        store.fetch(KEY, tmp_path / "target", at_most=4)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("size", [0, 1, 100_000, 9 << 20])
def test_a_fetched_file_equals_the_stored_one(store: CheckpointStore, tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    put(store, "dag/a file.bin", content, tmp_path)
    store.fetch("dag/a file.bin", tmp_path / "target", at_most=size)
    assert (tmp_path / "target").read_bytes() == content


def test_a_fetch_never_overwrites_a_file(store: CheckpointStore, tmp_path: Path) -> None:
    put(store, "dag/a", b"new", tmp_path)
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    with pytest.raises(InvalidCheckpoint, match="a file in its place"):
        store.fetch("dag/a", target, at_most=10)
    assert target.read_bytes() == b"mine"


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_that_leaves_the_store_is_refused_by_every_method(
    store: CheckpointStore, tmp_path: Path, key: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: store.read(key, at_most=10),
        lambda: store.replace(key, b"x", None),
        lambda: store.put(key, source),
        lambda: store.fetch(key, tmp_path / "target", at_most=10),
        lambda: list(store.sweep(key, lambda name, age_s: True)),
    ):
        with pytest.raises(InvalidCheckpoint):
            attempt()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {path for path in before if path.is_file()}


def test_only_the_folders_that_are_garbage_are_swept(store: CheckpointStore, tmp_path: Path) -> None:
    store.replace("place/index.json", b"{}", None)
    for name in ("old", "new", "kept"):
        put(store, f"place/{name}/a", b"1", tmp_path)
        put(store, f"place/{name}/files/b", b"2", tmp_path)
    put(store, "placebo/old/a", b"1", tmp_path)
    ages_s: dict[str, float] = {}

    def is_garbage(name: str, age_s: float) -> bool:
        ages_s[name] = age_s
        return name != "kept"

    assert sorted(store.sweep("place", is_garbage)) == ["new", "old"]
    assert sorted(ages_s) == ["kept", "new", "old"]
    assert all(-5 < age_s < 60 for age_s in ages_s.values())
    assert store.read("place/kept/files/b", at_most=9) is not None
    assert store.read("placebo/old/a", at_most=9) is not None
    assert store.read("place/index.json", at_most=9) is not None
    for key in ("place/old/a", "place/old/files/b", "place/new/a"):
        assert store.read(key, at_most=9) is None


def test_nothing_is_swept_until_the_iterator_is_used(store: CheckpointStore, tmp_path: Path) -> None:
    put(store, "place/old/a", b"1", tmp_path)
    store.sweep("place", lambda name, age_s: True)
    assert store.read("place/old/a", at_most=9) is not None
