"""``airflow hetero cache``: what it shows, removes and keeps."""

import json
import os

import pytest

from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.runtime.data.folder import CacheFolder


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def options(root):
    return {"AIRFLOW__HETERO__DATA_CACHE": str(root), "AIRFLOW__HETERO__DATA_CACHE_SIZE": "1GB", "COLUMNS": "200"}


@pytest.fixture
def run_command(unmigrated, options):
    return lambda *arguments: unmigrated.output("cache", *arguments, **options)


@pytest.fixture
def folder(root):
    """The folder as a running process uses it, with an object in use; two others are in no use."""
    ended = CacheFolder(root)
    for number in (1, 2):
        put(ended, f"s3://lake/day={number}/part-0", number)
    ended.close()
    folder = CacheFolder(root)
    put(folder, "s3://lake/day=3/part-0", 3)
    yield folder
    folder.close()


def put(folder, url, number):
    file = folder.new_file(url)
    file.write_bytes(b"x" * 1024 * number)
    path = folder.publish(file, url, ObjectVersion("k", f'"{number}"', 1024 * number))
    os.utime(path.parents[1], (number, number))


def test_all_that_is_cached_is_listed(run_command, folder, root):
    out = run_command("ls")
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [
        [f"s3://lake/day={number}/part-0", f"{number}KiB"] for number in (3, 2, 1)
    ]
    assert out.splitlines()[1].endswith("in use")
    assert f"{root} holds 6KiB and may hold 953.7MiB." in out
    listed = json.loads(run_command("ls", "s3://lake/day=1", "--json"))
    assert listed["held_bytes"] == 6144
    assert listed["entries"] == [
        {
            "url": "s3://lake/day=1/part-0",
            "size_bytes": 1024,
            "last_used": "1970-01-01T00:00:01+00:00",
            "is_in_use": False,
            "is_pinned": False,
        }
    ]


def test_what_is_in_use_or_pinned_stays(run_command, folder):
    assert "1KiB of it is here now." in run_command("pin", "s3://lake/day=1/")
    assert "pinned" in run_command("ls", "s3://lake/day=1")
    assert run_command("prune").strip() == ("Removed 2KiB. 4KiB stays: running processes use it, or it is pinned.")
    folder.make_room(1 << 60)
    assert {entry.url for entry in folder.entries()} == {"s3://lake/day=1/part-0", "s3://lake/day=3/part-0"}
    run_command("unpin", "s3://lake/day=1")
    assert run_command("prune", "s3://lake/day=1").strip() == "Removed 1KiB."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pin",), "found no URL. Name an object or a folder"),
        (("unpin", "s3://lake"), "found that it is not pinned; pinned is nothing"),
        (("prune", "/data"), "found no scheme. Write s3://bucket/key"),
    ],
)
def test_what_can_not_be_done_is_said(unmigrated, options, arguments, text):
    assert text in unmigrated.complaint("cache", *arguments, **options)


def test_a_size_that_can_not_be_read_is_said(unmigrated, options):
    text = unmigrated.complaint("cache", "ls", **options | {"AIRFLOW__HETERO__DATA_CACHE_SIZE": "many"})
    assert "[hetero] data_cache_size = 'many' can't be used; found no size" in text
