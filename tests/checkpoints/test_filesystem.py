import errno
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_airflow.checkpoints import filesystem
from hetero_airflow.checkpoints.filesystem import FilesystemStore, open_filesystem
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, SettingsError

KEY = "dag/task/index.json"


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    return FilesystemStore(tmp_path / "store")


def attempts(store: FilesystemStore, key: str, tmp_path: Path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    return [
        lambda: store.read(key, at_most=100),
        lambda: store.replace(key, b"x", None),
        lambda: store.put(key, source),
        lambda: store.fetch(key, tmp_path / "target", at_most=100),
    ]


@pytest.mark.parametrize("url", ["file://host/folder", "file:///", "file:", "file:relative"])
def test_a_url_without_a_folder_of_this_host_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="no folder of this host"):
        open_filesystem(CheckpointPlace(url=url, path="d/t/r/-1"))


def test_a_link_in_the_path_is_not_followed(store: FilesystemStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "index.json").write_bytes(b"secret")
    (store.root / "dag").mkdir(parents=True)
    (store.root / "dag" / "task").symlink_to(outside)
    for attempt in attempts(store, KEY, tmp_path):
        with pytest.raises(InvalidCheckpoint, match="a link"):
            attempt()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"index.json": b"secret"}


def test_a_link_in_the_place_of_an_object_is_not_read(store: FilesystemStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (store.root / "dag" / "task").mkdir(parents=True)
    (store.root / KEY).symlink_to(secret)
    read, replace, _, fetch = attempts(store, KEY, tmp_path)
    for attempt in (read, replace, fetch):
        with pytest.raises(InvalidCheckpoint, match="a link"):
            attempt()
    assert secret.read_bytes() == b"secret"


def test_a_put_replaces_a_link_and_does_not_write_through_it(store: FilesystemStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (store.root / "dag" / "task").mkdir(parents=True)
    (store.root / KEY).symlink_to(secret)
    attempts(store, KEY, tmp_path)[2]()
    assert (secret.read_bytes(), (store.root / KEY).read_bytes()) == (b"secret", b"x")


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert FilesystemStore(tmp_path / "link").replace(KEY, b"x", None)
    assert (tmp_path / "disk" / KEY).read_bytes() == b"x"


def test_a_pipe_or_a_folder_in_the_place_of_an_object_is_refused_at_once(
    store: FilesystemStore, tmp_path: Path
) -> None:
    (store.root / "dag" / "folder").mkdir(parents=True)
    os.mkfifo(store.root / "dag" / "pipe")
    for key in ("dag/pipe", "dag/folder"):
        with pytest.raises(InvalidCheckpoint, match="no plain file"):
            store.read(key, at_most=10)
        with pytest.raises(InvalidCheckpoint, match="no plain file"):
            store.fetch(key, tmp_path / "target", at_most=10)


def test_a_sweep_leaves_links_alone(store: FilesystemStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (store.root / "place").mkdir(parents=True)
    (store.root / "place" / "link").symlink_to(outside)
    assert list(store.sweep("place", lambda name, age_s: True)) == []
    assert (outside / "inner").is_dir()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_and_keeps_what_exists(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    version = store.replace(KEY, b"before", None)
    before = sorted(store.root.rglob("*"))

    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    for attempt in (lambda: store.replace(KEY, b"after", version), lambda: store.put("dag/task/new", source)):
        with pytest.raises(CheckpointStoreUnavailable, match="Free space") as caught:
            attempt()
        assert caught.value.found == os.strerror(code)
    assert sorted(store.root.rglob("*")) == before
    assert (store.root / KEY).read_bytes() == b"before"


def test_a_partly_written_file_is_removed(store: FilesystemStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    store.put("dag/whole", source)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        for attempt in (
            lambda: store.put("dag/new", source),
            lambda: store.replace("dag/index.json", bytes(3 << 20), None),
            lambda: store.fetch("dag/whole", tmp_path / "target", at_most=3 << 20),
        ):
            with pytest.raises(CheckpointStoreUnavailable, match="File too large"):
                attempt()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in (store.root / "dag").iterdir()} == {"whole", "lock~"}
    assert not (tmp_path / "target").exists()


def test_a_root_that_is_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidCheckpoint, match="no plain file or folder"):
        FilesystemStore(tmp_path / "file" / "below").replace(KEY, b"x", None)


def test_a_put_that_dies_leaves_no_object(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    source = tmp_path / "source"
    source.write_bytes(b"x")
    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(Killed):
        store.put("dag/a", source)
    assert list((store.root / "dag").iterdir()) == []


def test_a_held_lock_is_waited_for_up_to_a_limit(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "LOCK_TIMEOUT_S", 0.05)
    store.replace(KEY, b"x", None)
    with (store.root / "dag" / "task" / "lock~").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckpointStoreUnavailable, match="holds its lock"):
            store.replace("dag/task/other.json", b"x", None)
    assert store.replace("dag/task/other.json", b"x", None)


COUNT = """
import sys
from pathlib import Path
from hetero_airflow.checkpoints.filesystem import FilesystemStore
store, done = FilesystemStore(Path(sys.argv[1])), 0
while done < int(sys.argv[2]):
    stored = store.read("dag/count", at_most=100)
    number = int(stored.content) if stored else 0
    done += store.replace("dag/count", str(number + 1).encode(), stored and stored.version) is not None
"""


def test_no_write_is_lost_between_processes(store: FilesystemStore) -> None:
    each = 50
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(store.root), str(each)]) for _ in range(3)]
    assert [process.wait(600) for process in processes] == [0, 0, 0]
    assert store.read("dag/count", at_most=100).content == str(3 * each).encode()  # type: ignore[union-attr]
