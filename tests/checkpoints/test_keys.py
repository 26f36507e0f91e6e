from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.checkpoints.keys import MAX_FILE_BYTES, MAX_KEY_BYTES, MAX_PART_BYTES, check_file, check_key
from hetero_airflow.errors import InvalidCheckpoint

HOSTILE = {
    "": "an empty name",
    "..": "the part '..'",
    "a/../b": "the part '..'",
    "a/./b": "the part '.'",
    "a//b": "the part ''",
    "a/": "the part ''",
    "/etc/passwd": "an absolute path",
    "a\0b": "a character that can't be printed",
    "a\nb": "a character that can't be printed",
    "a\x1b[2Jb": "a character that can't be printed",
    "a\u202eb": "a character that can't be printed",
    "a\udcffb": "a character that can't be printed",
    "a\\..\\b": "a backslash",
    "lock~": "a part that ends with '~', as the store's own files do",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("check", [check_key, check_file])
def test_a_name_that_could_leave_the_store_is_refused_with_the_reason(check, name: str) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        check(name)
    assert caught.value.found == HOSTILE[name]


@pytest.mark.parametrize(("check", "limit"), [(check_key, MAX_KEY_BYTES), (check_file, MAX_FILE_BYTES)])
def test_a_name_is_accepted_up_to_its_limit_in_bytes(check, limit: int) -> None:
    longest = "/".join(["é" * 60] * 20)[: limit // 2]
    longest += "a" * (limit - len(longest.encode()))
    assert check(longest) == longest
    with pytest.raises(InvalidCheckpoint):
        check(longest + "a")


def test_each_part_has_its_own_limit() -> None:
    assert check_key("a" * MAX_PART_BYTES)
    with pytest.raises(InvalidCheckpoint, match="a part of 256 bytes"):
        check_key("a" * (MAX_PART_BYTES + 1))


def test_ten_kilobytes_of_name_do_not_flood_the_error() -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        check_file("a" * 10_000)
    assert len(str(caught.value)) < 300


def test_no_file_may_have_the_manifests_name() -> None:
    with pytest.raises(InvalidCheckpoint, match="the manifest's own name"):
        check_file("manifest.json")
    assert check_file("files/manifest.json")


@given(st.text())
def test_an_accepted_key_stays_below_its_root(name: str) -> None:
    try:
        check_key(name)
    except InvalidCheckpoint:
        return
    parts = name.split("/")
    assert name.isprintable()
    assert all(part not in ("", ".", "..") for part in parts)
