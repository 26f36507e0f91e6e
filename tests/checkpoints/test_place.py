from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.checkpoints.keys import MAX_FILE_BYTES, MAX_KEY_BYTES, check_key
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path, newest_key

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
