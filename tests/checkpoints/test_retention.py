from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.checkpoints.keys import folder_name
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.retention import ABANDONED_AFTER_S, is_garbage, parse_keep_best, retained_entries
from hetero_airflow.errors import SettingsError
from tests.checkpoints.conftest import NOW


def entry(
    step: int, *, epoch: int = 0, age_s: float = 10.0, is_final: bool = False, **metrics: float
) -> CheckpointEntry:
    """A checkpoint in an index."""
    return CheckpointEntry(
        step=step,
        key=folder_name(step, 1, f"{step:08x}"),
        digest="",
        size_bytes=1,
        metrics=metrics,
        published_at=NOW - timedelta(seconds=age_s),
        token=1,
        epoch=epoch,
        is_final=is_final,
    )


def place(**fields: object) -> CheckpointPlace:
    return CheckpointPlace.model_validate({"url": "file:///x", "path": "d/t/r/-1"} | fields)


def steps(entries: tuple[CheckpointEntry, ...]) -> list[int]:
    return [entry.step for entry in entries]


def test_the_last_entries_stay() -> None:
    assert steps(retained_entries([entry(step) for step in range(10)], place(keep_last=3))) == [7, 8, 9]


@pytest.mark.parametrize(("rule", "retained"), [("min:loss", [2, 4]), ("max:loss", [1, 4]), ("min:other", [4])])
def test_the_best_entry_stays_and_the_last_of_equals(rule: str, retained: list[int]) -> None:
    entries = [entry(step, loss=loss) for step, loss in enumerate([1.0, 9.0, 1.0, 5.0])] + [entry(4)]
    assert steps(retained_entries(entries, place(keep_last=1, keep_best=rule))) == retained


@pytest.mark.parametrize(
    ("saved", "retained"),
    [
        (range(99, 1000, 100), [299, 599, 899, 999]),  # saved when so many steps are done
        (range(0, 1001, 100), [300, 600, 900, 1000]),  # saved at round numbers
        (range(50, 1000, 130), [310, 700, 960]),  # saved by the clock
    ],
)
def test_the_first_at_or_after_each_multiple_stays(saved: range, retained: list[int]) -> None:
    rules = place(keep_last=1, keep_every=300)
    entries: tuple[CheckpointEntry, ...] = ()
    for step in saved:
        entries = retained_entries([*entries, entry(step)], rules)
    assert steps(entries) == retained


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(-9, 9)), min_size=1),
    st.integers(1, 4),
    st.sampled_from([None, "min:loss", "max:loss"]),
    st.sampled_from([None, 1, 7]),
)
def test_the_newest_always_stays_and_no_later_rule_needs_a_deleted_entry(saves, last, best, every) -> None:
    rules = place(keep_last=last, keep_best=best, keep_every=every)
    entries: tuple[CheckpointEntry, ...] = ()
    for number, (step, loss) in enumerate(saves):
        new = entry(step, loss=loss).model_copy(update={"key": str(number)})
        entries = retained_entries([*entries, new], rules)
        assert entries[-1] == new
        assert retained_entries(entries, rules) == entries
    losses = [loss for _, loss in saves]
    if best:
        assert (min if best == "min:loss" else max)(losses) in [entry.metrics["loss"] for entry in entries]


@pytest.mark.parametrize("text", ["loss", "min:", "least:loss", ":loss", ""])
def test_a_rule_for_the_best_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match='neither "min:" nor "max:"'):
        parse_keep_best(text)


@pytest.mark.parametrize(
    ("folder", "age_s", "garbage"),
    [
        (entry(1).key, 1e9, False),  # the index names it
        (folder_name(1, 3, "00000001"), 1e9, False),  # a later run may be writing it
        (folder_name(1, 1, "00000009"), 0, True),  # an earlier run can't publish it any more
        (folder_name(1, 2, "00000009"), 0, False),  # a twin with our lease may be writing it
        (folder_name(1, 2, "00000009"), ABANDONED_AFTER_S + 1, True),
        (folder_name(0, 2, "00000000"), 0, True),  # retired just now
        ("notes", 1e9, False),
        ("000000000001-1-00000009.old", 1e9, False),
    ],
)
def test_only_a_folder_that_no_run_can_publish_is_garbage(folder: str, age_s: float, garbage: bool) -> None:
    index = Index(token=2, epoch=0, entries=(entry(1),))
    retired = {folder_name(0, 2, "00000000")}
    assert is_garbage(folder, age_s, index=index, token=2, retired=retired) is garbage
