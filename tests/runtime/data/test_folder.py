"""The cache folder: many processes, kills, too little room, and folders that can't be used."""

import gc
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data import folder as folder_module
from hetero_airflow.runtime.data.folder import CacheFolder, Unusable
from tests.checkpoints.fault_proxy import fault_proxy
from tests.effort import effort, long


def version(number: int, size_bytes: int = 10) -> ObjectVersion:
    return ObjectVersion(f"k{number}", f'"{number}"', size_bytes)


def put(folder: CacheFolder, number: int, size_bytes: int = 10) -> Path:
    """Cache an object that was last used at second `number`."""
    url = f"s3://b/k{number}"
    file = folder.new_file(url)
    file.write_bytes(bytes([number]) * size_bytes)
    path = folder.publish(file, url, version(number, size_bytes))
    os.utime(path.parents[1], (number, number))
    return path


def numbers(folder: CacheFolder) -> set[int]:
    return {int(path.name[1:]) for path in folder.root.glob("objects/*/*/*/data/*")}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def filled(root: Path, count: int, **options: object) -> CacheFolder:
    """A folder with objects that no process uses."""
    folder = CacheFolder(root)
    for number in range(count):
        put(folder, number)
    folder.close()
    return CacheFolder(root, **options)


def test_what_was_not_used_for_the_longest_time_goes(root):
    folder = filled(root, 10, size_bytes=100)
    put(folder, 20, 25)
    assert numbers(folder) == {3, 4, 5, 6, 7, 8, 9, 20}
    assert all(list(path.iterdir()) for path in root.glob("objects/*/*"))


def test_what_a_process_uses_stays_until_it_ends(root):
    filled(root, 10).close()
    other, folder = CacheFolder(root), CacheFolder(root, 0)
    assert other.find("s3://b/k0", version(0))
    put(folder, 20)
    assert numbers(folder) == {0, 20}
    other.close()
    folder.make_room(0)
    assert numbers(folder) == {20}


def test_room_is_made_beside_what_is_used(root):
    filled(root, 10).close()
    other, folder = CacheFolder(root), CacheFolder(root, 60)
    for number in range(5):
        assert other.find(f"s3://b/k{number}", version(number))
        os.utime(next(root.glob(f"objects/*/*/*/data/k{number}")).parents[1], (number, number))
    folder.make_room(0)
    assert numbers(folder) == {0, 1, 2, 3, 4, 9}


def test_a_use_puts_an_object_last(root):
    folder = filled(root, 10)
    assert folder.find("s3://b/k0", version(0))
    folder.close()
    folder = CacheFolder(root, 30)
    folder.make_room(0)
    assert numbers(folder) == {0, 8, 9}


def test_a_full_disk_makes_room(root, monkeypatch):
    folder = filled(root, 10)
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(folder_module.shutil, "disk_usage", lambda path: usage._replace(free=0))
    folder.make_room(25)
    assert numbers(folder) == {8, 9}  # with 25 more, less than half of the 100 that it may share


def test_two_processes_with_the_same_object_have_one_file(root):
    first, second = CacheFolder(root), CacheFolder(root)
    assert put(first, 1) == put(second, 1)
    assert numbers(first) == {1}
    assert not [path for path in root.glob("process-*/*") if path.is_dir()]


def test_an_incomplete_object_is_replaced(root):
    folder = CacheFolder(root)
    path = put(folder, 1)
    path.chmod(0o600)
    path.write_bytes(b"short")
    assert folder.find("s3://b/k1", version(1)) is None
    assert put(folder, 1).read_bytes() == b"\1" * 10


def test_folders_that_can_not_be_trusted_are_not_used(root):
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(Unusable, match="others may write"):
        CacheFolder(root)
    root.rmdir()
    root.write_text("a file")
    with pytest.raises(Unusable):
        CacheFolder(root)


