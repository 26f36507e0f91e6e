"""Publishing and loading with every store."""

import json
import logging
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hetero_airflow.checkpoints import publishing
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.checkpoints.loading import load_checkpoint, load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.errors import FencedOut, InvalidCheckpoint, SettingsError
from tests.checkpoints.conftest import NOW


def stage(folder: Path, step: int) -> Path:
    """Local files of a checkpoint."""
    (folder / "files").mkdir(parents=True)
    (folder / "tensors-00000-of-00001.safetensors").write_bytes(b"\0" * 100 + str(step).encode())
    (folder / "state.json").write_text(json.dumps({"step": step}))
    (folder / "files" / "vocabulary.txt").write_text(f"a\nb\n{step}")
    return folder


@pytest.fixture
def save(store: CheckpointStore, tmp_path: Path):
    """Publishes a step."""
    count = iter(range(1000))

    def save(holder: WriteClaim, step: int, *, is_final: bool = False, now: datetime | None = None, **metrics: float):
        folder = stage(tmp_path / f"staged-{next(count)}", step)
        now = now or NOW + timedelta(seconds=step)
        return publish(store, holder, folder, step=step, metrics=metrics, now=now, is_final=is_final)

    return save


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def folders(store: CheckpointStore, place: CheckpointPlace) -> set[str]:
    """The folders in a place, whether the index names them or not."""
    folders: set[str] = set()
    assert list(store.sweep(place.path, lambda name, age_s: bool(folders.add(name)))) == []
    return folders


def test_a_published_checkpoint_is_loaded_unchanged(store, new_place, save, tmp_path) -> None:
    place = new_place(token=7, epoch=2)
    holder = claim_place(store, place)
    assert (holder.token, holder.epoch, holder.index) == (7, 2, Index(token=7, epoch=2))
    entry = save(holder, 41, loss=0.5)
    assert entry == CheckpointEntry(
        step=41,
        key=entry.key,
        digest=entry.digest,
        size_bytes=entry.size_bytes,
        metrics={"loss": 0.5},
        published_at=NOW + timedelta(seconds=41),
        token=7,
        epoch=2,
    )
    assert read_index(store, place.path) == Index(token=7, epoch=2, entries=(entry,))
    assert load_latest(store, place, tmp_path / "loaded") == entry
    expected = files_of(stage(tmp_path / "expected", 41))
    assert files_of(tmp_path / "loaded") == expected
    assert entry.size_bytes == sum(map(len, expected.values()))
    assert set(load_checkpoint(store, place, entry, tmp_path / "again").files) == set(expected)


def test_before_the_first_save_there_is_nothing(store, new_place, tmp_path) -> None:
    place = new_place()
    assert read_index(store, place.path) is None
    assert load_latest(store, place, tmp_path / "loaded") is None
    claim_place(store, place)
    assert load_latest(store, place, tmp_path / "loaded") is None
    assert not (tmp_path / "loaded").exists()


def test_a_later_run_fences_the_earlier_one_out(store, new_place, save) -> None:
    old = claim_place(store, new_place(token=1))
    entry = save(old, 1)
    new = claim_place(store, new_place(token=2))
    with pytest.raises(FencedOut) as caught:
        save(old, 2)
    assert "token 2" in caught.value.found
    with pytest.raises(FencedOut):
        claim_place(store, new_place(token=1))
    index = read_index(store, new.place.path)
    assert index == Index(token=2, epoch=0, entries=(entry,))


def test_the_same_run_may_begin_again(store, new_place, save) -> None:
    save(claim_place(store, new_place(token=5)), 1)
    again = claim_place(store, new_place(token=5))
    assert [entry.step for entry in again.index.entries] == [1]
    assert save(again, 2).token == 5


def test_without_a_lease_the_run_that_begins_last_publishes(store, new_place, save) -> None:
    first = claim_place(store, new_place())
    second = claim_place(store, new_place())
    assert first.token < second.token
    with pytest.raises(FencedOut):
        save(first, 1)
    save(second, 1)


def test_a_cleared_task_starts_fresh_and_its_old_checkpoints_go_when_it_has_new_ones(
    store, new_place, save, tmp_path
) -> None:
    save(claim_place(store, new_place(token=1)), 10)
    cleared = new_place(token=2, epoch=1)
    holder = claim_place(store, cleared)
    assert load_latest(store, cleared, tmp_path / "loaded") is None
    assert [entry.step for entry in holder.index.entries] == [10]
    entry = save(holder, 3)
    index = read_index(store, cleared.path)
    assert index == Index(token=2, epoch=1, entries=(entry,))
    assert folders(store, cleared) == {entry.key}
    with pytest.raises(FencedOut):
        claim_place(store, new_place(token=3, epoch=0))


