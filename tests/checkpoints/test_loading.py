"""A damaged or hostile checkpoint is refused before its use, and the checkpoint before it is loaded."""

import hashlib
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.checkpoints.loading import load_checkpoint, load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.publishing import claim_place, publish
from hetero_airflow.errors import InvalidCheckpoint
from tests.checkpoints.conftest import NOW

TENSORS = "tensors-00000-of-00001.safetensors"


class Trap:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.fixture
def two(store, new_place, tmp_path):
    """A place with two checkpoints, the steps 1 and 2."""
    place = new_place(token=1)
    holder = claim_place(store, place)
    entries = []
    for step in (1, 2):
        folder = tmp_path / f"staged{step}"
        folder.mkdir()
        (folder / TENSORS).write_bytes(bytes(1000) + bytes([step]))
        (folder / "state.json").write_text(json.dumps({"step": step}))
        entries.append(publish(store, holder, folder, step=step, metrics={}, now=NOW))
    return place, *entries


def overwrite(store, place, entry: CheckpointEntry, name: str, content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "foreign"
    source.write_bytes(content)
    store.put(f"{place.path}/{entry.key}/{name}", source)


def damaged(kind: str, content: bytes, tmp_path: Path) -> bytes:
    match kind:
        case "truncated":
            return content[:-100]
        case "empty":
            return b""
        case "longer":
            return content + b"\0"
        case "bit flipped":
            return content[:500] + bytes([content[500] ^ 1]) + content[501:]
        case "another step's":
            return content[:-1] + b"\1"
    return pickle.dumps(Trap(tmp_path / "trace"))


@pytest.mark.parametrize("kind", ["truncated", "empty", "longer", "bit flipped", "another step's", "a pickle"])
def test_a_damaged_checkpoint_is_logged_and_the_one_before_is_loaded(store, two, tmp_path, caplog, kind: str) -> None:
    place, first, second = two
    overwrite(store, place, second, TENSORS, damaged(kind, bytes(1000) + b"\2", tmp_path), tmp_path)
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(store, place, second, tmp_path / "loaded")
    assert not (tmp_path / "loaded").exists()
    with caplog.at_level(logging.WARNING):
        assert load_latest(store, place, tmp_path / "loaded") == first
    assert json.loads((tmp_path / "loaded" / "state.json").read_text()) == {"step": 1}
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("hetero")]
    assert len(warnings) == 1
    assert second.key in warnings[0]
    assert not (tmp_path / "trace").exists()


def test_a_manifest_that_the_index_does_not_name_is_refused(store, two, tmp_path) -> None:
    place, first, second = two
    older = store.read(f"{place.path}/{first.key}/manifest.json", at_most=10_000).content
    overwrite(store, place, second, "manifest.json", older, tmp_path)
    with pytest.raises(InvalidCheckpoint, match="another digest"):
        load_checkpoint(store, place, second, tmp_path / "loaded")
    assert load_latest(store, place, tmp_path / "loaded") == first


def test_none_is_loaded_if_all_are_damaged(store, two, tmp_path, caplog) -> None:
    place, first, second = two
    for entry in (first, second):
        overwrite(store, place, entry, "state.json", b"", tmp_path)
    assert load_latest(store, place, tmp_path / "loaded") is None
    assert not (tmp_path / "loaded").exists()


def test_a_checkpoint_that_is_retired_during_the_read_is_not_damaged(store, two, tmp_path, caplog, monkeypatch) -> None:
    place, _, second = two
    fetch = store.fetch

    def publish_meanwhile(key: str, target: Path, *, at_most: int) -> None:
        if second.key in key:
            monkeypatch.setattr(store, "fetch", fetch)
            publish_third()
        fetch(key, target, at_most=at_most)

    def publish_third() -> None:
        holder = claim_place(store, place.model_copy(update={"keep_last": 1}))
        publish(store, holder, tmp_path / "staged2", step=3, metrics={}, now=NOW)

    monkeypatch.setattr(store, "fetch", publish_meanwhile)
    with caplog.at_level(logging.WARNING):
        assert load_latest(store, place, tmp_path / "loaded").step == 3
    assert [record for record in caplog.records if record.name.startswith("hetero")] == []


def test_an_existing_folder_is_not_changed(store, two, tmp_path) -> None:
    place, _, second = two
    into = tmp_path / "mine"
    into.mkdir()
    (into / "a").write_text("mine")
    for attempt in (lambda: load_checkpoint(store, place, second, into), lambda: load_latest(store, place, into)):
        with pytest.raises(FileExistsError):
            attempt()
    assert [path.read_text() for path in into.iterdir()] == ["mine"]