def test_data_is_read_without_a_folder(bucket, use, tmp_path, caplog):
    (tmp_path / "file").touch()
    use(folder=str(tmp_path / "file"))
    url = bucket.put("a", b"1")
    path = data.cached(url)
    assert path.read_bytes() == b"1"
    assert data.cached(url) == path
    assert data.cached_tree(bucket.url).joinpath("a").read_bytes() == b"1"
    texts = [record.message for record in caplog.records if record.name.startswith("hetero_airflow")]
    assert [text.partition(":")[0] for text in texts] == ["Data is read without a cache"]


def test_a_disk_that_stays_full_is_passed_by(bucket, use, settings, monkeypatch, caplog):
    url = bucket.put("a", b"1")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheFolder, "publish", full)
    assert data.cached(url).read_bytes() == b"1"
    assert "does not go into the cache: No space left on device" in caplog.text
    assert not [path for path in Path(settings["folder"]).glob("process-*/*") if path.is_dir()]


def read_all(start, urls, results) -> None:
    """Read objects in a random order, as a forked worker of a loader does."""
    start.wait()
    random.shuffle(urls)
    results.put([(url, data.cached(url).read_bytes()) for url in urls])


def test_many_processes_download_an_object_once(bucket, use, s3_server):
    contents = {bucket.put(f"data/{number}", bytes([number]) * 1000): bytes([number]) * 1000 for number in range(20)}
    with fault_proxy(s3_server) as proxy:
        use(own_endpoints={"s3": proxy.url}, endpoints=[proxy.url])
        context = multiprocessing.get_context("fork")
        start, results = context.Event(), context.Queue()
        processes = [context.Process(target=read_all, args=(start, list(contents), results)) for _ in range(6)]
        for process in processes:
            process.start()
        start.set()
        for _ in processes:
            assert dict(results.get(timeout=60)) == contents
        for process in processes:
            process.join(60)
        read = [path for method, path, *_ in proxy.requests if method == "GET" and "list-type" not in path]
        assert len(read) == len(set(read)) == 20


READER = """
import random, sys
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data.cache import Cache
random.seed(int(sys.argv[1]))
for turn in range(10_000):
    number = random.randrange(12)
    if turn % 10 == 9:
        with open(sys.argv[3], "wb") as file:
            file.write(bytes([number]) * (200_000 if number else 9 << 20))
        data.publish(sys.argv[3], f"{sys.argv[2]}/data/{number}")
    content = data.cached(f"{sys.argv[2]}/data/{number}").read_bytes()
    if content != bytes([number]) * (200_000 if number else 9 << 20):
        print("wrong", number, len(content), flush=True)
    data._caches.clear()  # the next object is looked up as a new process does
"""


@long
def test_kills_at_any_moment_leave_no_wrong_byte_no_lock_and_bounded_space(
    bucket, use, settings, monkeypatch, tmp_path
):
    for number in range(12):
        bucket.put(f"data/{number}", bytes([number]) * (200_000 if number else 9 << 20))
    limit = 3_000_000
    use(size_bytes=limit)
    monkeypatch.setattr("hetero_airflow.runtime.scratch_folder.FRESH_S", 0.0)
    root = Path(settings["folder"])
    wrong: list[str] = []
    for round_number in range(effort(6, 200)):
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(2 * round_number + i), bucket.url, str(tmp_path / f"own{i}")],
                stdout=-1,
                text=True,
            )
            for i in range(2)
        ]
        time.sleep(random.uniform(0.5, 1.5))
        for reader in readers:
            assert reader.poll() is None
            reader.send_signal(signal.SIGKILL)
            wrong += reader.communicate()[0].splitlines()
        folder = CacheFolder(root, limit)  # removes what the killed ones left
        folder.make_room(0)
        assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) <= limit
        assert [path.name for path in root.glob("process-*")] == [folder._process.root.name]
        use(size_bytes=limit)
        assert data.cached(f"{bucket.url}/data/1").read_bytes() == b"\1" * 200_000
        folder.close()
        data._caches.clear()
        gc.collect()  # ends this process's use of the folder
    assert wrong == []
