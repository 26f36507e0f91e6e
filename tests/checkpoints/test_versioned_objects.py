"""What each object store promises about the contents of its objects."""

import pytest

from hetero_airflow.checkpoints.object_version import ObjectChanged
from hetero_airflow.checkpoints.opening import open_store
from tests.checkpoints.conftest import STORES


@pytest.fixture(params=[name for name in STORES if name != "file"])
def objects(request):
    place = request.getfixturevalue(f"{request.param}_place")()
    bucket = place.url.split("/")[2]
    return open_store(place.model_copy(update={"url": f"{request.param}://{bucket}"}))


def write(objects, key, content):
    old = objects.version(key)
    version = None if old is None else objects.read(key, at_most=1 << 20).version
    assert objects.replace(key, content, version)


def test_an_object_has_a_version_that_its_folder_lists(objects):
    assert objects.version("data/1") is None
    for number in range(3):
        write(objects, f"data/{number}", b"x" * number)
    write(objects, "data2/0", b"not in the folder")
    versions = list(objects.versions("data"))
    assert [version.key for version in versions] == ["data/0", "data/1", "data/2", "data/probe~"]
    assert [version.size_bytes for version in versions[:3]] == [0, 1, 2]
    assert versions[:3] == [objects.version(f"data/{number}") for number in range(3)]
    assert list(objects.versions("data", "data/0")) == versions[1:]
    assert list(objects.versions("nothing")) == []
    assert {version.key for version in objects.versions("")} >= {"data/0", "data2/0"}


def test_ranges_of_one_content_are_read(objects):
    write(objects, "data/letters", b"abcdef")
    version = objects.version("data/letters")
    assert [objects.read_range(version, *part) for part in [(0, 6), (1, 3), (5, 6)]] == [b"abcdef", b"bc", b"f"]


def test_another_content_is_never_read(objects):
    write(objects, "data/letters", b"abcdef")
    version = objects.version("data/letters")
    write(objects, "data/letters", b"ABCDEF")
    for part in [(0, 6), (1, 3)]:
        with pytest.raises(ObjectChanged):
            objects.read_range(version, *part)
    assert objects.read_range(objects.version("data/letters"), 0, 6) == b"ABCDEF"


def test_an_object_that_is_gone_is_never_read(objects):
    write(objects, "data/folder/letters", b"abcdef")
    version = objects.version("data/folder/letters")
    assert list(objects.sweep("data", lambda name, age_s: True)) == ["folder"]
    with pytest.raises(ObjectChanged):
        objects.read_range(version, 0, 6)


@pytest.mark.parametrize("size", [0, 7, (9 << 20) + 1])
def test_a_file_is_written_whole_and_has_the_version_that_others_see(objects, tmp_path, size):
    source = tmp_path / "source"
    source.write_bytes(b"u" * size)
    version = objects.upload("data/file", source)
    assert version == objects.version("data/file")
    assert list(objects.versions("data")) == [version]
    assert version.size_bytes == size
    if size:
        assert objects.read_range(version, 0, size) == b"u" * size
