"""Names in a store: which are accepted, and those of the places of tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.checkpoints.keys import MAX_FILE_BYTES, MAX_KEY_BYTES, MAX_PART_BYTES, check_file, check_key
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path, newest_key
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


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=250)


@given(TEXT, TEXT, TEXT, st.integers(-1, 10**6))
def test_every_task_instance_has_a_valid_path(dag_id: str, task_id: str, run_id: str, index: int) -> None:
    path = checkpoint_path(dag_id, task_id, run_id, index)
    check_key(f"{path}/index.json")
    check_key(newest_key(dag_id, task_id))
    assert path.count("/") == 3


@given(TEXT, TEXT)
def test_two_names_never_share_a_path(dag_id: str, other_dag_id: str) -> None:
    assert (dag_id == other_dag_id) == (newest_key(dag_id, "t") == newest_key(other_dag_id, "t"))


def test_long_names_that_differ_at_the_end_do_not_share_a_path() -> None:
    names = ["ä" * 249 + end for end in "abc"]
    assert len({checkpoint_path("dag", "task", name, -1) for name in names}) == 3


def test_the_longest_place_leaves_room_for_a_file_and_a_prefix() -> None:
    path = checkpoint_path(*["." * 250] * 3, 10**6)
    assert len(path) + len("/000000000001-100000-01234567/") + MAX_FILE_BYTES + 64 < MAX_KEY_BYTES


def test_a_place_travels_as_json() -> None:
    place = CheckpointPlace(url="s3://b/p", path="d/t/r/-1", epoch=2, token=7, endpoints=("https://minio:9000",))
    assert CheckpointPlace.model_validate_json(place.model_dump_json()) == place