def craft(
    store, place, tmp_path: Path, files: dict[str, Any], changes: dict[str, Any] | None = None
) -> CheckpointEntry:
    """A checkpoint whose manifest says anything; the index names it with its right digest."""
    content = json.dumps({"version": 1, "step": 9, "metrics": {}, "files": files} | (changes or {})).encode()
    entry = CheckpointEntry(
        step=9,
        key="000000000009-1-00000000",
        digest=hashlib.sha256(content).hexdigest(),
        size_bytes=sum(max(0, file["size_bytes"]) for file in ((changes or {}).get("files") or files).values()),
        published_at=NOW,
        token=1,
        epoch=0,
    )
    overwrite(store, place, entry, "manifest.json", content, tmp_path)
    overwrite(store, place, entry, "a", b"12345", tmp_path)
    return entry


def file(size_bytes: int = 5, content: bytes = b"12345") -> dict[str, object]:
    return {"size_bytes": size_bytes, "sha256": hashlib.sha256(content).hexdigest()}


def test_a_crafted_but_valid_manifest_can_be_loaded(store, new_place, tmp_path) -> None:
    place = new_place()
    load_checkpoint(store, place, craft(store, place, tmp_path, {"a": file()}), tmp_path / "loaded")
    assert (tmp_path / "loaded" / "a").read_bytes() == b"12345"


@pytest.mark.parametrize(
    "name",
    ["../a", "/tmp/a", "x/../../a", "a\0", "a" * 10_240, "", "manifest.json", "a\\b", "./a", "a\n"],
)
def test_a_manifest_with_a_name_that_leaves_the_folder_is_refused(store, new_place, tmp_path, name: str) -> None:
    place = new_place()
    entry = craft(store, place, tmp_path, {"a": file(), name: file()})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidCheckpoint) as caught:
        load_checkpoint(store, place, entry, tmp_path / "loaded")
    assert len(str(caught.value)) < 600
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("size_bytes", [0, 4, 6, 1 << 50])
def test_a_manifest_with_a_wrong_size_is_refused(store, new_place, tmp_path, size_bytes: int) -> None:
    place = new_place()
    entry = craft(store, place, tmp_path, {"a": file(size_bytes)})
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(store, place, entry, tmp_path / "loaded")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"step": -1},
        {"step": 8},
        {"metrics": {"loss": float("nan")}},
        {"other": 1},
        {"files": []},
        {"files": {"a": {"size_bytes": -5, "sha256": "0" * 64}}},
        {"files": {"a": {"size_bytes": 5, "sha256": "../" * 21 + "0"}}},
        {"files": {"missing": file()}},
        {"files": {"a": file(), "a/b": file()}},
        {"files": {"a": file(), "a/b/c": file()}},
    ],
)
def test_an_invalid_manifest_is_refused(store, new_place, tmp_path, fields: dict[str, object]) -> None:
    place = new_place()
    entry = craft(store, place, tmp_path, {"a": file()}, fields)
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(store, place, entry, tmp_path / "loaded")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("key", ["../../../../other", "/etc", "a\0b", "", "a" * 10_240])
def test_an_index_that_points_out_of_its_place_is_refused(store, new_place, tmp_path, key: str) -> None:
    place = new_place(token=1)
    entry = craft(store, place, tmp_path, {"a": file()}).model_copy(update={"key": key})
    index = Index(token=1, epoch=0, entries=(entry,))
    assert store.replace(f"{place.path}/index.json", index.model_dump_json().encode(), None)
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(store, place, entry, tmp_path / "loaded")
    assert load_latest(store, place, tmp_path / "loaded") is None


@pytest.mark.parametrize("content", [b"{}", b"\xff", b"null", b'{"token": 1e999, "epoch": 0}'])
def test_an_invalid_index_or_newest_object_is_refused(store, new_place, content: bytes) -> None:
    store.replace("dag/task/run/-1/index.json", content, None)
    store.replace("dag/task/newest.json", content, None)
    with pytest.raises(InvalidCheckpoint, match="Move it away"):
        read_index(store, "dag/task/run/-1")
    with pytest.raises(InvalidCheckpoint, match="Move it away"):
        read_newest_checkpoint(store, "dag", "task")