def test_a_cleared_task_continues_if_configured(store, new_place, save, tmp_path) -> None:
    save(claim_place(store, new_place(token=1, epoch=1)), 10)
    goes_on = new_place(token=2, epoch=None)
    holder = claim_place(store, goes_on)
    assert holder.epoch == 1
    assert load_latest(store, goes_on, tmp_path / "loaded").step == 10
    save(holder, 11)
    assert [entry.step for entry in read_index(store, goes_on.path).current] == [10, 11]


def test_checkpoints_that_are_not_retained_are_deleted(store, new_place, save) -> None:
    place = new_place(token=1, keep_last=2, keep_best="min:loss")
    holder = claim_place(store, place)
    for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, 2.0]):
        save(holder, step, loss=loss)
    index = read_index(store, place.path)
    assert [entry.step for entry in index.entries] == [1, 3, 4]
    assert folders(store, place) == {entry.key for entry in index.entries}


def test_the_newest_object_names_the_newest_of_all_runs(store, new_place, save) -> None:
    first = claim_place(store, new_place(path="dag/task/one/-1"))
    second = claim_place(store, new_place(path="dag/task/other/-1"))
    assert read_newest_checkpoint(store, "dag", "task") is None
    for holder, step in [(first, 1), (second, 2), (first, 3)]:
        entry = save(holder, step, is_final=step == 3)
        newest = read_newest_checkpoint(store, "dag", "task")
        assert (newest.path, newest.entry) == (holder.place.path, entry)
    assert newest.entry.is_final


def test_a_clock_that_was_set_back_changes_neither_order_nor_newest(store, new_place, save, tmp_path) -> None:
    place = new_place(token=1)
    holder = claim_place(store, place)
    first = save(holder, 1)
    second = save(holder, 2, now=NOW - timedelta(days=1))
    assert second.published_at == first.published_at
    assert read_newest_checkpoint(store, "dag", "task").entry == second
    assert load_latest(store, place, tmp_path / "loaded") == second


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", None])
def test_a_metric_that_is_no_number_is_refused_and_nothing_is_written(store, new_place, save, value) -> None:
    holder = claim_place(store, new_place())
    with pytest.raises(InvalidCheckpoint, match="no finite number"):
        save(holder, 1, loss=value)
    assert folders(store, holder.place) == set()


def test_a_rule_for_the_best_is_checked_before_the_first_step(store, new_place) -> None:
    with pytest.raises(SettingsError):
        claim_place(store, new_place(keep_best="lowest loss"))
    assert read_index(store, new_place().path) is None


def test_a_foreign_object_at_the_index_is_not_overwritten(store, new_place) -> None:
    place = new_place(token=1)
    for number, foreign in enumerate([b"", b"{", b"[]", b'{"token": 1, "epoch": 0, "other": 1}', b"\x80\x04."]):
        path = f"dag/task/run{number}/-1"
        store.replace(f"{path}/index.json", foreign, None)
        with pytest.raises(InvalidCheckpoint, match="Move it away"):
            claim_place(store, place.model_copy(update={"path": path}))
        assert store.read(f"{path}/index.json", at_most=100).content == foreign


def test_a_claim_announces_what_a_killed_run_did_not(store, new_place, save) -> None:
    place = new_place(token=1)
    first, second = (save(claim_place(store, place), step) for step in (1, 2))
    stored = store.read("dag/task/newest.json", at_most=10_000)
    stale = json.dumps({"path": place.path, "entry": first.model_dump(mode="json")}).encode()
    store.replace("dag/task/newest.json", stale, stored.version)
    claim_place(store, new_place(token=2))
    assert read_newest_checkpoint(store, "dag", "task").entry == second


def test_a_failed_announcement_or_sweep_is_logged_and_the_save_stays(
    store, new_place, save, caplog, monkeypatch
) -> None:
    holder = claim_place(store, new_place(token=1))
    store.replace("dag/task/newest.json", b"foreign", None)

    def fail(*_):
        raise InvalidCheckpoint("sweep", found="nothing", remedy="None")

    monkeypatch.setattr(store, "sweep", fail)
    with caplog.at_level(logging.WARNING):
        entry = save(holder, 1)
    assert read_index(store, holder.place.path).entries == (entry,)
    assert [record.name for record in caplog.records if record.name.startswith("hetero")] == [publishing.__name__] * 2
